// The hashes of conformance.cu under cudasim are known, do not depend on the schedule, and are those of a GPU where
// there is one.
#include "tests/sim/conformance.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "kernels/cudasim/sweep.h"
#include "kernels/gpu.h"

namespace keel {
namespace {

TEST(Conformance, CudasimGivesTheKnownHashesUnderEverySchedule) {
    std::vector<Conformance> first;
    const sim::SweepResult result = sim::sweep({}, [&](sim::Outputs& outputs) {
        const auto all = on_cudasim::conformance();
        for (const Conformance& c : all) outputs.add(c.name, &c.hash, sizeof c.hash);
        if (first.empty()) first = all;
    });
    EXPECT_EQ(result.text(), "");
    const std::uint64_t known[] = {
        0xdc6569f36becb0ccu,  // mma.m16n8k16 bf16
        0x072e16dc76a20c42u,  // ldmatrix.x4
        0x5236770a6f0ff84eu,  // ldmatrix.x4.trans
        0xb83927c7a1991dcfu,  // ldmatrix.x2
        0x0e4548ee4f5fbdd3u,  // ldmatrix.x2.trans
        0x022198576c3a27c0u,  // cp.async
        0xa7e34f453693a79du,  // shuffles and votes
        0xcd080d9cb21c81b1u,  // bf16 and ex2
        0x59a4c7c522d6c96bu,  // named barriers
    };
    ASSERT_EQ(first.size(), std::size(known));
    for (std::size_t i = 0; i < first.size(); ++i) EXPECT_EQ(first[i].hash, known[i]) << first[i].name;
}

// Prints one line per wrapper, so that the output of a run on a GPU can be kept.
TEST(Conformance, AGpuGivesTheHashesOfCudasim) {
    const auto want = on_cudasim::conformance();
#if KEEL_CUDA
    if (!why_no_gpu(Device::cuda)) {
        const auto got = on_cuda::conformance();
        ASSERT_EQ(got.size(), want.size());
        for (std::size_t i = 0; i < want.size(); ++i) {
            std::printf("%-20s cudasim %016llx gpu %016llx\n", want[i].name.c_str(),
                        static_cast<unsigned long long>(want[i].hash), static_cast<unsigned long long>(got[i].hash));
            EXPECT_EQ(got[i].hash, want[i].hash) << want[i].name;
        }
    }
#endif
    EXPECT_FALSE(want.empty());
}

}  // namespace
}  // namespace keel
