// The Hopper bodies of attention, forward and backward, against the double reference, swept over schedules.
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

// Where only a GPU is asked for (gpu_tensor.h) and it takes no such kernels, there is nothing to test.
class AttentionHopper : public testing::Test {
protected:
    void SetUp() override {
        if (!only_a_gpu() || why_no_gpu(Device::cuda)) return;
        if (const auto why = why_no_hopper(Device::cuda)) GTEST_SKIP() << *why;
    }
};

void hopper_matches(const Problem& p, std::int64_t cut = 0) { matches<bf16>(p, 8, cut, &OneGpu::hopper); }

// What the passes over a problem count, on the simulator.
struct Work {
    sim::Counters forward, backward;
};
Work work_of(const Problem& p) {
    OneGpu& one = OneGpu::simulated();
    const Tensors<bf16> in(p);
    OnGpu<bf16> on(*one.gpu, *one.hopper, in, 8);
    const auto counted = [&](auto&& op) {
        one.hopper->synchronize(), (void)sim::take_counters();
        op(), one.hopper->synchronize();
        return sim::take_counters();
    };
    const sim::Counters forward = counted([&] { on.forward({0, p.kv_tokens()}); });
    return {forward, counted([&] { on.backward({0, p.kv_tokens()}); })};
}

// heads, kv_heads, head_dim, tokens, query_offset, extra keys behind the last query, mask. Tiles are of 128 queries and
// 128 keys, for dq of 64 keys, for dk and dv of 64 queries; a stage of a ring is used for the second time from the
// third tile on.
TEST_F(AttentionHopper, HeadsOf64MatchTheReference) {
    for (const Problem& p :
         {Problem{1, 1, 64, 1, 0, 0, Mask::causal}, Problem{2, 1, 64, 131, 0, 0, Mask::causal},
          Problem{1, 1, 64, 140, 260, 0, Mask::causal}, Problem{4, 2, 64, 37, 120, 5, Mask::singles}})
        hopper_matches(p);
}
TEST_F(AttentionHopper, HeadsOf128MatchTheReference) {
    for (const Problem& p : {Problem{2, 1, 128, 130, 0, 0, Mask::causal}, Problem{1, 1, 128, 20, 390, 3, Mask::causal},
                             Problem{2, 2, 128, 66, 65, 1, Mask::wild}})
        hopper_matches(p);
}
// Rows beyond the tensor's end, columns beyond the head's; keys that nobody of a block sees are NaN here.
TEST_F(AttentionHopper, DocumentsWindowsAndOtherHeadsMatchTheReference) {
    for (const Problem& p :
         {Problem{2, 2, 32, 67, 70, 3, Mask::window}, Problem{1, 1, 40, 140, 0, 0, Mask::documents},
          Problem{1, 1, 96, 65, 130, 0, Mask::documents}, Problem{2, 1, 72, 9, 300, 2, Mask::window}})
        hopper_matches(p);
}
// Backward over several tiles: groups of heads, tiles that see nothing of each other, a last tile that is not full, a
// first query of a tile that sees less than others.
TEST_F(AttentionHopper, TilesOfTheBackwardMatchTheReference) {
    for (const Problem& p :
         {Problem{3, 1, 64, 150, 0, 0, Mask::documents}, Problem{1, 1, 128, 100, 130, 0, Mask::wild},
          Problem{2, 1, 64, 129, 140, 5, Mask::window}})
        hopper_matches(p);
}
// Their loops do not run once: a tile of keys behind every query, and tiles of queries before every key of a part.
TEST_F(AttentionHopper, TilesOfTheBackwardThatMeetNothingWriteZeros) {
    hopper_matches({1, 1, 64, 70, 0, 70, Mask::causal});
    hopper_matches({1, 1, 64, 140, 0, 0, Mask::causal}, 129);
}
// Of q and k that had been turned: heads of 64 and 128 in the kernels that computed them, others where they were
// written.
TEST_F(AttentionHopper, GradientsOfTurnedQAndKTurnBack) {
    hopper_matches(Problem{2, 1, 64, 37, 70, 3, Mask::window}.turning(64), 17);
    hopper_matches(Problem{1, 1, 128, 66, 65, 1, Mask::wild}.turning(128));
    hopper_matches(Problem{1, 1, 96, 9, 13, 0, Mask::causal}.turning(96));
    for (const std::int64_t head_dim : {64, 128})
        EXPECT_EQ(work_of(Problem{2, 1, head_dim, 20, 0, 0, Mask::causal}.turning(head_dim)).backward.launches, 4u);
}
TEST_F(AttentionHopper, GradientsOverPartsOfTheKeysAddUpToTheWhole) {
    hopper_matches({2, 1, 64, 40, 110, 0, Mask::causal}, 17);
}

// Scores that nobody sees cost nothing, and every tile comes once: products of a warpgroup and bytes, counted.
TEST_F(AttentionHopper, TilesMultiplyAndMoveOnlyWhatIsSeen) {
    for (const std::int64_t head_dim : {64, 128}) {
        const sim::Counters counted = work_of({2, 1, head_dim, 256, 0, 0, Mask::causal}).forward;
        const std::uint64_t tiles = 2 * 3,
                            d = static_cast<std::uint64_t>(head_dim);  // heads; one tile of keys, then two
        EXPECT_EQ(counted.mma, 0u);
        EXPECT_EQ(counted.wgmma, tiles * 2 * (d / 16 + 128 / 16));         // two warpgroups
        EXPECT_EQ(counted.bulk_bytes, 2 * 128 * d * (2 * tiles + 2 * 4));  // K and V; Q and y of four blocks
        EXPECT_EQ(counted.bulk_copies, d / 64 * (2 * tiles + (1 + 8) * 4));  // y by each of eight warps
    }
}
TEST_F(AttentionHopper, TilesOfTheBackwardMultiplyAndMoveOnlyWhatIsSeen) {
    // Blocks, and tiles that pass by all of them: for dq of 64 keys, not all of which may be seen, for dk and dv of 64
    // queries.
    struct Case {
        Problem p;
        std::uint64_t dq_blocks, dq_tiles, partly_seen, dkv_blocks, dkv_tiles;
    };
    for (const Case& c : {Case{{2, 1, 64, 256, 0, 0, Mask::causal}, 4, 2 * (2 + 4), 0, 2, 2 * (4 + 2)},
                          Case{{2, 1, 128, 256, 0, 0, Mask::causal}, 4, 2 * (2 + 4), 0, 2, 2 * (4 + 2)},
                          // Queries that see themselves alone: those from 128 on see none of the first 128 keys.
                          Case{{1, 1, 64, 192, 0, 0, Mask::singles}, 2, 2 + 1, 0, 2, 2 + 1},
                          // Keys from 128 on lie behind every query.
                          Case{{1, 1, 128, 70, 0, 70, Mask::causal}, 1, 2, 1, 2, 2}}) {
        SCOPED_TRACE(c.p.text());
        const sim::Counters counted = work_of(c.p).backward;
        const std::uint64_t d = static_cast<std::uint64_t>(c.p.head_dim);
        EXPECT_EQ(counted.mma, 0u);
        // Two warpgroups; of dq two products over the head and one over the tile, of dk and dv two of each.
        EXPECT_EQ(counted.wgmma, 2 * (c.dq_tiles * (2 * d / 16 + 4) + c.dkv_tiles * (2 * d / 16 + 2 * 4)));
        // Of dq Q, dY and dQ, and tiles of K and V; of dk and dv K, V, dK and dV, and tiles of Q and dY.
        const std::uint64_t tiles = 2 * (c.dq_tiles + c.dkv_tiles);
        EXPECT_EQ(counted.bulk_bytes, 2 * d * (128 * (3 * c.dq_blocks + 4 * c.dkv_blocks) + 64 * tiles));
        // Each of eight warps stores its own rows; a tile of K that is not seen whole comes row by row.
        const std::uint64_t stores = 8 * c.dq_blocks + 2 * 8 * c.dkv_blocks, loads = 2 * (c.dq_blocks + c.dkv_blocks);
        EXPECT_EQ(counted.bulk_copies, d / 64 * (stores + loads + tiles + 63 * c.partly_seen));
    }
}

// A query that sees no key of a part has y 0 and lse -infinity; one that sees keys from the part's beginning has the
// bits of a query whose interval begins there.
TEST_F(AttentionHopper, APartOfTheKeysIsSeenAsIfTheRestWereNot) {
    struct Case {
        Problem p;
        std::int64_t begin;
    };
    // Of 140 queries the first 128, a block, see no key from 129 on.
    for (const auto& [p, begin] :
         {Case{{2, 1, 64, 70, 60, 0, Mask::causal}, 75}, Case{{1, 1, 64, 140, 0, 0, Mask::causal}, 129}}) {
        SCOPED_TRACE(concat(p.text(), " from ", begin));
        const Tensors<bf16> in(p);
        Tensors<bf16> later(p);
        for (std::int64_t i = 0; i < p.tokens; ++i) {
            auto& lo = later.lo[static_cast<std::size_t>(i)];
            lo = static_cast<std::int32_t>(std::min(p.query_offset + i, begin));
        }
        for (const auto& got : on_gpus(
                 [&, p = p, begin = begin](Gpu& gpu, Stream& stream) {
                     std::vector<Values> out;
                     const auto run = [&](const Tensors<bf16>& tensors, attention_test::Keys keys) {
                         OnGpu<bf16> on(gpu, stream, tensors, 8);
                         on.forward(keys);
                         out.push_back(on.y_values()), out.push_back(on.lse.values());
                     };
                     run(in, {begin, p.kv_tokens()}), run(later, {0, p.kv_tokens()});
                     return out;
                 },
                 &OneGpu::hopper))
            for (std::int64_t i = 0; i < p.tokens; ++i)
                for (std::int64_t c = 0; c < in.q_width; ++c) {
                    const auto at = static_cast<std::size_t>(i * in.q_width + c);
                    const auto lse = static_cast<std::size_t>(c / p.head_dim * p.tokens + i);
                    const bool sees = p.query_offset + i >= begin;
                    ASSERT_EQ(got[0][at], sees ? got[2][at] : 0.0) << "query " << i;
                    ASSERT_EQ(got[1][lse], sees ? got[3][lse] : -std::numeric_limits<double>::infinity())
                        << "query " << i;
                }
    }
}

TEST_F(AttentionHopper, AStreamOfTheCpuCannotTakeThem) {
    Stream stream(1);
    EXPECT_FALSE(stream.hopper());
    try {
        allow_hopper(stream);
        FAIL();
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("no kernels for Hopper: the CPU is no GPU"), std::string::npos)
            << error.what();
    }
}

}  // namespace
}  // namespace keel
