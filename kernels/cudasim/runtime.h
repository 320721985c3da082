// kernels/cudasim/runtime.h: the part of the CUDA runtime that keel calls, under CUDA's names and with its error codes.
//
// Where a GPU's runtime would corrupt memory or crash later, this one reports (findings.h) and returns an error now:
// copies outside of an allocation or in the wrong direction, frees of what was never allocated, launches out of range.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#include "kernels/cudasim/launch.h"
#include "kernels/cudasim/profiler.h"
#include "kernels/cudasim/streams.h"

namespace sim::cuda {

// ---- errors ---------------------------------------------------------------------------------------------------------

enum cudaError : int {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInvalidMemcpyDirection = 21,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600,
    cudaErrorLaunchFailure = 719,
    cudaErrorNotSupported = 801,
    cudaErrorStreamCaptureUnsupported = 900,
    cudaErrorStreamCaptureInvalidated = 901,
    cudaErrorStreamCaptureUnjoined = 904,
    cudaErrorStreamCaptureImplicit = 906,
};
using cudaError_t = cudaError;
const char* cudaGetErrorString(cudaError_t error);
const char* cudaGetErrorName(cudaError_t error);
cudaError_t cudaGetLastError();  // and forgets it, but for a broken launch
cudaError_t cudaPeekAtLastError();
cudaError_t set_last_error(cudaError_t error);

// ---- devices --------------------------------------------------------------------------------------------------------

enum cudaDeviceAttr : int {
    cudaDevAttrMaxThreadsPerBlock = 1,
    cudaDevAttrMaxSharedMemoryPerBlock = 8,
    cudaDevAttrWarpSize = 10,
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76,
    cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
};
struct cudaDeviceProp {
    char name[256];
    std::size_t totalGlobalMem, sharedMemPerBlock, sharedMemPerBlockOptin, sharedMemPerMultiprocessor;
    int major, minor, multiProcessorCount, warpSize, maxThreadsPerBlock, l2CacheSize, regsPerBlock;
};
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total);
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaDriverGetVersion(int* version);
inline cudaError_t cudaProfilerStart() { return profile(true), cudaSuccess; }
inline cudaError_t cudaProfilerStop() { return profile(false), cudaSuccess; }

// ---- memory ---------------------------------------------------------------------------------------------------------

enum cudaMemcpyKind : int {
    cudaMemcpyHostToHost = 0,
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost = 2,
    cudaMemcpyDeviceToDevice = 3,
    cudaMemcpyDefault = 4,
};
constexpr unsigned cudaHostAllocDefault = 0, cudaHostAllocPortable = 1;
cudaError_t cudaMalloc(void** data, std::size_t bytes);
cudaError_t cudaFree(void* data);
cudaError_t cudaMallocHost(void** data, std::size_t bytes);
cudaError_t cudaHostAlloc(void** data, std::size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void* data);
template <class T>
cudaError_t cudaMalloc(T** data, std::size_t bytes) {
    return cudaMalloc(reinterpret_cast<void**>(data), bytes);
}
template <class T>
cudaError_t cudaMallocHost(T** data, std::size_t bytes) {
    return cudaMallocHost(reinterpret_cast<void**>(data), bytes);
}
enum cudaMemoryType : int {
    cudaMemoryTypeUnregistered = 0,
    cudaMemoryTypeHost = 1,
    cudaMemoryTypeDevice = 2,
    cudaMemoryTypeManaged = 3,
};
struct cudaPointerAttributes {
    cudaMemoryType type;
    int device;
    void *devicePointer, *hostPointer;
};
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data);
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, Site site = Site::current());
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream = nullptr, Site site = Site::current());
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_stride, const void* from, std::size_t from_stride,
                              std::size_t row_bytes, std::size_t rows, cudaMemcpyKind kind,
                              cudaStream_t stream = nullptr, Site site = Site::current());
cudaError_t cudaMemset(void* data, int value, std::size_t bytes, Site site = Site::current());
cudaError_t cudaMemsetAsync(void* data, int value, std::size_t bytes, cudaStream_t stream = nullptr,
                            Site site = Site::current());
cudaError_t cudaMemset2DAsync(void* data, std::size_t stride, int value, std::size_t row_bytes, std::size_t rows,
                              cudaStream_t stream = nullptr, Site site = Site::current());

// ---- streams, events, graphs ----------------------------------------------------------------------------------------

constexpr unsigned cudaStreamDefault = 0, cudaStreamNonBlocking = 1;
constexpr unsigned cudaEventDefault = 0, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2;
cudaError_t cudaStreamCreate(cudaStream_t* stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
cudaError_t cudaEventCreate(cudaEvent_t* event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end);
using cudaHostFn_t = void (*)(void* data);
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data);

enum cudaStreamCaptureMode : int {
    cudaStreamCaptureModeGlobal = 0,
    cudaStreamCaptureModeThreadLocal = 1,
    cudaStreamCaptureModeRelaxed = 2,
};
enum cudaStreamCaptureStatus : int {
    cudaStreamCaptureStatusNone = 0,
    cudaStreamCaptureStatusActive = 1,
    cudaStreamCaptureStatusInvalidated = 2,
};
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags = 0);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, void* nodes,
                              std::size_t* count);  // nodes must be null: only their number

// ---- kernels --------------------------------------------------------------------------------------------------------

enum cudaFuncAttribute : int {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
    cudaFuncAttributePreferredSharedMemoryCarveout = 9,
};
cudaError_t set_function_attribute(const void* kernel, cudaFuncAttribute attribute, int value);
template <class... Params>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Params...), cudaFuncAttribute attribute, int value) {
    return set_function_attribute(reinterpret_cast<const void*>(kernel), attribute, value);
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* kernel, int threads,
                                                          std::size_t bytes);

enum cudaLaunchAttributeID : int {
    cudaLaunchAttributeIgnore = 0,
    cudaLaunchAttributeCooperative = 2,
    cudaLaunchAttributeClusterDimension = 4,
    cudaLaunchAttributeProgrammaticStreamSerialization = 6,
    cudaLaunchAttributePriority = 8,
};
struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    union {
        struct {
            unsigned x, y, z;
        } clusterDim;
        int cooperative, programmaticStreamSerializationAllowed, priority;
    } val;
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    std::size_t dynamicSmemBytes = 0;
    cudaStream_t stream = nullptr;
    cudaLaunchAttribute* attrs = nullptr;
    unsigned numAttrs = 0;
    Site site = Site::current();  // where the configuration was written, for findings; a GPU's has no such member
};

// Refuses what a GPU would, and reports a pointer to memory of the host among the arguments.
cudaError_t check_launch(const cudaLaunchConfig_t& config, const void* kernel);
void check_argument(const void* pointer, std::size_t number, const Site& site);
cudaError_t submit_launch(const cudaLaunchConfig_t& config, const void* kernel, void (*call)(const void*),
                          std::shared_ptr<const void> arguments);

template <class... Params, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Params...), Arguments&&... arguments) {
    const InModel in_model;
    struct Call {
        void (*kernel)(Params...);
        std::tuple<std::remove_cv_t<std::remove_reference_t<Params>>...> arguments;
    };
    const auto* address = reinterpret_cast<const void*>(kernel);
    if (const cudaError_t error = check_launch(*config, address); error != cudaSuccess) return error;
    auto call = std::make_shared<const Call>(
        Call{kernel,
             std::tuple<std::remove_cv_t<std::remove_reference_t<Params>>...>(std::forward<Arguments>(arguments)...)});
    std::size_t number = 0;
    std::apply(
        [&](const auto&... each) {
            const auto check = [&](const auto& argument) {
                if constexpr (std::is_pointer_v<std::remove_cvref_t<decltype(argument)>>)
                    check_argument(static_cast<const void*>(argument), number, config->site);
                ++number;
            };
            (check(each), ...);
        },
        call->arguments);
    return submit_launch(
        *config, address,
        [](const void* data) {
            const auto& c = *static_cast<const Call*>(data);
            std::apply(c.kernel, c.arguments);
        },
        std::move(call));
}

}  // namespace sim::cuda
