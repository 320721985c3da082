#include "kernels/cudasim/runtime.h"

#include <cstring>
#include <string>
#include <vector>

#include "kernels/cudasim/memory.h"

namespace sim::cuda {
namespace {

thread_local cudaError_t last_error = cudaSuccess;

// A simulated H200, but for its memory; as many devices as ranks ask for.
constexpr int devices = 8, multiprocessors = 132, major_version = 9, minor_version = 0, version_number = 13000;
constexpr std::size_t total_bytes = std::size_t{16} << 30, multiprocessor_bytes = 228 << 10;

struct NamedError {
    cudaError_t error;
    const char* name;
    const char* text;
};
constexpr NamedError errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure; sim::take_findings says more"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing blocking stream"},
};

cudaError_t refuse(cudaError_t error, Kind kind, const std::string& text) {
    report(kind, text);
    return set_last_error(error);
}

// One side of a copy: within its allocation, and where the direction says it is.
bool fits(const char* what, const void* address, std::size_t bytes, bool want_device, bool any, const Site& site) {
    const Found found = find_allocation(address);
    const std::string at = " at " + where(site);
    if (!any && want_device && found.place != Place::device) {
        report(Kind::bad_copy, std::string(what) + " is no device memory, but the direction of the copy says so," + at);
        return false;
    }
    if (!any && !want_device && found.place == Place::device) {
        report(Kind::bad_copy, std::string(what) + " is device memory, but the direction of the copy says host," + at);
        return false;
    }
    if (found.place == Place::unknown) return true;
    const auto offset = static_cast<const std::byte*>(address) - found.data;
    if (static_cast<std::size_t>(offset) + bytes <= found.bytes) return true;
    report(Kind::bad_copy, std::string(what) + " has " +
                               std::to_string(found.bytes - static_cast<std::size_t>(offset)) + " bytes left, but " +
                               std::to_string(bytes) + " are asked for," + at);
    return false;
}

bool check_copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, const Site& site) {
    if (bytes == 0) return true;
    const bool any = kind == cudaMemcpyDefault;
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    return fits("the destination", to, bytes, to_device, any, site) &&
           fits("the source", from, bytes, from_device, any, site);
}

}  // namespace

cudaError_t set_last_error(cudaError_t error) { return last_error = error; }
cudaError_t cudaPeekAtLastError() { return broken() ? cudaErrorLaunchFailure : last_error; }
cudaError_t cudaGetLastError() {
    const cudaError_t error = cudaPeekAtLastError();
    last_error = cudaSuccess;
    return error;
}
const char* cudaGetErrorString(cudaError_t error) {
    for (const NamedError& e : errors)
        if (e.error == error) return e.text;
    return "unrecognized error code";
}
const char* cudaGetErrorName(cudaError_t error) {
    for (const NamedError& e : errors)
        if (e.error == error) return e.name;
    return "unrecognized error code";
}

// ---- devices --------------------------------------------------------------------------------------------------------

cudaError_t cudaGetDeviceCount(int* count) {
    *count = devices;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int to) {
    if (to < 0 || to >= devices) return set_last_error(cudaErrorInvalidDevice);
    set_current_device(to);
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int* out) {
    *out = current_device();
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int of) {
    if (of < 0 || of >= devices) return set_last_error(cudaErrorInvalidDevice);
    *properties = {};
    std::strcpy(properties->name, "cudasim");
    properties->totalGlobalMem = total_bytes;
    properties->sharedMemPerBlock = Shared::static_limit;
    properties->sharedMemPerBlockOptin = Shared::optin_limit;
    properties->sharedMemPerMultiprocessor = multiprocessor_bytes;
    properties->major = major_version;
    properties->minor = minor_version;
    properties->multiProcessorCount = multiprocessors;
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = max_threads;
    properties->l2CacheSize = 50 << 20;
    properties->regsPerBlock = 65536;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int of) {
    if (of < 0 || of >= devices) return set_last_error(cudaErrorInvalidDevice);
    switch (attribute) {
        case cudaDevAttrMaxThreadsPerBlock:
            *value = max_threads;
            break;
        case cudaDevAttrMaxSharedMemoryPerBlock:
            *value = Shared::static_limit;
            break;
        case cudaDevAttrWarpSize:
            *value = 32;
            break;
        case cudaDevAttrMultiProcessorCount:
            *value = multiprocessors;
            break;
        case cudaDevAttrComputeCapabilityMajor:
            *value = major_version;
            break;
        case cudaDevAttrComputeCapabilityMinor:
            *value = minor_version;
            break;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
            *value = multiprocessor_bytes;
            break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin:
            *value = Shared::optin_limit;
            break;
    }
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
    *total = total_bytes;
    *free = total_bytes - std::min(total_bytes, device_bytes());
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
    *version = version_number;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) { return cudaRuntimeGetVersion(version); }

// ---- memory ---------------------------------------------------------------------------------------------------------

cudaError_t cudaMalloc(void** data, std::size_t bytes) {
    *data = device_bytes() + bytes > total_bytes ? nullptr : allocate_device(bytes);
    return *data ? cudaSuccess : set_last_error(cudaErrorMemoryAllocation);
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
    void* const p = const_cast<void*>(data);
    switch (find_allocation(data).place) {
        case Place::device:
            *attributes = {cudaMemoryTypeDevice, current_device(), p, nullptr};
            break;
        case Place::pinned:
            *attributes = {cudaMemoryTypeHost, current_device(), p, p};
            break;
        case Place::unknown:
            *attributes = {cudaMemoryTypeUnregistered, -1, nullptr, p};
            break;
    }
    return cudaSuccess;
}
cudaError_t cudaMallocHost(void** data, std::size_t bytes) {
    *data = allocate_pinned(bytes);
    return *data ? cudaSuccess : set_last_error(cudaErrorMemoryAllocation);
}
cudaError_t cudaHostAlloc(void** data, std::size_t bytes, unsigned) { return cudaMallocHost(data, bytes); }
cudaError_t cudaFree(void* data) {
    drain(nullptr);  // it waits for the device
    check_red_zones("something before a cudaFree");
    if (release_device(data)) return cudaSuccess;
    return refuse(cudaErrorInvalidValue, Kind::bad_call, "cudaFree of an address that cudaMalloc did not give");
}
cudaError_t cudaFreeHost(void* data) {
    drain(nullptr);
    if (release_pinned(data)) return cudaSuccess;
    return refuse(cudaErrorInvalidValue, Kind::bad_call, "cudaFreeHost of an address that cudaMallocHost did not give");
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream,
                            Site site) {
    const InModel in_model;
    if (!check_copy(to, from, bytes, kind, site)) return set_last_error(cudaErrorInvalidValue);
    const bool from_pageable = find_allocation(from).place == Place::unknown;
    const bool to_pageable = find_allocation(to).place == Place::unknown;
    if (capturing(stream) || !from_pageable) {
        submit(stream, [=] {
            if (bytes > 0) std::memmove(to, from, bytes);
            return true;
        });
    } else {  // pageable memory is staged: the caller may write it again at once
        const auto* bytes_of = static_cast<const std::byte*>(from);
        submit(stream, [to, staged = std::vector<std::byte>(bytes_of, bytes_of + bytes)] {
            if (!staged.empty()) std::memcpy(to, staged.data(), staged.size());  // neither may be null, says C
            return true;
        });
    }
    // And a copy to pageable memory returns when it is there.
    if (to_pageable && !capturing(stream)) return cudaStreamSynchronize(stream);
    return cudaSuccess;
}
// Rows, as so many copies; between memory of devices alone, which is all that keel asks for.
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_stride, const void* from, std::size_t from_stride,
                              std::size_t row_bytes, std::size_t rows, cudaMemcpyKind kind, cudaStream_t stream,
                              Site site) {
    const InModel in_model;
    if (kind != cudaMemcpyDeviceToDevice || row_bytes > to_stride || row_bytes > from_stride)
        return set_last_error(cudaErrorInvalidValue);
    if (rows == 0 || row_bytes == 0) return cudaSuccess;
    if (!check_copy(to, from, row_bytes, kind, site) ||
        !check_copy(static_cast<std::byte*>(to) + (rows - 1) * to_stride,
                    static_cast<const std::byte*>(from) + (rows - 1) * from_stride, row_bytes, kind, site))
        return set_last_error(cudaErrorInvalidValue);
    submit(stream, [=] {
        for (std::size_t r = 0; r < rows; ++r)
            std::memmove(static_cast<std::byte*>(to) + r * to_stride,
                         static_cast<const std::byte*>(from) + r * from_stride, row_bytes);
        return true;
    });
    return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, Site site) {
    return cudaMemcpyAsync(to, from, bytes, kind, nullptr, site);
}

cudaError_t cudaMemsetAsync(void* data, int value, std::size_t bytes, cudaStream_t stream, Site site) {
    const InModel in_model;
    if (bytes > 0 && !fits("the destination of a memset", data, bytes, true, false, site))
        return set_last_error(cudaErrorInvalidValue);
    submit(stream, [=] {
        std::memset(data, value, bytes);
        return true;
    });
    return cudaSuccess;
}
cudaError_t cudaMemset2DAsync(void* data, std::size_t stride, int value, std::size_t row_bytes, std::size_t rows,
                              cudaStream_t stream, Site site) {
    const InModel in_model;
    if (row_bytes > stride) return set_last_error(cudaErrorInvalidValue);
    if (rows == 0 || row_bytes == 0) return cudaSuccess;
    if (!fits("the destination of a memset", data, (rows - 1) * stride + row_bytes, true, false, site))
        return set_last_error(cudaErrorInvalidValue);
    submit(stream, [=] {
        for (std::size_t r = 0; r < rows; ++r)
            std::memset(static_cast<std::byte*>(data) + r * stride, value, row_bytes);
        return true;
    });
    return cudaSuccess;
}
cudaError_t cudaMemset(void* data, int value, std::size_t bytes, Site site) {
    return cudaMemsetAsync(data, value, bytes, nullptr, site);
}

// ---- kernels --------------------------------------------------------------------------------------------------------

cudaError_t set_function_attribute(const void* kernel, cudaFuncAttribute attribute, int value) {
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || static_cast<std::size_t>(value) > Shared::optin_limit)
        return set_last_error(cudaErrorInvalidValue);
    allow_dynamic_bytes(kernel, static_cast<std::size_t>(value));
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int threads, std::size_t bytes) {
    const std::size_t by_memory = multiprocessor_bytes / (bytes + 1024);
    *blocks =
        static_cast<int>(std::min<std::size_t>(by_memory, threads > 0 ? 2048 / static_cast<std::size_t>(threads) : 0));
    return cudaSuccess;
}

cudaError_t check_launch(const cudaLaunchConfig_t& config, const void*) {
    if (broken()) return set_last_error(cudaErrorLaunchFailure);
    if (!on_current_device(config.stream, "a launch", config.site)) return set_last_error(cudaErrorInvalidResourceHandle);
    for (unsigned i = 0; i < config.numAttrs; ++i) {
        const cudaLaunchAttribute& a = config.attrs[i];
        if (a.id == cudaLaunchAttributeClusterDimension &&
            (a.val.clusterDim.x != 1 || a.val.clusterDim.y != 1 || a.val.clusterDim.z != 1))
            return refuse(cudaErrorNotSupported, Kind::bad_launch,
                          "clusters of more than one block are not simulated, at " + where(config.site));
        if (a.id == cudaLaunchAttributeCooperative && a.val.cooperative)
            return refuse(cudaErrorNotSupported, Kind::bad_launch,
                          "cooperative launches are not simulated, at " + where(config.site));
    }
    return cudaSuccess;
}

void check_argument(const void* pointer, std::size_t number, const Site& site) {
    if (!pointer) return;
    const Found found = find_allocation(pointer);
    if (found.place == Place::device && found.device != current_device())
        report(Kind::out_of_bounds, "argument " + std::to_string(number) + " of the launch at " + where(site) + " points to memory of device " +
                                        std::to_string(found.device) + ", and device " + std::to_string(current_device()) + " runs it");
    if (found.place == Place::unknown)
        report(Kind::out_of_bounds, "argument " + std::to_string(number) + " of the launch at " + where(site) +
                                        " points to memory that is neither the device's nor pinned");
}

cudaError_t submit_launch(const cudaLaunchConfig_t& config, const void* kernel, void (*call)(const void*),
                          std::shared_ptr<const void> arguments) {
    const InModel in_model;
    const std::size_t limit = allowed_dynamic_bytes(kernel) > Shared::static_limit ? Shared::optin_limit : Shared::static_limit;
    Launch launch{config.gridDim, config.blockDim, config.dynamicSmemBytes, limit, call, arguments.get(), config.site};
    if (!legal_launch(launch, kernel)) return set_last_error(cudaErrorInvalidConfiguration);
    submit(config.stream, [launch, kernel, arguments] {
        run_launch(launch, kernel);
        return true;
    });
    return cudaSuccess;
}

}  // namespace sim::cuda
