// The CUDA bodies of attention against the double reference, swept over schedules: one head and groups, heads
// that fill their tile and such that do not, every mask, offsets, a part of the keys.
#include <gtest/gtest.h>

#include "kernels/cudasim/counters.h"
#include "tests/sim/attention_on_gpu.h"

namespace keel {
namespace {

using attention_test::Mask;
using attention_test::matches;
using attention_test::OnGpu;
using attention_test::Problem;
using attention_test::Tensors;

// heads, kv_heads, head_dim, tokens, query_offset, extra keys behind the last query, mask. Tiles are of 128 or 64
// queries and 64 keys; half a tile is masked, or it is whole, or unseen.
TEST(AttentionCuda, TilesMatchTheReference) {
    for (const Problem& p : {Problem{1, 1, 64, 1, 0, 0, Mask::causal}, Problem{2, 1, 64, 131, 0, 0, Mask::causal},
                             Problem{2, 2, 32, 67, 70, 3, Mask::window}, Problem{1, 1, 40, 140, 0, 0, Mask::documents},
                             Problem{4, 2, 128, 37, 0, 0, Mask::singles}, Problem{2, 1, 128, 66, 65, 1, Mask::wild},
                             Problem{1, 1, 96, 65, 130, 0, Mask::causal}})
        matches<bf16>(p, 8);
}
// Backward over several tiles of queries and keys: groups of heads, tiles that see nothing of each other, a last tile that is
// not full.
TEST(AttentionCuda, TilesOfTheBackwardMatchTheReference) {
    for (const Problem& p : {Problem{4, 2, 64, 150, 0, 0, Mask::causal}, Problem{2, 1, 64, 129, 140, 5, Mask::window},
                             Problem{3, 1, 128, 70, 100, 0, Mask::documents},
                             Problem{1, 1, 128, 100, 130, 0, Mask::wild}})  // the first query of a tile sees less than others
        matches<bf16>(p, 8);
}
// Their loops do not run once: a tile of keys behind every query, and tiles of queries before every key of a part.
TEST(AttentionCuda, TilesOfTheBackwardThatMeetNothingWriteZeros) {
    matches<bf16>({1, 1, 64, 20, 0, 140, Mask::causal}, 8);
    matches<bf16>({1, 1, 64, 140, 0, 0, Mask::causal}, 8, 129);
}

// Gradients of q and k that had been turned: where a whole head turns and is as wide as its tile, in the kernels that computed
// them; otherwise where they were written. Parts of the keys take the angles of their own.
TEST(AttentionCuda, GradientsOfTurnedQAndKTurnBack) {
    for (const Problem& p : {Problem{2, 1, 64, 67, 70, 3, Mask::window}, Problem{4, 2, 64, 150, 0, 0, Mask::causal},
                             Problem{2, 1, 128, 66, 65, 1, Mask::wild}, Problem{1, 1, 128, 1, 0, 0, Mask::causal}})
        matches<bf16>(p.turning(p.head_dim), 8);
    matches<bf16>(Problem{2, 1, 64, 40, 0, 0, Mask::causal}.turning(64), 8, 17);
    matches<bf16>(Problem{1, 1, 96, 65, 13, 0, Mask::causal}.turning(96), 8);
    matches<bf16>(Problem{2, 1, 64, 37, 0, 2, Mask::documents}.turning(48), 8);
    matches<bf16>(Problem{2, 1, 20, 19, 40, 2, Mask::window}.turning(20), 3);
    matches<float>(Problem{4, 2, 24, 37, 9, 3, Mask::documents}.turning(24), 5, 21);
}

// Rows of tiles lie in different banks, and what nobody sees is neither multiplied nor copied: products of 16 x 8 x 16 and bytes,
// counted.
struct Work {
    sim::Counters forward, backward;
};
Work work_of(const Problem& p, attention_test::Keys keys) {
    OneGpu& one = OneGpu::simulated();
    const Tensors<bf16> in(p);
    OnGpu<bf16> on(*one.gpu, *one.stream, in, 8);
    const auto counted = [&](auto&& op) {
        one.stream->synchronize(), (void)sim::take_counters();
        op(), one.stream->synchronize();
        return sim::take_counters();
    };
    const sim::Counters forward = counted([&] { on.forward(keys); });
    return {forward, counted([&] { on.backward(keys); })};
}
TEST(AttentionCuda, TilesHaveNoBankConflictsAndMultiplyAndCopyOnlyWhatIsSeen) {
    for (const std::uint64_t head_dim : {64u, 128u}) {
        const auto [forward, backward] = work_of({2, 1, static_cast<std::int64_t>(head_dim), 128, 0, 0, Mask::causal}, {0, 128});
        EXPECT_EQ(forward.ldmatrix_conflicts, 0u);
        EXPECT_EQ(backward.ldmatrix_conflicts, 0u);
        // Forward: tiles of 64 keys under 128 queries (head_dim 64: both) or 64 (one, then two). Backward: dq has 64 queries
        // over 64 or 32 keys, up to its last; dk and dv 128 keys under all queries.
        const std::uint64_t block = head_dim / 16 * 64 / 16 * 64 / 8;  // 64 x 64 scores
        EXPECT_EQ(forward.mma, 2 * 2 * block * (head_dim == 64 ? 4 : 3));  // heads, products, squares of 64
        EXPECT_EQ(backward.mma, 2 * block * (3 * 3 + 4 * 4));              // three products for dq, four for dk and dv
        // In tiles of 64 rows. Forward, per head: 2 of q, and k and v of 2 tiles of keys, or of one and then two. Backward: for dq,
        // per head, q and dy of 2 tiles, k and v under them of one and then two; for dk and dv k and v of 2, q and dy of 2 of each
        // of two heads, and three words for each of their queries.
        const std::uint64_t tile = 64 * head_dim * 2;
        EXPECT_EQ(forward.copied_bytes, 2 * tile * (head_dim == 64 ? 2 + 4 : 2 + 2 + 4));
        EXPECT_EQ(backward.copied_bytes, tile * (2 * (4 + 2 + 4) + (4 + 2 * 4)) + 3 * 4 * 2 * 128);
    }
    {  // Of 80 queries from 60 on the first 64 see no key of [130, 140): q alone is copied for them.
        const auto [forward, backward] = work_of({1, 1, 128, 80, 60, 0, Mask::causal}, {130, 140});
        const std::uint64_t tile = 64 * 128 * 2;
        EXPECT_EQ(forward.copied_bytes, tile * (1 + 1 + 2));
        // dq: q and dy twice, k and v of 32 keys once. dk and dv: k and v of 128 keys, q and dy of the last 32 queries.
        EXPECT_EQ(backward.copied_bytes, tile * (4 + 1) + tile * (4 + 1) + 3 * 4 * 32);
    }
    {  // Queries that see themselves alone: the tile that begins at 128 sees none of the first 128 keys, and begins just behind them.
        const auto [forward, backward] = work_of({1, 1, 64, 192, 0, 0, Mask::singles}, {0, 192});
        const std::uint64_t tile = 64 * 64 * 2;
        EXPECT_EQ(forward.copied_bytes, tile * (2 + 4 + 2 + 2));
        EXPECT_EQ(backward.copied_bytes, tile * 3 * (2 + 2) + tile * (4 + 2 * 2 + 4 + 2) + 3 * 4 * 3 * 64);
    }
    {  // Keys from 128 on lie behind every query: their tile has k and v alone.
        const auto [forward, backward] = work_of({1, 1, 64, 20, 0, 140, Mask::causal}, {0, 160});
        const std::uint64_t tile = 64 * 64 * 2;
        EXPECT_EQ(forward.copied_bytes, tile * (2 + 2));
        EXPECT_EQ(backward.copied_bytes, tile * (2 + 2) + tile * (4 + 2 + 4) + 3 * 4 * 64);
    }
}

TEST(AttentionCuda, HeadsAsWideAsTheirTileTurnBackInTheKernelsThatComputedThem) {
    const auto launches = [](std::int64_t head_dim, std::int64_t rotary) {
        const Problem p = Problem{2, 1, head_dim, 20, 0, 0, Mask::causal}.turning(rotary);
        return work_of(p, {0, 20}).backward.launches;
    };
    for (const std::int64_t head_dim : {64, 128}) {
        EXPECT_EQ(launches(head_dim, 0), 4u);  // delta, bounds, dq, dk and dv
        EXPECT_EQ(launches(head_dim, head_dim), 4u);
        EXPECT_EQ(launches(head_dim, head_dim - 16), 6u);
    }
}

TEST(AttentionCuda, OtherHeadsAndRowsMatchTheReference) {
    for (const Problem& p : {Problem{1, 1, 256, 33, 0, 0, Mask::causal}, Problem{2, 1, 20, 19, 40, 2, Mask::window}})
        matches<bf16>(p, 3);
    matches<bf16>({2, 1, 64, 17, 0, 0, Mask::wild}, 3);  // would fit tiles, but rows are not aligned
    matches<bf16>({1, 1, 256, 33, 0, 0, Mask::causal}, 8);  // aligned, but too wide for them
    matches<float>({1, 1, 20, 5, 0, 0, Mask::causal}, 0);   // an element past a row is past the memory
}
// Tiles take maxima of scores before they are scaled, so they are for positive scales.
TEST(AttentionCuda, AScaleThatIsNotPositiveIsAScaleToo) {
    for (const float turned : {-1.0f, 0.0f}) matches<bf16>({2, 1, 16, 19, 3, 0, Mask::window, turned}, 8);
}
TEST(AttentionCuda, FloatMatchesTheReference) {
    for (const Problem& p : {Problem{1, 1, 64, 1, 0, 0, Mask::causal}, Problem{4, 2, 24, 37, 9, 3, Mask::documents},
                             Problem{1, 1, 128, 40, 0, 0, Mask::wild}})
        matches<float>(p, 5);
}

TEST(AttentionCuda, GradientsOverPartsOfTheKeysAddUpToTheWhole) {
    matches<float>({4, 2, 24, 37, 9, 3, Mask::documents}, 5, 21);
    matches<bf16>({2, 1, 64, 40, 0, 0, Mask::causal}, 8, 17);
}

// A query that sees no key of a part has y 0 and lse -infinity. One that sees keys from the part's beginning has the
// bits of a query whose interval begins there.
TEST(AttentionCuda, APartOfTheKeysIsSeenAsIfTheRestWereNot) {
    struct Case {
        Problem p;
        std::int64_t begin;
    };
    // From 125 on no query of the first 64 sees any key; from 130 on their tile passes over none, not even to mask it.
    const Problem one{2, 1, 64, 70, 60, 0, Mask::causal}, two{1, 1, 128, 70, 60, 0, Mask::window}, three{8, 8, 128, 80, 60, 0, Mask::causal};
    for (const auto& [p, begin] : {Case{one, 75}, {two, 75}, {one, 125}, {two, 125}, {three, 130}}) {
        SCOPED_TRACE(concat(p.text(), " from ", begin));
        const Tensors<bf16> in(p);
        Tensors<bf16> later(p);
        for (std::int64_t i = 0; i < p.tokens; ++i) {
            auto& lo = later.lo[static_cast<std::size_t>(i)];
            lo = static_cast<std::int32_t>(std::min(p.query_offset + i, std::max<std::int64_t>(lo, begin)));
        }
        for (const auto& got : on_gpus(
                 [&, p = p, begin = begin](Gpu& gpu, Stream& stream) {
                     std::vector<Values> out;
                     const auto run = [&](const Tensors<bf16>& tensors, attention_test::Keys keys) {
                         OnGpu<bf16> on(gpu, stream, tensors, 8);
                         on.forward(keys);
                         out.push_back(on.y_values()), out.push_back(on.lse.values());
                     };
                     run(in, {begin, p.kv_tokens()}), run(later, {0, p.kv_tokens()}), run(in, {0, 0});
                     return out;
                 }))
            for (std::int64_t i = 0; i < p.tokens; ++i)
                for (std::int64_t c = 0; c < in.q_width; ++c) {
                    const auto at = static_cast<std::size_t>(i * in.q_width + c);
                    const auto lse = static_cast<std::size_t>(c / p.head_dim * p.tokens + i);
                    const bool sees = p.query_offset + i >= begin;
                    const double none = -std::numeric_limits<double>::infinity();
                    ASSERT_EQ(got[0][at], sees ? got[2][at] : 0.0) << "query " << i;
                    ASSERT_EQ(got[1][lse], sees ? got[3][lse] : none) << "query " << i;
                    ASSERT_EQ(got[4][at], 0.0);
                    ASSERT_EQ(got[5][lse], none);
                }
    }
}

}  // namespace
}  // namespace keel
