// The CUDA bodies of the exact sums, the hash and the merge of attention's parts, swept over schedules. What is exact
// on the CPU has its bits here too.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/attention_merge.h"
#include "kernels/exact_sum.h"
#include "kernels/reduce.h"
#include "kernels/tiles.h"
#include "tests/kernels/reference.h"
#include "tests/sim/gpu_tensor.h"

namespace keel {
namespace {

// 64-bit numbers as two exact doubles each.
template <class T>
Values halves(const std::vector<T>& numbers) {
    Values out;
    for (const T x : numbers) {
        const auto bits = static_cast<std::uint64_t>(x);
        out.push_back(static_cast<double>(bits >> 32)), out.push_back(static_cast<double>(bits & 0xffffffff));
    }
    return out;
}

// ---- exact sums -----------------------------------------------------------------------------------------------------

TEST(ExactSumCuda, AddsAndReadsTheBitsOfTheCpu) {
    for (const std::int64_t n : {0, 1, 7, 1025}) {
        SCOPED_TRACE(n);
        constexpr int scale = 30;
        Values x = random_values<float>("x", n), more = random_values<float>("more", n, 1e-6);
        if (n > 1) x[1] = -0.5 * std::ldexp(1.0, -scale), more[1] = 1.5 * std::ldexp(1.0, -scale);  // ties go to even
        if (n > 2) x[2] = more[2] = 0;
        Tensor<float> first(x), second(more), y(n);
        std::vector<std::int64_t> q(static_cast<std::size_t>(n));
        const View<std::int64_t> sums(q.data(), {n});
        exact_add(stream_of(1), {.q = sums, .x = first.read(), .scale = scale});
        exact_add(stream_of(1), {.q = sums, .x = second.read(), .scale = scale});
        exact_read(stream_of(1), {.y = y.view(), .q = sums, .scale = scale});
        for (const auto& got : on_gpus([&](Gpu&gpu, Stream&stream) -> std::vector<Values> {
                 GpuTensor<float> a(gpu, stream, {n}, x), b(gpu, stream, {n}, more), out(gpu, stream, {n});
                 GpuTensor<std::int64_t> sum(gpu, stream, {n}, Values(x.size()));
                 exact_add(stream, {.q = sum.view(), .x = a.read(), .scale = scale});
                 exact_add(stream, {.q = sum.view(), .x = b.read(), .scale = scale});
                 exact_read(stream, {.y = out.view(), .q = sum.read(), .scale = scale});
                 return {halves(sum.elements()), out.values()};
             })) {
            EXPECT_TRUE(same_bits(got[0], halves(q)));
            EXPECT_TRUE(same_bits(got[1], y.values()));
        }
    }
}

// Down to the subnormal numbers, and up to what only 63 bits hold.
TEST(ExactSumCuda, ReadRoundsOnceAtEveryScale) {
    const std::vector<std::int64_t> q{0,
                                      1,
                                      -1,
                                      16777217,
                                      -33554435,
                                      (std::int64_t{1} << 62) + (std::int64_t{1} << 38),
                                      std::numeric_limits<std::int64_t>::min()};
    const auto n = static_cast<std::int64_t>(q.size());
    for (const int scale : {0, 40, 110, 125, -60}) {
        Tensor<float> want(n);
        exact_read(stream_of(1), {.y = want.view(), .q = View<const std::int64_t>(q.data(), {n}), .scale = scale});
        for (const auto& got : on_gpus(
                 [&](Gpu&gpu, Stream&stream) -> std::vector<Values> {
                     GpuTensor<std::int64_t> sum(gpu, stream, {n});
                     GpuTensor<float> y(gpu, stream, {n});
                     sum.fill(q);
                     exact_read(stream, {.y = y.view(), .q = sum.read(), .scale = scale});
                     return {y.values()};
                 }))
            EXPECT_TRUE(same_bits(got[0], want.values())) << scale;
    }
}

TEST(ExactSumCuda, MaximumIsOfTheSizeAndKeepsNaN) {
    const auto measured = [](const Values& x) {
        Values all;
        const auto n = static_cast<std::int64_t>(x.size());
        for (const auto& got : on_gpus(
                 [&](Gpu&gpu, Stream&stream) -> std::vector<Values> {
                     GpuTensor<float> in(gpu, stream, {n}, x), out(gpu, stream, {1});
                     max_abs(stream, {.out = out.view(), .x = in.read()});
                     return {out.values()};
                 }))
            all.push_back(got[0][0]);
        return all;
    };
    Values x = random_values<float>("x", 1000);
    x[999] = -123.5;
    for (const double v : measured(x)) EXPECT_EQ(v, 123.5);
    x[5] = -std::numeric_limits<double>::infinity();
    for (const double v : measured(x)) EXPECT_EQ(v, std::numeric_limits<double>::infinity());
    x[600] = std::numeric_limits<double>::quiet_NaN();
    for (const double v : measured(x)) EXPECT_TRUE(std::isnan(v));
    for (const double v : measured({})) EXPECT_EQ(v, 0);
    for (const double v : measured({-0.0})) EXPECT_EQ(v, 0);
    Values many(1024 * 256 + 3, 1);  // more than one round of all blocks
    many.back() = 2;
    for (const double v : measured(many)) EXPECT_EQ(v, 2);
}

TEST(ExactSumCuda, SquaresHaveTheLimbsOfTheCpu) {
    for (const std::int64_t n : {std::int64_t{0}, std::int64_t{1}, std::int64_t{300}, 2 * tile_elements + 77}) {
        SCOPED_TRACE(n);
        constexpr int scale = 58;  // the largest square is about 8: 2^61
        const Values x = random_values<float>("x", n, 0.6);
        Tensor<float> host(x);
        std::vector<std::int64_t> limbs{5, 6, 7};
        exact_squares(stream_of(1), {.limbs = View<std::int64_t>(limbs.data(), {3}), .x = host.read(), .scale = scale});
        for (const auto& got : on_gpus(
                 [&](Gpu&gpu, Stream&stream) -> std::vector<Values> {
                     GpuTensor<float> in(gpu, stream, {n}, x);
                     GpuTensor<std::int64_t> sum(gpu, stream, {3}, Values{5, 6, 7});
                     exact_squares(stream, {.limbs = sum.view(), .x = in.read(), .scale = scale});
                     return {halves(sum.elements())};
                 }))
            EXPECT_TRUE(same_bits(got[0], halves(limbs)));
    }
}

// ---- hash -----------------------------------------------------------------------------------------------------------

// Every way in which XXH3 treats a length, alone and as what is left after whole blocks; aligned and not.
TEST(HashCuda, IsTheHashOfTheCpu) {
    std::vector<std::int64_t> lengths{0,
                                      1,
                                      3,
                                      4,
                                      8,
                                      9,
                                      16,
                                      17,
                                      32,
                                      33,
                                      64,
                                      65,
                                      96,
                                      97,
                                      128,
                                      129,
                                      143,
                                      144,
                                      240,
                                      241,
                                      1024,
                                      1025,
                                      2047,
                                      reduce_block - 1,
                                      reduce_block,
                                      reduce_block + 1};
    for (const std::int64_t blocks : {2, 3, 16, 17, 31}) lengths.push_back(blocks * reduce_block + 7 * blocks);
    for (const std::int64_t n : lengths)
        for (const std::int64_t shift : {0, 1}) {
            if (shift > 0 && n > 2 * reduce_block) continue;
            SCOPED_TRACE(testing::Message() << n << " bytes from " << shift);
            std::vector<std::byte> bytes(static_cast<std::size_t>(n + shift));
            for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(31 * i + (i >> 8) + 7);
            Scratch scratch(reduce_scratch_bytes(n));
            std::uint64_t want = 0;
            hash(stream_of(1), {.out = View<std::uint64_t>(&want, {1}),
                                .scratch = scratch.view(),
                                .x = View<const std::byte>(bytes.data() + shift, {n})});
            for (const auto& got : on_gpus(
                     [&](Gpu&gpu, Stream&stream) -> std::vector<Values> {
                         GpuTensor<std::byte> in(gpu, stream, {n + shift}),
                             room(gpu, stream, {reduce_scratch_bytes(n)});
                         GpuTensor<std::uint64_t> out(gpu, stream, {1});
                         in.fill(bytes);
                         hash(stream, {.out = out.view(), .scratch = room.view(), .x = in.read().rows(shift, n)});
                         return {halves(out.elements())};
                     }))
                EXPECT_EQ(got[0], halves<std::uint64_t>({want}));
        }
}

// ---- merge ----------------------------------------------------------------------------------------------------------

struct MergeCase {
    std::int64_t tokens, heads, head_dim, pad;
};
const MergeCase merges[] = {{1, 1, 1, 0}, {3, 2, 8, 0}, {5, 3, 20, 3}, {9, 2, 128, 4}, {2, 1, 256, 0}};

// The element's own formula in double; weights err by what expf, logf and the rounded lse bring: 20 roundings of
// numbers no larger than the operands.
template <class T>
void merge_matches() {
    constexpr double none = -std::numeric_limits<double>::infinity();
    for (const auto& [tokens, heads, head_dim, pad] : merges) {
        SCOPED_TRACE(testing::Message() << tokens << " tokens, " << heads << " heads of " << head_dim);
        const std::int64_t width = heads * head_dim, row = width + pad;
        Values sum = random_values<float>("sum", tokens * row), part = random_values<T>("part", tokens * row);
        sum[0] = -0.0, part[0] = 1;  // of a part that weighs nothing not even the sign of a zero is changed
        Values lse = random_values<float>("lse", heads * tokens, 3),
               part_lse = random_values<float>("part_lse", heads * tokens, 3);
        part_lse[0] = none;                 // a query that saw nothing here
        if (lse.size() > 1) lse[1] = none;  // and one that saw nothing before
        for (const auto& got : on_gpus([&, tokens = tokens, heads = heads, row = row, width = width](
                                           Gpu&gpu, Stream&stream) -> std::vector<Values> {
                 GpuTensor<float> s(gpu, stream, {tokens, row}, sum), l(gpu, stream, {heads, tokens}, lse),
                     pl(gpu, stream, {heads, tokens}, part_lse), s2(gpu, stream, {tokens, row}, sum),
                     l2(gpu, stream, {heads, tokens});
                 GpuTensor<T> p(gpu, stream, {tokens, row}, part);
                 attention_merge<T>(stream, {.sum = s.view().columns(0, width),
                                             .lse = l.view(),
                                             .part = p.read().columns(0, width),
                                             .part_lse = pl.read()});
                 attention_merge<T>(stream, {.sum = s2.view().columns(0, width),
                                             .lse = l2.view(),
                                             .part = p.read().columns(0, width),
                                             .part_lse = pl.read(),
                                             .accumulate = false});
                 return {s.values(), l.values(), s2.values(), l2.values()};
             })) {
            EXPECT_TRUE(same_bits(got[3], part_lse));
            for (std::int64_t t = 0; t < tokens; ++t)
                for (std::int64_t c = 0; c < row; ++c) {
                    const auto at = static_cast<std::size_t>(t * row + c);
                    const auto of = static_cast<std::size_t>(c / head_dim * tokens + t);
                    if (c >= width) {
                        ASSERT_EQ(got[0][at], sum[at]);
                        ASSERT_EQ(got[2][at], sum[at]);
                        continue;
                    }
                    ASSERT_EQ(got[2][at], part[at]);
                    if (part_lse[of] == none) {
                        ASSERT_EQ(got[0][at], sum[at]);
                        ASSERT_EQ(std::signbit(got[0][at]), std::signbit(sum[at]));
                        ASSERT_EQ(got[1][of], lse[of]);
                        continue;
                    }
                    const double share = lse[of] == none ? 1 : 1 / (1 + std::exp(lse[of] - part_lse[of]));
                    const double bound = 20 * unit_roundoff<float> * (std::abs(sum[at]) + std::abs(part[at]));
                    ASSERT_NEAR(got[0][at], sum[at] * (1 - share) + part[at] * share, bound);
                    const double want = part_lse[of] - std::log(share);
                    ASSERT_NEAR(got[1][of], want, 4 * unit_roundoff<float> * (1 + std::abs(want)));
                }
        }
    }
}
TEST(AttentionMergeCuda, WeighsPartsByTheirSumsOfExponentialsInFloat) { merge_matches<float>(); }
TEST(AttentionMergeCuda, WeighsPartsByTheirSumsOfExponentialsInBf16) { merge_matches<bf16>(); }

TEST(AttentionMergeCuda, AddsAndRoundsPartsInStridedRows) {
    for (const auto& [tokens, heads, head_dim, pad] : merges) {
        const std::int64_t width = heads * head_dim, row = width + pad;
        const Values sum = random_values<float>("sum", tokens * row), part = random_values<bf16>("part", tokens * row);
        Tensor<float> want(sum, tokens, row);
        Tensor<bf16> host(part, tokens, row), want_y(part, tokens, row);
        add_part<bf16>(stream_of(1), {.sum = want.view().columns(0, width), .part = host.read().columns(0, width)});
        round_sum<bf16>(stream_of(1), {.y = want_y.view().columns(0, width), .sum = want.read().columns(0, width)});
        for (const auto& got :
             on_gpus([&, tokens = tokens, row = row, width = width](Gpu&gpu, Stream&stream) -> std::vector<Values> {
                 GpuTensor<float> s(gpu, stream, {tokens, row}, sum);
                 GpuTensor<bf16> p(gpu, stream, {tokens, row}, part), y(gpu, stream, {tokens, row}, part);
                 add_part<bf16>(stream, {.sum = s.view().columns(0, width), .part = p.read().columns(0, width)});
                 round_sum<bf16>(stream, {.y = y.view().columns(0, width), .sum = s.read().columns(0, width)});
                 return {s.values(), y.values()};
             })) {
            EXPECT_TRUE(same_bits(got[0], want.values()));
            EXPECT_TRUE(same_bits(got[1], want_y.values()));
        }
    }
}

}  // namespace
}  // namespace keel
