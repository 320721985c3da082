#include "engine/parallel/exact.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/exact_sum.h"

namespace keel {
namespace {

constexpr int place_of_largest = 38;   // bits below the largest element
constexpr int most_bits = 62;          // of a sum

}  // namespace

ExactSums::ExactSums(Stream& stream, const ParamTable& params, const std::vector<int>& whole_index, const Buffers& buffers)
    : stream_(stream), params_(params), whole_index_(whole_index), b_(buffers) {
    const auto n = static_cast<std::size_t>(b_.largest.size());
    scales_.assign(n, unknown), next_.assign(n, unknown), square_scales_.assign(n, 0);
}

void ExactSums::begin() {
    stream_.parallel(ceil_div(b_.sums.size(), 1 << 16), [&](std::int64_t t, int) {
        const std::int64_t begin = t << 16;
        std::fill_n(b_.sums.data() + begin, std::min<std::int64_t>(1 << 16, b_.sums.size() - begin), 0);
    });
    std::fill_n(b_.largest.data(), b_.largest.size(), 0.0f);
}

void ExactSums::add(int param, View<const float> gradient) {
    const Param& p = params_.specs[static_cast<std::size_t>(param)];
    float most = 0;
    max_abs(stream_, {.out = View<float>(&most, {1}), .x = gradient});
    stream_.synchronize();
    float& largest = b_.largest[static_cast<std::int64_t>(whole(param))];
    if (!(most <= largest)) largest = std::isnan(largest) ? largest : most;  // NaN stays
    const int scale = scales_[whole(param)];
    if (scale == unknown || !std::isfinite(most) || (most > 0 && std::ilogb(most) + scale >= most_bits)) return;
    exact_add(stream_, {.q = b_.sums.rows(p.offset, p.size()), .x = gradient, .scale = scale});
}

bool ExactSums::fits(Group& world, std::int64_t addends) {
    world.all_reduce_max(stream_, b_.largest);
    const int bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(addends)));
    const int place = std::min(place_of_largest, most_bits - 2 - bits);  // whatever is added, the sum fits
    bool fits = true;
    finite_ = true;
    for (std::size_t p = 0; p < scales_.size(); ++p) {
        const float largest = b_.largest[static_cast<std::int64_t>(p)];
        next_[p] = scales_[p];
        if (!std::isfinite(largest)) finite_ = false;
        else if (largest > 0) next_[p] = std::clamp(place - std::ilogb(largest), -400, 400);
        else if (scales_[p] == unknown) next_[p] = 0;  // nothing but zeros so far
        if (std::isfinite(largest) && (scales_[p] == unknown || (largest > 0 && std::ilogb(largest) + 1 + scales_[p] + bits > most_bits)))
            fits = false;
    }
    if (!finite_) return true;  // the step will not be applied, whatever its scales
    if (!fits) scales_ = next_;
    return fits;
}

bool ExactSums::finite() const { return finite_; }

void ExactSums::advance() {
    if (finite_) scales_ = next_;
}

void ExactSums::read(const ShardPiece& piece, View<float> gradient) {
    exact_read(stream_, {.y = gradient.rows(piece.in_buffer, piece.size), .q = b_.sums.rows(piece.in_buffer, piece.size),
                         .scale = scales_[whole(piece.param)]});
}

// Squares of one tensor are integers of one scale, which the largest element over all ranks decides.
void ExactSums::measure_begin() {
    std::fill_n(b_.largest.data(), b_.largest.size(), 0.0f);
    std::fill_n(b_.limbs.data(), b_.limbs.size(), 0);
}
void ExactSums::measure(const ShardPiece& piece, View<const float> gradient) {
    float most = 0;
    max_abs(stream_, {.out = View<float>(&most, {1}), .x = gradient.rows(piece.in_buffer, piece.size)});
    stream_.synchronize();
    float& largest = b_.largest[static_cast<std::int64_t>(whole(piece.param))];
    if (!(most <= largest)) largest = most;
}
bool ExactSums::measure_end(Group& world) {
    world.all_reduce_max(stream_, b_.largest);
    for (std::int64_t p = 0; p < b_.largest.size(); ++p)
        if (!std::isfinite(b_.largest[p])) return false;  // a sum of finite gradients may be too large for a float
    for (std::size_t p = 0; p < square_scales_.size(); ++p) {
        const float largest = b_.largest[static_cast<std::int64_t>(p)];
        square_scales_[p] = largest > 0 ? 60 - 2 * std::ilogb(largest) : 0;  // the largest square is below 2^62
    }
    return true;
}
void ExactSums::square(const ShardPiece& piece, View<const float> gradient) {
    const auto p = static_cast<std::int64_t>(whole(piece.param));
    if (b_.largest[p] == 0) return;
    exact_squares(stream_, {.limbs = b_.limbs.rows(3 * p, 3), .x = gradient.rows(piece.in_buffer, piece.size),
                            .scale = square_scales_[static_cast<std::size_t>(p)]});
}
double ExactSums::total(Group& world) {
    world.all_reduce(stream_, b_.limbs);
    double sum = 0;
    for (std::size_t p = 0; p < square_scales_.size(); ++p) sum += exact_value(b_.limbs.data() + 3 * p, square_scales_[p]);
    return std::sqrt(sum);
}

}  // namespace keel
