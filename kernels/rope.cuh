// kernels/rope.cuh: a GPU's rotation of a pair, for rope.cu and for kernels that turn on their way, and the angles they
// turn by.
#pragma once

#include "kernels/device.cuh"

namespace keel::KEEL_DEVICE {

// (low, high) by the angle of cosine and sine; by the opposite one if sine is negated.
KEEL_INLINE void turn(float& low, float& high, float cosine, float sine) {
    const float u = low, v = high;
    low = u * cosine - v * sine;
    high = v * cosine + u * sine;
}

// RopeAngles as a kernel sees them: of a row's head as wide as the kernel's tile. No table: nothing turns.
struct Angles {
    const float* table = nullptr;
    const std::int32_t* positions = nullptr;
};

}  // namespace keel::KEEL_DEVICE
