// engine/memory/backend.h: where a model's bytes lie and who works on them: the memory of the host and a crew of threads, or
// the memory of a GPU, real or simulated, and a queue of it.
//
// What the planner laid out is the same either way (engine/memory/arena.h); ops find their body by the stream's device
// (kernels/cuda_ops.h). On a GPU the host must not touch what an Arena holds: it comes and goes by the copies below.
#pragma once

#include <cstdint>

#include "kernels/base/stream.h"
#include "kernels/base/view.h"
#include "kernels/gpu.h"

namespace keel {

// Owns nothing: streams and GPU outlive whatever is made with it.
struct Backend {
    Backend(Stream& cpu) : stream(cpu), host(cpu) {}
    Backend(Gpu& device, Stream& queue, Stream& crew) : stream(queue), host(crew), gpu(&device) {}

    Stream& stream;      // ops are queued here
    Stream& host;        // the crew of the host: initial weights, checkpoints. On the CPU the same one
    Gpu* gpu = nullptr;  // none on the CPU

    void zero(void* data, std::int64_t bytes) const;  // queued
    // Between memory of the host and the backend's; done when they return.
    void copy_in(void* to, const void* from, std::int64_t bytes) const;
    void copy_out(void* to, const void* from, std::int64_t bytes) const;
};

}  // namespace keel
