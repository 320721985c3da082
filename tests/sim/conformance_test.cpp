// The hashes of conformance.cu under cudasim are known, do not depend on the schedule, and are those of a GPU where
// there is one.
#include "tests/sim/conformance.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "kernels/cudasim/sweep.h"
#include "kernels/gpu.h"
#include "kernels/hopper.h"

namespace keel {
namespace {

// The hashes under every schedule, which must be one.
template <std::size_t n>
void cudasim_gives(std::vector<Conformance> (*program)(), const std::uint64_t (&known)[n]) {
    std::vector<Conformance> first;
    const sim::SweepResult result = sim::sweep({}, [&](sim::Outputs& outputs) {
        const auto all = program();
        for (const Conformance& c : all) outputs.add(c.name, &c.hash, sizeof c.hash);
        if (first.empty()) first = all;
    });
    EXPECT_EQ(result.text(), "");
    ASSERT_EQ(first.size(), n);
    for (std::size_t i = 0; i < n; ++i) EXPECT_EQ(first[i].hash, known[i]) << first[i].name;
}

TEST(Conformance, CudasimGivesTheKnownHashesUnderEverySchedule) {
    cudasim_gives(on_cudasim::conformance, {
                                               0xdc6569f36becb0ccu,  // mma.m16n8k16 bf16
                                               0x072e16dc76a20c42u,  // ldmatrix.x4
                                               0x5236770a6f0ff84eu,  // ldmatrix.x4.trans
                                               0xb83927c7a1991dcfu,  // ldmatrix.x2
                                               0x0e4548ee4f5fbdd3u,  // ldmatrix.x2.trans
                                               0x022198576c3a27c0u,  // cp.async
                                               0xa7e34f453693a79du,  // shuffles and votes
                                               0xcd080d9cb21c81b1u,  // bf16 and ex2
                                               0x59a4c7c522d6c96bu,  // named barriers
                                           });
}
TEST(Conformance, CudasimGivesTheKnownHashesOfHopper) {
    cudasim_gives(on_cudasim::conformance_hopper, {
                                                      0x93d771e02101081eu,  // mbarriers
                                                      0x940a3ab9a0a45197u,  // setmaxnreg
                                                      0x2a1a9e2d8344d71cu,  // box of rank 2, 128 bytes
                                                      0xc1d53bb712450cecu,  // box of rank 2, 64 bytes
                                                      0x75604a65a696bfa3u,  // box of rank 2, 32 bytes
                                                      0x017cb5244e8ea858u,  // box of rank 2, plain
                                                      0x0582e6ce4338cbffu,  // box of rank 3
                                                      0x2b2a5d4fdc4aae47u,  // box of rank 4
                                                      0x1ef54737b20e755fu,  // boxes of one row
                                                      0xb7b4d73b70b7d8a1u,  // wgmma n64
                                                      0x15b44229476147e9u,  // wgmma n128
                                                      0x1ed5b583da5c630cu,  // wgmma n128, b transposed
                                                      0x8bc1e969b550ce49u,  // wgmma n64, both transposed
                                                      0x6fa94ae8814e76fbu,  // wgmma n64, a in registers
                                                      0x1ed5b583da5c630cu,  // wgmma n128, a in registers
                                                      0x1ed5b583da5c630cu,  // wgmma, 64 bytes
                                                      0x7ac090d553b20ed4u,  // wgmma, 32 bytes
                                                      0x6fa94ae8814e76fbu,  // wgmma, no swizzle
                                                  });
}

// Prints one line per wrapper, so that the output of a run on a GPU can be kept.
[[maybe_unused]] void agree(const std::vector<Conformance>& got, const std::vector<Conformance>& want) {
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < want.size(); ++i) {
        std::printf("%-28s cudasim %016llx gpu %016llx\n", want[i].name.c_str(),
                    static_cast<unsigned long long>(want[i].hash), static_cast<unsigned long long>(got[i].hash));
        EXPECT_EQ(got[i].hash, want[i].hash) << want[i].name;
    }
}
TEST(Conformance, AGpuGivesTheHashesOfCudasim) {
    const auto want = on_cudasim::conformance();
    EXPECT_FALSE(want.empty());
#if KEEL_CUDA
    if (const auto why = why_no_gpu(Device::cuda)) GTEST_SKIP() << *why;
    agree(on_cuda::conformance(), want);
#else
    GTEST_SKIP() << "this keel was built without a CUDA toolkit";
#endif
}
TEST(Conformance, AHopperGivesTheHashesOfCudasim) {
    const auto want = on_cudasim::conformance_hopper();
    EXPECT_FALSE(want.empty());
#if KEEL_CUDA && KEEL_HOPPER
    if (const auto why = why_no_gpu(Device::cuda)) GTEST_SKIP() << *why;
    if (const auto why = why_no_hopper(Device::cuda)) GTEST_SKIP() << *why;
    agree(on_cuda::conformance_hopper(), want);
#else
    GTEST_SKIP() << "this keel was built without kernels for Hopper";
#endif
}

}  // namespace
}  // namespace keel
