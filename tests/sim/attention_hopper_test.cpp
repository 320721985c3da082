// The Hopper body of attention's forward against the double reference, swept over schedules; its backward is the sm_80
// kernels', from what it wrote.
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

// heads, kv_heads, head_dim, tokens, query_offset, extra keys behind the last query, mask. Tiles are of 128 queries and
// 128 keys; a stage of the ring is used for the second time from the third tile on.
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
TEST_F(AttentionHopper, GradientsOverPartsOfTheKeysAddUpToTheWhole) {
    hopper_matches({2, 1, 64, 40, 110, 0, Mask::causal}, 17);
}

// Scores that nobody sees cost nothing, and every tile comes once: products of a warpgroup and bytes, counted.
TEST_F(AttentionHopper, TilesMultiplyAndMoveOnlyWhatIsSeen) {
    OneGpu& one = OneGpu::simulated();
    for (const std::int64_t head_dim : {64, 128}) {
        const Problem p{2, 1, head_dim, 256, 0, 0, Mask::causal};
        const Tensors<bf16> in(p);
        OnGpu<bf16> on(*one.gpu, *one.hopper, in, 8);
        one.hopper->synchronize(), (void)sim::take_counters();
        on.forward({0, 256}), one.hopper->synchronize();
        const sim::Counters counted = sim::take_counters();
        const std::uint64_t tiles = 2 * 3,
                            d = static_cast<std::uint64_t>(head_dim);  // heads; one tile of keys, then two
        EXPECT_EQ(counted.mma, 0u);
        EXPECT_EQ(counted.wgmma, tiles * 2 * (d / 16 + 128 / 16));         // two warpgroups
        EXPECT_EQ(counted.bulk_bytes, 2 * 128 * d * (2 * tiles + 2 * 4));  // K and V; Q and y of four blocks
        EXPECT_EQ(counted.bulk_copies, d / 64 * (2 * tiles + (1 + 8) * 4));  // y by each of eight warps
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
