#include "kernels/reduce.h"

#include <gtest/gtest.h>

#include "tests/kernels/golden.h"
#include "tests/kernels/tensor.h"

namespace keel {
namespace {

const std::vector<std::int64_t> sizes{0, 1, 2, 7, 31, 64, 65, 257, 16384, 16385, 100003};

// {sum of squares, sum, non-finite elements}
Values run(Stream& stream, const Values& values) {
    const auto n = static_cast<std::int64_t>(values.size());
    Tensor<float> x(values);
    Tensor<double> squares(1), sum_of(1);
    Tensor<std::int64_t> bad(1);
    Scratch scratch(reduce_scratch_bytes(n));
    sum_of_squares(stream, {.out = squares.view(), .scratch = scratch.view(), .x = x.read()});
    sum(stream, {.out = sum_of.view(), .scratch = scratch.view(), .x = x.read()});
    count_nonfinite(stream, {.out = bad.view(), .scratch = scratch.view(), .x = x.read()});
    EXPECT_TRUE(squares.untouched() && sum_of.untouched() && bad.untouched() && scratch.untouched());
    return {squares.values()[0], sum_of.values()[0], bad.values()[0]};
}

// n additions in double, in any order, are off by at most n 2^-53 of the sum of absolute values.
TEST(Reduce, SumsAreThoseOfDoubleArithmetic) {
    for (const std::int64_t n : sizes) {
        const Values x = random_values<float>("x", n, 100);
        const Values got = on_any_threads([&](Stream& s) -> std::vector<Values> { return {run(s, x)}; })[0];
        long double squares = 0, total = 0, absolute = 0;
        for (const double v : x) squares += static_cast<long double>(v) * v, total += v, absolute += std::abs(v);
        const double unit = static_cast<double>(n) * 0x1p-53;
        EXPECT_NEAR(got[0], static_cast<double>(squares), unit * static_cast<double>(squares)) << n;
        EXPECT_NEAR(got[1], static_cast<double>(total), unit * static_cast<double>(absolute)) << n;
        EXPECT_EQ(got[2], 0) << n;
    }
}

TEST(Reduce, IsTheGolden) {
    const Golden g("ops/reduce");
    const Values got = run(stream_of(2), g["x"]);
    EXPECT_NEAR(got[0], g.scalar("sum_of_squares"), 200 * 0x1p-53 * g.scalar("sum_of_squares"));
    EXPECT_NEAR(got[1], g.scalar("sum"), 200 * 0x1p-53 * 200 * 4e4);
}

// The order is part of the contract, so it is written here a second time, in scalars: 32 accumulators per block of
// 16384, folded in halves, blocks in order. Every width of vector must give these bits.
TEST(Reduce, OrderIsFixedByTheContract) {
    for (const std::int64_t n : sizes) {
        // Magnitudes over 2^60: were they alike, a double would hold every partial sum exactly and no order would show.
        Values x = random_values<float>("order", n);
        for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::ldexp(x[i], static_cast<int>(i * 37 % 61));
        double total = 0;
        for (std::size_t b = 0; b < x.size(); b += 16384) {
            double lane[32] = {};
            for (std::size_t i = b; i < std::min(x.size(), b + 16384); ++i) lane[(i - b) % 32] += x[i];
            for (int half = 16; half; half /= 2)
                for (int k = 0; k < half; ++k) lane[k] += lane[k + half];
            total += lane[0];
        }
        EXPECT_EQ(run(stream_of(2), x)[1], total) << n;
    }
}

TEST(Reduce, FindsNonfiniteElementsAnywhere) {
    const double inf = std::numeric_limits<double>::infinity();
    for (const std::size_t at :
         {std::size_t{0}, std::size_t{15}, std::size_t{16383}, std::size_t{16384}, std::size_t{20002}})
        for (const double bad : {inf, -inf, std::nan("")}) {
            Values x(20003, 1.0);
            x[at] = bad;
            const Values got = run(stream_of(2), x);
            EXPECT_FALSE(std::isfinite(got[0]));
            EXPECT_FALSE(std::isfinite(got[1]));
            EXPECT_EQ(got[2], 1) << at;
        }
    // The largest finite floats are finite, and their squares do not overflow a double.
    const Values huge(70000, static_cast<double>(std::numeric_limits<float>::max()));
    EXPECT_TRUE(std::isfinite(run(stream_of(2), huge)[0]));
    EXPECT_EQ(run(stream_of(2), huge)[2], 0);
    EXPECT_EQ(run(stream_of(2), Values(70000, std::nan("")))[2], 70000);
}

std::uint64_t hash_of(Stream& stream, const std::vector<std::byte>& bytes) {
    const auto n = static_cast<std::int64_t>(bytes.size());
    std::uint64_t out = 0;
    Scratch scratch(reduce_scratch_bytes(n));
    hash(stream, {.out = View<std::uint64_t>(&out, {1}),
                  .scratch = scratch.view(),
                  .x = View<const std::byte>(bytes.data(), {n})});
    EXPECT_TRUE(scratch.untouched());
    return out;
}
std::vector<std::byte> pattern(std::size_t n) {
    std::vector<std::byte> bytes(n);
    for (std::size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::byte>((31 * i + 7) % 256);
    return bytes;
}

TEST(Reduce, HashIsXxh3OfBlockHashes) {
    const Golden g("ops/reduce");
    for (std::size_t i = 0; i < g["hash_lengths"].size(); ++i) {
        const auto want = static_cast<std::uint64_t>(g["hash_halves"][2 * i]) << 32 |
                          static_cast<std::uint64_t>(g["hash_halves"][2 * i + 1]);
        const auto bytes = pattern(static_cast<std::size_t>(g["hash_lengths"][i]));
        for (int threads : {1, 2, 3}) EXPECT_EQ(hash_of(stream_of(threads), bytes), want) << bytes.size();
    }
}

TEST(Reduce, HashSeesOneBitAndOrder) {
    auto bytes = pattern(100003);
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] ^= static_cast<std::byte>(i >> 8);  // no two blocks alike
    const std::uint64_t before = hash_of(stream_of(2), bytes);
    for (const std::size_t at :
         {std::size_t{0}, std::size_t{16383}, std::size_t{16384}, std::size_t{65536}, std::size_t{100002}}) {
        bytes[at] ^= std::byte{1};
        EXPECT_NE(hash_of(stream_of(2), bytes), before) << at;
        bytes[at] ^= std::byte{1};
    }
    std::swap_ranges(bytes.begin(), bytes.begin() + 16384, bytes.begin() + 16384);  // two whole blocks
    EXPECT_NE(hash_of(stream_of(2), bytes), before);
}

TEST(Reduce, RefusesTooLittleScratch) {
    Tensor<float> x(40000);
    double out[2];
    Scratch scratch(8);
    EXPECT_EQ(
        error_of([&] { sum(stream_of(1), {.out = View<double>(out, {1}), .scratch = scratch.view(), .x = x.read()}); }),
        "sum: scratch has 8 bytes, but 40000 elements need 24; reserve reduce_scratch_bytes(n)");
    EXPECT_EQ(error_of([&] {
                  sum_of_squares(stream_of(1),
                                 {.out = View<double>(out, {2}), .scratch = scratch.view(), .x = x.read()});
              }),
              "sum_of_squares: out is [2], but must have one element");
}

}  // namespace
}  // namespace keel
