// A Gpu is the same whichever thread calls it: which device CUDA means belongs to a thread, and kernels/gpu.cu sees to that.
#include "kernels/gpu.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "kernels/convert.h"
#include "kernels/cudasim/findings.h"

namespace keel {
namespace {

TEST(Gpu, OpenedByOneThreadIsUsedByAnother) {
    const auto gpu = open_gpu(Device::cudasim, 1);
    std::vector<float> got(8);
    std::thread([&] {  // whose device is 0
        const auto stream = gpu->make_stream();
        std::byte* const x = gpu->allocate(32);
        std::byte* const y = gpu->allocate(32);
        const std::vector<float> one(8, 1.0f);
        gpu->copy_in(*stream, x, one.data(), 32);
        gpu->fill(*stream, y, 0, 32);
        const auto at = [](std::byte* p) { return View<float>(reinterpret_cast<float*>(p), {8}); };
        add<float>(*stream, {.y = at(y), .a = at(x), .b = at(x)});
        gpu->copy_out(*stream, got.data(), y, 32);
        stream->synchronize();
        gpu->release(x);
        gpu->release(y);
    }).join();
    EXPECT_EQ(got, std::vector<float>(8, 2.0f));
    for (const sim::Finding& finding : sim::take_findings()) ADD_FAILURE() << finding.text;
}

// Memory of one GPU in an op on another's stream: a mistake that would be an illegal address there.
TEST(Gpu, MemoryOfAnotherGpuIsNamed) {
    const auto gpu = open_gpu(Device::cudasim, 1), other = open_gpu(Device::cudasim, 2);
    const auto stream = gpu->make_stream();
    std::byte* const x = gpu->allocate(32);
    std::byte* const theirs = other->allocate(32);
    gpu->fill(*stream, x, 0, 32);
    const auto at = [](std::byte* p) { return View<float>(reinterpret_cast<float*>(p), {8}); };
    add<float>(*stream, {.y = at(x), .a = at(x), .b = at(theirs)});
    const auto findings = sim::take_findings();
    ASSERT_EQ(findings.size(), 1u);
    EXPECT_NE(findings[0].text.find("points to memory of device 2, and device 1 runs it"), std::string::npos) << findings[0].text;
    gpu->release(x);
    gpu->release(theirs);
    open_gpu(Device::cudasim, 0);  // this thread's device again
}

}  // namespace
}  // namespace keel
