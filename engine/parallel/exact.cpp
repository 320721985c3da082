#include "engine/parallel/exact.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/copy.h"
#include "kernels/exact_sum.h"

namespace keel {
namespace {

constexpr int place_of_largest = 38;   // bits below the largest element
constexpr int most_bits = 62;          // of a sum

bool too_large(float x, int scale) { return !std::isfinite(x) || (x > 0 && std::ilogb(x) + scale >= most_bits); }

}  // namespace

ExactSums::ExactSums(const Backend& backend, const ParamTable& params, const std::vector<int>& whole_index, const Buffers& buffers)
    : backend_(backend), stream_(backend.stream), params_(params), whole_index_(whole_index), b_(buffers) {
    const auto n = static_cast<std::size_t>(b_.largest.size());
    scales_.assign(n, unknown), next_.assign(n, unknown), square_scales_.assign(n, 0);
    largest_.resize(n), limbs_.resize(3 * n);
}

void ExactSums::begin() {
    clear(stream_, b_.sums);
    clear(stream_, b_.largest);
}

// The host of a GPU does not wait to see what is largest: where that does not fit, whatever comes of it is thrown away.
void ExactSums::add(int param, View<const float> gradient) {
    const Param& p = params_.specs[static_cast<std::size_t>(param)];
    const View<float> largest = b_.largest.rows(static_cast<std::int64_t>(whole(param)), 1);
    max_abs(stream_, {.out = largest, .x = gradient, .accumulate = true});
    const int scale = scales_[whole(param)];
    if (scale == unknown || (!backend_.gpu && too_large(largest[0], scale))) return;
    exact_add(stream_, {.q = b_.sums.rows(p.offset, p.size()), .x = gradient, .scale = scale});
}

void ExactSums::agree_on_largest(Group& world) {
    backend_.copy_out(largest_.data(), b_.largest.data(), b_.largest.bytes());
    world.all_reduce_max(backend_.host, View<float>(largest_.data(), {b_.largest.size()}));
}

bool ExactSums::fits(Group& world, std::int64_t addends) {
    agree_on_largest(world);
    const int bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(addends)));
    const int place = std::min(place_of_largest, most_bits - 2 - bits);  // whatever is added, the sum fits
    bool fits = true;
    finite_ = true;
    for (std::size_t p = 0; p < scales_.size(); ++p) {
        const float largest = largest_[p];
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
    clear(stream_, b_.largest);
    clear(stream_, b_.limbs);
}
void ExactSums::measure(const ShardPiece& piece, View<const float> gradient) {
    max_abs(stream_, {.out = b_.largest.rows(static_cast<std::int64_t>(whole(piece.param)), 1),
                      .x = gradient.rows(piece.in_buffer, piece.size), .accumulate = true});
}
bool ExactSums::measure_end(Group& world) {
    agree_on_largest(world);
    for (const float largest : largest_)
        if (!std::isfinite(largest)) return false;  // a sum of finite gradients may be too large for a float
    for (std::size_t p = 0; p < square_scales_.size(); ++p)
        square_scales_[p] = largest_[p] > 0 ? 60 - 2 * std::ilogb(largest_[p]) : 0;  // the largest square is below 2^62
    return true;
}
void ExactSums::square(const ShardPiece& piece, View<const float> gradient) {
    const std::size_t p = whole(piece.param);
    if (largest_[p] == 0) return;
    exact_squares(stream_, {.limbs = b_.limbs.rows(3 * static_cast<std::int64_t>(p), 3),
                            .x = gradient.rows(piece.in_buffer, piece.size), .scale = square_scales_[p]});
}
double ExactSums::total(Group& world) {
    backend_.copy_out(limbs_.data(), b_.limbs.data(), b_.limbs.bytes());
    world.all_reduce(backend_.host, View<std::int64_t>(limbs_.data(), {b_.limbs.size()}));
    double sum = 0;
    for (std::size_t p = 0; p < square_scales_.size(); ++p) sum += exact_value(limbs_.data() + 3 * p, square_scales_[p]);
    return std::sqrt(sum);
}

}  // namespace keel
