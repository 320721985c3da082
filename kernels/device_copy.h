// kernels/device_copy.h: a copy of bytes on a stream of a GPU, real or simulated, for code that includes no CUDA header.
#pragma once

#include <cstdint>

#include "kernels/base/stream.h"

namespace keel {

// Between any two places that do not overlap, in the memory of the stream's GPU or of the host; asynchronous as CUDA's copies
// are. Throws Error with CUDA's name for what went wrong.
void copy_on_device(Stream& stream, void* to, const void* from, std::int64_t bytes);

}  // namespace keel
