// tests/sim/gpu_tensor.h: tensors in the memory of a GPU, real or simulated, and ops swept over the schedules of
// cudasim.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cudasim/fiber.h"
#include "kernels/cudasim/sweep.h"
#include "kernels/gpu.h"
#include "kernels/hopper.h"
#include "kernels/products.h"
#include "tests/kernels/tensor.h"

namespace keel {

// A tensor of its own allocation, filled with values rounded to T, or left as allocated (under cudasim: poison).
template <class T>
class GpuTensor {
public:
    GpuTensor(Gpu& gpu, Stream& stream, std::initializer_list<std::int64_t> dims)
        : gpu_(gpu), stream_(stream), view_(nullptr, dims), bytes_(view_.bytes()), data_(gpu.allocate(bytes_)) {
        view_ = View<T>(reinterpret_cast<T*>(data_), dims);
    }
    GpuTensor(Gpu& gpu, Stream& stream, std::initializer_list<std::int64_t> dims, const Values& values)
        : GpuTensor(gpu, stream, dims) {
        fill(values);
    }
    GpuTensor(const GpuTensor&) = delete;
    GpuTensor& operator=(const GpuTensor&) = delete;
    ~GpuTensor() { gpu_.release(data_); }

    View<T> view() const { return view_; }
    View<const T> read() const { return view_; }

    void fill(const Values& values) {
        Tensor<T> host(values);
        gpu_.copy_in(stream_, data_, host.view().data(), bytes_);
    }
    void fill(const std::vector<T>& elements) requires(!std::is_same_v<T, double>) {
        gpu_.copy_in(stream_, data_, elements.data(), bytes_);
    }
    std::vector<T> elements() const {
        std::vector<T> host(static_cast<std::size_t>(view_.size()));
        gpu_.copy_out(stream_, host.data(), data_, bytes_);
        return host;
    }
    Values values() const {
        const std::vector<T> host = elements();
        Values out(host.size());
        for (std::size_t i = 0; i < host.size(); ++i) {
            if constexpr (std::is_same_v<T, bf16>)
                out[i] = static_cast<double>(static_cast<float>(host[i]));
            else
                out[i] = static_cast<double>(host[i]);
        }
        return out;
    }

private:
    Gpu& gpu_;
    Stream& stream_;
    View<T> view_;
    std::int64_t bytes_;
    std::byte* data_;
};

// A GPU and two streams, one with a workspace for products, one that takes kernels for sm_90a where it can, for as long
// as the tests run.
struct OneGpu {
    std::unique_ptr<Gpu> gpu;
    std::unique_ptr<Stream> stream, hopper;
    std::byte* workspace;
    Stream::Loan products;
    explicit OneGpu(Device device)
        : gpu(open_gpu(device)), stream(gpu->make_stream()), workspace(gpu->allocate(product_workspace_bytes(device))),
          products(stream->lend(workspace, product_workspace_bytes(device))) {
        if (why_no_hopper(device)) return;
        hopper = gpu->make_stream();
        allow_hopper(*hopper);
    }
    OneGpu(const OneGpu&) = delete;
    OneGpu& operator=(const OneGpu&) = delete;
    ~OneGpu() {
        stream->synchronize();
        products = {};
        gpu->release(workspace);
    }
    static OneGpu& simulated() {
        static OneGpu one(Device::cudasim);
        return one;
    }
    static OneGpu* real() {  // if there is one
        static const std::unique_ptr<OneGpu> one =
            why_no_gpu(Device::cuda) ? nullptr : std::make_unique<OneGpu>(Device::cuda);
        return one.get();
    }
};

// The device check (tests/gpu/run.sh), whose time is short, leaves the simulator out.
inline bool only_a_gpu() {
    const char* const only = std::getenv("KEEL_TEST_DEVICE");
    return only && std::string_view(only) == "cuda";
}

// Sanitizers see on any schedule what they see, and are slow.
constexpr sim::SweepOptions kernel_schedules() {
#if SIM_ASAN || SIM_TSAN
    return {.reach = sim::SweepOptions::Reach::two};
#else
    return {};
#endif
}

// run(gpu, stream) returns every output. Runs it under all schedules and demands the same bits and no
// findings; then, where there is a real GPU, twice there, and demands the same bits. Returns the outputs, one set for
// each device. `stream` is the one to run on. With only_a_gpu() it fails where there is no GPU, and one without the stream
// gives no outputs.
template <class Run>
std::vector<std::vector<Values>> on_gpus(Run run, std::unique_ptr<Stream> OneGpu::*stream = &OneGpu::stream) {
    std::vector<std::vector<Values>> all;
    if (OneGpu* const real = OneGpu::real(); real && real->*stream) {
        all.push_back(run(*real->gpu, *(real->*stream)));
        EXPECT_TRUE(std::ranges::equal(all.front(), run(*real->gpu, *(real->*stream)), same_bits))
            << "two runs on the GPU differ";
    }
    if (only_a_gpu()) {
        if (const auto why = why_no_gpu(Device::cuda)) ADD_FAILURE() << "KEEL_TEST_DEVICE=cuda: " << *why;
        return all;
    }
    std::vector<Values> first;
    OneGpu& one = OneGpu::simulated();
    const sim::SweepResult result = sim::sweep(kernel_schedules(), [&](sim::Outputs& outputs) {
        const std::vector<Values> got = run(*one.gpu, *(one.*stream));
        for (std::size_t i = 0; i < got.size(); ++i)
            outputs.add("output " + std::to_string(i), got[i].data(), got[i].size() * sizeof(double));
        if (first.empty()) first = got;
    });
    EXPECT_EQ(result.text(), "");
    if (!first.empty()) all.push_back(first);  // a launch that was stopped has no results, and its finding is told
    return all;
}

}  // namespace keel
