#include "kernels/gpu.h"

#include "kernels/base/error.h"
#include "kernels/device_copy.h"
#include "kernels/gpu_range.h"

namespace keel {

namespace on_cuda {
void copy_on_device(Stream& stream, void* to, const void* from, std::int64_t bytes);
void push_range(const char* name, std::int64_t index);
void pop_range();
std::optional<std::string> why_no_gpu();
int gpu_count();
std::unique_ptr<Gpu> open_gpu(int index);
}  // namespace on_cuda
namespace on_cudasim {
void copy_on_device(Stream& stream, void* to, const void* from, std::int64_t bytes);
void push_range(const char* name, std::int64_t index);
void pop_range();
std::optional<std::string> why_no_gpu();
int gpu_count();
std::unique_ptr<Gpu> open_gpu(int index);
}  // namespace on_cudasim

void copy_on_device(Stream& stream, [[maybe_unused]] void* to, [[maybe_unused]] const void* from,
                    [[maybe_unused]] std::int64_t bytes) {
#if KEEL_CUDA
    if (stream.device() == Device::cuda) return on_cuda::copy_on_device(stream, to, from, bytes);
#endif
#if KEEL_CUDASIM
    if (stream.device() == Device::cudasim) return on_cudasim::copy_on_device(stream, to, from, bytes);
#endif
    fail("copy_on_device: a stream of ", name(stream.device()), " is of no GPU that this keel was built for");
}

void GpuRange::push([[maybe_unused]] const char* name, [[maybe_unused]] std::int64_t index) const {
#if KEEL_CUDA
    if (device_ == Device::cuda) on_cuda::push_range(name, index);
#endif
#if KEEL_CUDASIM
    if (device_ == Device::cudasim) on_cudasim::push_range(name, index);
#endif
}
void GpuRange::pop() const {
#if KEEL_CUDA
    if (device_ == Device::cuda) on_cuda::pop_range();
#endif
#if KEEL_CUDASIM
    if (device_ == Device::cudasim) on_cudasim::pop_range();
#endif
}

std::optional<std::string> why_no_gpu(Device device) {
    switch (device) {
        case Device::cpu:
            return "the CPU is no GPU";
        case Device::cuda:
#if KEEL_CUDA
            return on_cuda::why_no_gpu();
#else
            return "this keel was built without a CUDA toolkit";
#endif
        case Device::cudasim:
#if KEEL_CUDASIM
            return on_cudasim::why_no_gpu();
#else
            return "this library of kernels was built without cudasim";
#endif
    }
    return "no such device";
}

int gpu_count(Device device) {
    if (why_no_gpu(device)) return 0;
#if KEEL_CUDA
    if (device == Device::cuda) return on_cuda::gpu_count();
#endif
#if KEEL_CUDASIM
    if (device == Device::cudasim) return on_cudasim::gpu_count();
#endif
    return 0;
}

std::unique_ptr<Gpu> open_gpu(Device device, [[maybe_unused]] int index) {
    if (const auto why = why_no_gpu(device)) fail("no ", name(device), " device: ", *why);
#if KEEL_CUDA
    if (device == Device::cuda) return on_cuda::open_gpu(index);
#endif
#if KEEL_CUDASIM
    if (device == Device::cudasim) return on_cudasim::open_gpu(index);
#endif
    return nullptr;
}

}  // namespace keel
