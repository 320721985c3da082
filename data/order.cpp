#include "data/order.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/base/error.h"

namespace keel {
namespace {

constexpr int rounds = 8;  // four make a Feistel network of good round functions a good permutation; halves here are short

// Shares of a period, nearest to the weights and of sum `period`: largest remainders first, the lower source on ties.
// Returns the largest error of a share, in draws per draw.
double round_shares(const std::vector<double>& weights, std::int64_t period, std::vector<std::int64_t>& shares) {
    std::int64_t sum = 0;
    for (std::size_t d = 0; d < weights.size(); ++d) sum += shares[d] = static_cast<std::int64_t>(std::floor(weights[d] * static_cast<double>(period)));
    for (; sum < period; ++sum) {
        std::size_t most = 0;
        double gap = -1;
        for (std::size_t d = 0; d < weights.size(); ++d)
            if (const double g = weights[d] * static_cast<double>(period) - static_cast<double>(shares[d]); g > gap) gap = g, most = d;
        ++shares[most];
    }
    double error = 0;
    for (std::size_t d = 0; d < weights.size(); ++d)
        error = std::max(error, std::abs(static_cast<double>(shares[d]) / static_cast<double>(period) - weights[d]));
    return error;
}

std::int64_t nearest_share(double weight, std::int64_t period) {
    return static_cast<std::int64_t>(std::llround(weight * static_cast<double>(period)));
}

}  // namespace

Permutation::Permutation(std::int64_t size, std::uint64_t seed, std::uint64_t stream, std::int64_t epoch)
    : size_(size), random_(0, Purpose::shuffle, "feistel") {
    if (size < 1) fail("a permutation of ", size, " elements is impossible");
    const int bits = std::max(2, static_cast<int>(std::bit_width(static_cast<std::uint64_t>(size - 1))));
    left_bits_ = bits / 2;
    right_bits_ = bits - left_bits_;
    const std::uint64_t key = Random(seed, Purpose::shuffle, "stream").bits64(stream);
    random_ = Random(Random(key, Purpose::shuffle, "epoch").bits64(static_cast<std::uint64_t>(epoch)), Purpose::shuffle, "feistel");
}

std::int64_t Permutation::operator()(std::int64_t i) const {
    if (i < 0 || i >= size_) fail("element ", i, " of a permutation of ", size_);
    const std::uint64_t left_mask = (std::uint64_t{1} << left_bits_) - 1, right_mask = (std::uint64_t{1} << right_bits_) - 1;
    auto x = static_cast<std::uint64_t>(i);
    do {  // less than twice on average: the domain is below twice the size
        std::uint64_t left = x >> right_bits_, right = x & right_mask;
        for (std::uint64_t round = 0; round < rounds; round += 2) {
            left ^= random_.bits64(round << 56 | right) & left_mask;
            right ^= random_.bits64((round + 1) << 56 | left) & right_mask;
        }
        x = left << right_bits_ | right;
    } while (x >= static_cast<std::uint64_t>(size_));
    return static_cast<std::int64_t>(x);
}

Blend::Blend(const std::vector<double>& given) {
    if (given.empty() || given.size() > 65535) fail("a blend of ", given.size(), " sources; 1 to 65535 are possible");
    double sum = 0;
    for (const double w : given) {
        if (!(w > 0) || !std::isfinite(w)) fail_usage("a blend weight is ", w, "; weights must be positive numbers");
        sum += w;
    }
    std::vector<double> weights = given;
    for (double& w : weights) w /= sum;

    // The shortest period that meets the weights to within rounding; failing that, the one with the smallest error.
    // 1e-13 is the noise of the division above, and a drift of one draw only after 10^13.
    constexpr double exact = 1e-13;
    double least = 2;
    for (std::int64_t p = 1; p <= max_period && least > exact; ++p) {
        double error = 0;
        std::int64_t total = 0;
        for (std::size_t d = 0; d < weights.size() && error < least; ++d) {
            const std::int64_t share = nearest_share(weights[d], p);
            if (share == 0) error = 2;
            total += share;
            error = std::max(error, std::abs(static_cast<double>(share) / static_cast<double>(p) - weights[d]));
        }
        if (error < least && total == p) least = error, period_ = p;
    }
    share_.resize(weights.size());
    if (least > 1) {  // some weight is too small for any period: give every source at least its rounded share
        period_ = max_period;
        round_shares(weights, period_, share_);
        for (std::size_t d = 0; d < share_.size(); ++d)
            if (share_[d] == 0)
                fail_usage("the blend weight ", given[d], " is less than a millionth of all weights (", sum,
                           "); leave that source out or raise its weight");
    } else {
        for (std::size_t d = 0; d < share_.size(); ++d) share_[d] = nearest_share(weights[d], period_);
    }

    // Draw j of source d belongs between floor(j P / s) and ceil((j + 1) P / s): then its count never leaves
    // [floor(w n), ceil(w n)]. Of the sources whose window is open, the one whose window closes first is drawn.
    std::vector<std::int64_t> drawn(share_.size(), 0);
    source_.resize(static_cast<std::size_t>(period_));
    index_.resize(static_cast<std::size_t>(period_));
    for (std::int64_t n = 0; n < period_; ++n) {
        std::size_t pick = share_.size();
        std::int64_t earliest = 0;
        for (std::size_t d = 0; d < share_.size(); ++d) {
            if (drawn[d] * period_ >= (n + 1) * share_[d]) continue;  // not open yet
            const std::int64_t closes = ((drawn[d] + 1) * period_ + share_[d] - 1) / share_[d];
            if (pick == share_.size() || closes < earliest) pick = d, earliest = closes;
        }
        if (pick == share_.size() || earliest <= n) fail("internal: no blend pattern of period ", period_, " at draw ", n);
        source_[static_cast<std::size_t>(n)] = static_cast<std::uint16_t>(pick);
        index_[static_cast<std::size_t>(n)] = static_cast<std::uint32_t>(drawn[pick]++);
    }
}

double Blend::weight(std::int64_t source) const {
    return static_cast<double>(share_[static_cast<std::size_t>(source)]) / static_cast<double>(period_);
}

Blend::Draw Blend::operator()(std::int64_t n) const {
    if (n < 0) fail("draw ", n, " of a blend");
    const auto at = static_cast<std::size_t>(n % period_);
    const std::int64_t source = source_[at];
    return {source, n / period_ * share_[static_cast<std::size_t>(source)] + index_[at]};
}

std::int64_t Blend::count(std::int64_t source, std::int64_t n) const {
    const auto rest = static_cast<std::ptrdiff_t>(n % period_);
    return n / period_ * share_[static_cast<std::size_t>(source)] +
           std::count(source_.begin(), source_.begin() + rest, static_cast<std::uint16_t>(source));
}

}  // namespace keel
