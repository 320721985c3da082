// The body of kernels/gpu.h, once over the CUDA runtime and once over the simulated one.
#include "kernels/gpu.h"

#include <cuda_profiler_api.h>
#include <nvtx3/nvToolsExt.h>

#include <cstdio>
#include <string>
#include <vector>

#include "kernels/cublaslt.cuh"
#include "kernels/device.cuh"

namespace keel::KEEL_DEVICE {
namespace {

#if defined(__CUDACC__)
constexpr Device this_device = Device::cuda;
#else
constexpr Device this_device = Device::cudasim;
#endif

cudaStream_t native(Stream& stream) { return static_cast<cudaStream_t>(stream.native()); }

class RuntimeGraph : public GpuGraph {
public:
    explicit RuntimeGraph(cudaGraph_t graph) {
        const cudaError_t counted = cudaGraphGetNodes(graph, nullptr, &nodes_);
        const cudaError_t made = cudaGraphInstantiate(&exec_, graph, 0);
        cudaGraphDestroy(graph);
        check(counted);
        check(made);
    }
    RuntimeGraph(const RuntimeGraph&) = delete;
    RuntimeGraph& operator=(const RuntimeGraph&) = delete;
    ~RuntimeGraph() override { (void)cudaGraphExecDestroy(exec_); }
    std::int64_t nodes() const override { return static_cast<std::int64_t>(nodes_); }
    cudaGraphExec_t exec() const { return exec_; }

private:
    cudaGraphExec_t exec_ = nullptr;
    std::size_t nodes_ = 0;
};

class RuntimeEvent : public GpuEvent {
public:
    RuntimeEvent() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }
    RuntimeEvent(const RuntimeEvent&) = delete;
    RuntimeEvent& operator=(const RuntimeEvent&) = delete;
    ~RuntimeEvent() override { (void)cudaEventDestroy(event_); }
    cudaEvent_t event() const { return event_; }

private:
    cudaEvent_t event_ = nullptr;
};

class RuntimeGpu : public Gpu {
public:
    explicit RuntimeGpu(int index) : index_(index) { select(); }
    RuntimeGpu(const RuntimeGpu&) = delete;
    RuntimeGpu& operator=(const RuntimeGpu&) = delete;
    ~RuntimeGpu() override {
        for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
    }

    Device device() const override { return this_device; }
    std::string name() const override { return properties().name; }
    std::string describe() const override {
        const cudaDeviceProp properties = this->properties();
        int runtime = 0;
        check(cudaRuntimeGetVersion(&runtime));
        return concat(properties.name, ", sm_", properties.major, properties.minor, ", ",
                      properties.totalGlobalMem >> 30, " GiB, CUDA ", runtime / 1000, ".", runtime % 1000 / 10);
    }
    std::string bus_id() const override {
        char id[32] = "";
#if defined(__CUDACC__)
        check(cudaDeviceGetPCIBusId(id, sizeof id, index_));
#endif
        return id;
    }
    std::string libraries() const override {
        const auto version = [](int v) { return concat(v / 1000, ".", v % 1000 / 10); };
        int runtime = 0, driver = 0;
        check(cudaRuntimeGetVersion(&runtime));
        check(cudaDriverGetVersion(&driver));
        std::string text = concat("runtime ", version(runtime), ", driver ", version(driver), ", ");
        try {
            const std::size_t lt = cublaslt().cublasLtGetVersion();  // 130100 is 13.1
            return text + concat("cublasLt ", lt / 10000, ".", lt / 100 % 100);
        } catch (const Error& e) {
            return text + "no cublasLt: " + e.what();
        }
    }
    // Compiled by kernels/cuda.cmake; code of one generation runs on its later members, and no other's does.
    std::string kernels() const override {
#if defined(__CUDACC__)
        const cudaDeviceProp of = properties();
        int best = 0;
        std::string all;
        for (const int built : {__CUDA_ARCH_LIST__}) {  // 800, 900
            const int major = built / 100, minor = built / 10 % 10;
            all += concat(all.empty() ? "sm_" : ", sm_", built / 10);
            if (major == of.major && minor <= of.minor) best = built / 10 > best ? built / 10 : best;
        }
        if (best == 0) return concat("no kernels for sm_", of.major, of.minor, ": this program holds those for ", all);
        return concat("kernels for sm_", best, KEEL_HOPPER && best == 90 ? ", and attention's for --run.hopper" : "");
#else
        return "kernels for the host's processor";
#endif
    }
    std::int64_t free_bytes() const override {
        std::size_t free = 0, total = 0;
        select();
        check(cudaMemGetInfo(&free, &total));
        return static_cast<std::int64_t>(free);
    }
    std::unique_ptr<Stream> make_stream() override {
        cudaStream_t stream = nullptr;
        select();
        check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        streams_.push_back(stream);
        return std::make_unique<Stream>(this_device, stream,
                                        [](void* s) { check(cudaStreamSynchronize(static_cast<cudaStream_t>(s))); });
    }
    std::byte* allocate(std::int64_t bytes) override {
        void* data = nullptr;
        select();
        check(cudaMalloc(&data, static_cast<std::size_t>(bytes)));
        return static_cast<std::byte*>(data);
    }
    void release(std::byte* data) override { (void)cudaFree(data); }
    std::byte* allocate_pinned(std::int64_t bytes) override {
        void* data = nullptr;
        select();
        check(cudaMallocHost(&data, static_cast<std::size_t>(bytes)));
        return static_cast<std::byte*>(data);
    }
    void release_pinned(std::byte* data) override { (void)cudaFreeHost(data); }
    void copy_in(Stream& stream, void* to, const void* from, std::int64_t bytes) override {
        select();
        check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice, native(stream)));
    }
    void copy_out(Stream& stream, void* to, const void* from, std::int64_t bytes) override {
        select();
        check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToHost, native(stream)));
    }
    void fill(Stream& stream, void* data, int byte, std::int64_t bytes) override {
        select();
        check(cudaMemsetAsync(data, byte, static_cast<std::size_t>(bytes), native(stream)));
    }
    std::unique_ptr<GpuEvent> make_event() override {
        select();
        return std::make_unique<RuntimeEvent>();
    }
    void record(GpuEvent& event, Stream& stream) override {
        check(cudaEventRecord(static_cast<RuntimeEvent&>(event).event(), native(stream)));
    }
    void wait(Stream& stream, GpuEvent& event) override {
        check(cudaStreamWaitEvent(native(stream), static_cast<RuntimeEvent&>(event).event(), 0));
    }
    // Other threads of the program, such as the one that writes a checkpoint, may do as they like meanwhile.
    void begin_capture(Stream& stream) override {
        check(cudaStreamBeginCapture(native(stream), cudaStreamCaptureModeThreadLocal));
    }
    std::unique_ptr<GpuGraph> end_capture(Stream& stream) override {
        cudaGraph_t graph = nullptr;
        check(cudaStreamEndCapture(native(stream), &graph));
        return std::make_unique<RuntimeGraph>(graph);
    }
    void launch(GpuGraph& graph, Stream& stream) override {
        select();
        check(cudaGraphLaunch(static_cast<RuntimeGraph&>(graph).exec(), native(stream)));
    }
    void profile(bool on) override { check(on ? cudaProfilerStart() : cudaProfilerStop()); }

private:
    // Which device a call means belongs to the thread that makes it, and this may be another one than opened it.
    void select() const { check(cudaSetDevice(index_)); }
    cudaDeviceProp properties() const {
        cudaDeviceProp properties;
        check(cudaGetDeviceProperties(&properties, index_));
        return properties;
    }

    int index_;
    std::vector<cudaStream_t> streams_;
};

}  // namespace

void copy_on_device(Stream& stream, void* to, const void* from, std::int64_t bytes) {
    check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, native(stream)));
}
void push_range(const char* name, std::int64_t index) {
    char text[64];
    if (index >= 0) std::snprintf(text, sizeof text, "%s %lld", name, static_cast<long long>(index));
    nvtxRangePushA(index >= 0 ? text : name);
}
void pop_range() { nvtxRangePop(); }
std::optional<std::string> why_no_gpu() {
    int driver = 0, count = 0;  // without a driver CUDA speaks of one that is too old
    if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0) return "there is no NVIDIA driver here";
    if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) return cudaGetErrorString(error);
    if (count == 0) return "the CUDA runtime finds no device";
    return std::nullopt;
}
int gpu_count() {
    int count = 0;
    check(cudaGetDeviceCount(&count));
    return count;
}
std::unique_ptr<Gpu> open_gpu(int index) { return std::make_unique<RuntimeGpu>(index); }

}  // namespace keel::KEEL_DEVICE
