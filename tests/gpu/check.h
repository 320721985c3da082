// tests/gpu/check.h: what the sections of the device check (tests/gpu/run.sh) share: a GPU, real or simulated, buffers in its
// memory, and a clock. Sizes are those of the models that keel is judged by, or with `tiny` small enough for the simulator,
// where times mean nothing and only the way is tried.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/base/view.h"
#include "kernels/gpu.h"
#include "kernels/products.h"
#include "tests/gpu/result.h"

namespace keel::gpu_check {

struct Check {
    Device device;
    bool tiny;
    std::unique_ptr<Gpu> gpu;
    std::unique_ptr<Stream> stream;
    Stream::Loan products;  // they have the workspace that they have in a run

    Check(Device d, bool small)
        : device(d), tiny(small), gpu(open_gpu(d)), stream(gpu->make_stream()),
          products(stream->lend(gpu->allocate(product_workspace_bytes(d)), product_workspace_bytes(d))) {}
    Check(const Check&) = delete;
    Check& operator=(const Check&) = delete;
    ~Check() {
        stream->synchronize();
        std::byte* const workspace = stream->shared_workspace();
        products = {};
        gpu->release(workspace);
    }
    std::int64_t size(std::int64_t full, std::int64_t small) const { return tiny ? small : full; }
    // Goals that are no shares of what was measured here are for this GPU alone.
    std::optional<double> on_h200(double goal) const {
        return gpu->name().find("H200") != std::string::npos ? std::optional(goal) : std::nullopt;
    }

    // Of one call: the median of five samples, each long enough for the clock, after one to warm up. `body` queues and does
    // not wait.
    double seconds(const std::function<void()>& body) const;
    double quick_seconds(const std::function<void()>& body) const;  // the best of two short samples
};

// In the device's memory: numbers between -0.5 and 0.5 that repeat after 4093, or zeros.
template <class T>
class Buffer {
public:
    Buffer(const Check& check, std::int64_t rows, std::int64_t columns, bool zeros = false)
        : gpu_(*check.gpu), view_(nullptr, {rows, columns}), data_(gpu_.allocate(view_.bytes())) {
        view_ = View<T>(reinterpret_cast<T*>(data_), {rows, columns});
        if (zeros) gpu_.fill(*check.stream, data_, 0, view_.bytes());
        else fill(*check.stream);
    }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() { gpu_.release(data_); }

    View<T> view() const { return view_; }
    View<T> flat() const { return View<T>(view_.data(), {view_.size()}); }
    void set(Stream& stream, const std::vector<T>& elements) const {
        gpu_.copy_in(stream, data_, elements.data(), view_.bytes());
        stream.synchronize();
    }
    std::vector<T> elements(Stream& stream) const {
        std::vector<T> host(static_cast<std::size_t>(view_.size()));
        gpu_.copy_out(stream, host.data(), data_, view_.bytes());
        stream.synchronize();
        return host;
    }

private:
    void fill(Stream& stream) const {
        constexpr std::int64_t period = 4093, repeated = 1024;  // copies of 4 million elements
        std::vector<T> block(static_cast<std::size_t>(std::min(view_.size(), period * repeated)));
        for (std::int64_t i = 0; i < std::ssize(block); ++i)
            block[static_cast<std::size_t>(i)] =
                static_cast<T>(static_cast<float>(i % period * 7919 % period) / static_cast<float>(period) - 0.5f);
        for (std::int64_t at = 0; at < view_.size(); at += period * repeated)
            gpu_.copy_in(stream, view_.data() + at, block.data(),
                         std::min(view_.size() - at, period * repeated) * static_cast<std::int64_t>(sizeof(T)));
        stream.synchronize();
    }

    Gpu& gpu_;
    View<T> view_;
    std::byte* data_;
};

// FLOP/s of the largest product, bf16, of random numbers: what other products and attention are shares of.
double largest_product(const Check& check);

void ceilings(const Check& check, Result& result);
void gemm(const Check& check, Result& result);
void attention(const Check& check, Result& result);
void bandwidth(const Check& check, Result& result);
void layer(const Check& check, Result& result);

}  // namespace keel::gpu_check
