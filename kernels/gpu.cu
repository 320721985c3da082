// The body of kernels/gpu.h, once over the CUDA runtime and once over the simulated one.
#include "kernels/gpu.h"

#include <string>
#include <vector>

#include "kernels/device.cuh"

namespace keel::KEEL_DEVICE {
namespace {

#if defined(__CUDACC__)
constexpr Device this_device = Device::cuda;
#else
constexpr Device this_device = Device::cudasim;
#endif

cudaStream_t native(Stream& stream) { return static_cast<cudaStream_t>(stream.native()); }

class RuntimeGpu : public Gpu {
public:
    explicit RuntimeGpu(int index) : index_(index) { check(cudaSetDevice(index)); }
    RuntimeGpu(const RuntimeGpu&) = delete;
    RuntimeGpu& operator=(const RuntimeGpu&) = delete;
    ~RuntimeGpu() override {
        for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
    }

    Device device() const override { return this_device; }
    std::string describe() const override {
        cudaDeviceProp properties;
        int runtime = 0;
        check(cudaGetDeviceProperties(&properties, index_));
        check(cudaRuntimeGetVersion(&runtime));
        return concat(properties.name, ", sm_", properties.major, properties.minor, ", ",
                      properties.totalGlobalMem >> 30, " GiB, CUDA ", runtime / 1000, ".", runtime % 1000 / 10);
    }
    std::unique_ptr<Stream> make_stream() override {
        cudaStream_t stream = nullptr;
        check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        streams_.push_back(stream);
        return std::make_unique<Stream>(this_device, stream,
                                        [](void* s) { check(cudaStreamSynchronize(static_cast<cudaStream_t>(s))); });
    }
    std::byte* allocate(std::int64_t bytes) override {
        void* data = nullptr;
        check(cudaMalloc(&data, static_cast<std::size_t>(bytes)));
        return static_cast<std::byte*>(data);
    }
    void release(std::byte* data) override { check(cudaFree(data)); }
    std::byte* allocate_pinned(std::int64_t bytes) override {
        void* data = nullptr;
        check(cudaMallocHost(&data, static_cast<std::size_t>(bytes)));
        return static_cast<std::byte*>(data);
    }
    void release_pinned(std::byte* data) override { check(cudaFreeHost(data)); }
    void copy_in(Stream& stream, void* to, const void* from, std::int64_t bytes) override {
        check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice, native(stream)));
    }
    void copy_out(Stream& stream, void* to, const void* from, std::int64_t bytes) override {
        check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToHost, native(stream)));
    }
    void fill(Stream& stream, void* data, int byte, std::int64_t bytes) override {
        check(cudaMemsetAsync(data, byte, static_cast<std::size_t>(bytes), native(stream)));
    }

private:
    int index_;
    std::vector<cudaStream_t> streams_;
};

}  // namespace

void copy_on_device(Stream& stream, void* to, const void* from, std::int64_t bytes) {
    check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, native(stream)));
}
std::optional<std::string> why_no_gpu() {
    int count = 0;
    if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) return cudaGetErrorString(error);
    if (count == 0) return "the CUDA runtime finds no device";
    return std::nullopt;
}
std::unique_ptr<Gpu> open_gpu(int index) { return std::make_unique<RuntimeGpu>(index); }

}  // namespace keel::KEEL_DEVICE
