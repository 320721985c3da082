// kernels/gpu.h: memory and streams of a GPU, real (cuda) or simulated (cudasim), for code that includes no CUDA
// header.
//
// Errors  every call throws Error with CUDA's own name for what went wrong. Calls on one Gpu come from one thread at a
// time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "kernels/base/stream.h"

namespace keel {

class Gpu {
public:
    virtual ~Gpu() = default;

    virtual Device device() const = 0;
    virtual std::string describe() const = 0;             // "NVIDIA H200, sm_90, 139.7 GiB, CUDA 13.0"
    virtual std::unique_ptr<Stream> make_stream() = 0;    // for as long as the Gpu lives
    virtual std::byte* allocate(std::int64_t bytes) = 0;  // 256-byte aligned
    virtual void release(std::byte* data) = 0;
    // Memory of the host that copies can read and write while the program goes on.
    virtual std::byte* allocate_pinned(std::int64_t bytes) = 0;
    virtual void release_pinned(std::byte* data) = 0;
    // Asynchronous on `stream` if the host's side is pinned.
    virtual void copy_in(Stream& stream, void* to, const void* from, std::int64_t bytes) = 0;
    virtual void copy_out(Stream& stream, void* to, const void* from, std::int64_t bytes) = 0;
    virtual void fill(Stream& stream, void* data, int byte, std::int64_t bytes) = 0;
};

// Why there is no such device here, in one line; nothing if there is one.
std::optional<std::string> why_no_gpu(Device device);
std::unique_ptr<Gpu> open_gpu(Device device, int index = 0);

}  // namespace keel
