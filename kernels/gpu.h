// kernels/gpu.h: memory and streams of a GPU, real (cuda) or simulated (cudasim), for code that includes no CUDA
// header.
//
// Errors  every call but releases and ranges throws Error with CUDA's own name for what went wrong. Calls on one Gpu come
// from one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "kernels/base/stream.h"

namespace keel {

// Work that was recorded once and can be queued again as a whole.
class GpuGraph {
public:
    virtual ~GpuGraph() = default;
    virtual std::int64_t nodes() const = 0;  // kernels, copies and fills
};

// A point in the work of a stream, as long as its Gpu.
class GpuEvent {
public:
    virtual ~GpuEvent() = default;
};

class Gpu {
public:
    virtual ~Gpu() = default;

    virtual Device device() const = 0;
    virtual std::string name() const = 0;                 // "NVIDIA H200"
    virtual std::string describe() const = 0;             // "NVIDIA H200, sm_90, 139 GiB, CUDA 13.0"
    virtual std::string libraries() const = 0;            // "runtime 13.0, driver 13.0, cublasLt 13.1"; or what is missing
    virtual std::string bus_id() const = 0;               // of PCI, "0000:3b:00.0"; empty where it is simulated
    virtual std::string kernels() const = 0;              // "kernels for sm_90": which of this program's it runs
    virtual std::int64_t free_bytes() const = 0;          // that may still be allocated
    virtual std::unique_ptr<Stream> make_stream() = 0;    // for as long as the Gpu lives
    virtual std::byte* allocate(std::int64_t bytes) = 0;  // 256-byte aligned
    virtual void release(std::byte* data) = 0;            // never throws: what cannot be freed is gone with the device
    // Memory of the host that copies can read and write while the program goes on.
    virtual std::byte* allocate_pinned(std::int64_t bytes) = 0;
    virtual void release_pinned(std::byte* data) = 0;
    // Asynchronous on `stream` if the host's side is pinned.
    virtual void copy_in(Stream& stream, void* to, const void* from, std::int64_t bytes) = 0;
    virtual void copy_out(Stream& stream, void* to, const void* from, std::int64_t bytes) = 0;
    virtual void fill(Stream& stream, void* data, int byte, std::int64_t bytes) = 0;
    virtual std::unique_ptr<GpuEvent> make_event() = 0;
    virtual void record(GpuEvent& event, Stream& stream) = 0;  // what is queued on `stream` by now
    virtual void wait(Stream& stream, GpuEvent& event) = 0;    // what is queued on `stream` from now on comes after it
    // What is queued on `stream` between the two is recorded and not done. Meanwhile nothing may wait for the stream, and
    // copies need pinned memory.
    virtual void begin_capture(Stream& stream) = 0;
    virtual std::unique_ptr<GpuGraph> end_capture(Stream& stream) = 0;
    virtual void launch(GpuGraph& graph, Stream& stream) = 0;

    virtual void profile(bool on) = 0;  // whether a profiler is to look now; at what, GpuRange says (kernels/gpu_range.h)
};

// Why there is no such device here, in one line; nothing if there is one.
std::optional<std::string> why_no_gpu(Device device);
int gpu_count(Device device);  // that open_gpu can open; 0 where there is none
std::unique_ptr<Gpu> open_gpu(Device device, int index = 0);

}  // namespace keel
