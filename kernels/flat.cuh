// kernels/flat.cuh: kernels in which every thread takes the next n elements of flat memory.
#pragma once

#include "kernels/device.cuh"

namespace keel::KEEL_DEVICE {

constexpr int flat_threads = 256;

// The shape of a launch over `elements`, n of them a thread.
inline Shape flat_shape(std::int64_t elements, int n) {
    return {.blocks = static_cast<unsigned>(ceil_div(elements, std::int64_t{flat_threads} * n)),
            .threads = flat_threads};
}
// The first of this thread's n elements; it may lie past the end.
KEEL_INLINE std::int64_t flat_element(int n) { return (std::int64_t{blockIdx.x} * flat_threads + threadIdx.x) * n; }

}  // namespace keel::KEEL_DEVICE
