#include "kernels/exact_sum.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>

#include "kernels/cuda_ops.h"
#include "kernels/tiles.h"

namespace keel {
namespace {

__extension__ typedef __int128 wide;
__extension__ typedef unsigned __int128 unsigned_wide;

std::int64_t sum(std::int64_t a, std::int64_t b) {  // wraps, as it may while a step finds out that its scale is too large
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

void expect_flat(const char* what, std::int64_t got, std::int64_t want) {
    if (got != want) fail(what, " has ", got, " elements, but the other operand has ", want);
}

}  // namespace

void exact_add(Stream& stream, const ExactAdd& a) {
    expect_flat("exact_add: q", a.q.size(), a.x.size());
    if (run_on_device(stream, a)) return;
    const double factor = std::ldexp(1.0, a.scale);
    parallel_flat(stream, a.x.size(), [&](std::int64_t begin, std::int64_t count) {
        std::int64_t* q = a.q.data();
        const float* x = a.x.data();
        for (std::int64_t i = begin; i < begin + count; ++i) q[i] = sum(q[i], std::llrint(static_cast<double>(x[i]) * factor));
    });
}

void exact_read(Stream& stream, const ExactRead& a) {
    expect_flat("exact_read: y", a.y.size(), a.q.size());
    if (run_on_device(stream, a)) return;
    parallel_flat(stream, a.q.size(), [&](std::int64_t begin, std::int64_t count) {
        for (std::int64_t i = begin; i < begin + count; ++i) {
            // int64 to float rounds once; a power of two then changes nothing but the exponent.
            a.y[i] = std::ldexp(static_cast<float>(a.q[i]), -a.scale);
        }
    });
}

void max_abs(Stream& stream, const MaxAbs& a) {
    if (a.out.size() != 1) fail("max_abs: out has ", a.out.size(), " elements; it must have 1");
    if (run_on_device(stream, a)) return;
    // Without their sign the bits of floats are ordered as integers, NaN above infinity: one atomic maximum holds both.
    std::atomic<std::uint32_t> largest{a.accumulate ? std::bit_cast<std::uint32_t>(a.out[0]) : 0};
    parallel_flat(stream, a.x.size(), [&](std::int64_t begin, std::int64_t count) {
        std::uint32_t most = 0;
        for (std::int64_t i = begin; i < begin + count; ++i) most = std::max(most, std::bit_cast<std::uint32_t>(a.x[i]) & 0x7fffffffu);
        std::uint32_t seen = largest.load(std::memory_order_relaxed);
        while (seen < most && !largest.compare_exchange_weak(seen, most)) {}
    });
    a.out[0] = std::bit_cast<float>(largest.load());
}

void exact_squares(Stream& stream, const ExactSquares& a) {
    if (a.limbs.size() != 3) fail("exact_squares: ", a.limbs.size(), " limbs; there are 3");
    if (run_on_device(stream, a)) return;
    const double factor = std::ldexp(1.0, a.scale);
    constexpr std::int64_t mask = (std::int64_t{1} << 40) - 1;
    std::atomic<std::int64_t> low{0}, middle{0}, high{0};
    parallel_flat(stream, a.x.size(), [&](std::int64_t begin, std::int64_t count) {
        unsigned_wide sum = 0;  // at most 2^15 numbers below 2^63
        for (std::int64_t i = begin; i < begin + count; ++i) {
            const double x = a.x[i];  // its square is exact in double
            sum += static_cast<std::uint64_t>(std::llrint(x * x * factor));
        }
        low.fetch_add(static_cast<std::int64_t>(sum) & mask, std::memory_order_relaxed);
        middle.fetch_add(static_cast<std::int64_t>(sum >> 40) & mask, std::memory_order_relaxed);
        high.fetch_add(static_cast<std::int64_t>(sum >> 80), std::memory_order_relaxed);
    });
    a.limbs[0] += low.load(), a.limbs[1] += middle.load(), a.limbs[2] += high.load();
}

double exact_value(const std::int64_t* limbs, int scale) {
    const wide sum = static_cast<wide>(limbs[0]) + (static_cast<wide>(limbs[1]) << 40) + (static_cast<wide>(limbs[2]) << 80);
    return std::ldexp(static_cast<double>(sum), -scale);
}

}  // namespace keel
