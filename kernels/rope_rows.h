// kernels/rope_rows.h: the CPU's rotation of a pair and of a head, for rope.cpp and for ops that turn on their way
// (attention's backward), and the checks of the angles they turn by.
#pragma once

#include <cstdint>

#include "kernels/rope.h"
#include "kernels/simd.h"

namespace keel::rope {

// (low, high) by the angle of cosine and sine; by the opposite one if sine is negated.
inline void turn(simd::Float& low, simd::Float& high, simd::Float cosine, simd::Float sine) {
    const simd::Float u = low, v = high;
    low = u * cosine - v * sine;
    high = v * cosine + u * sine;
}

// A gradient of one head, in float, by the opposite of the angles of row i.
inline void turn_back(float* head, const RopeAngles& angles, std::int64_t i) {
    const std::int64_t half = angles.table.dim(1) / 2;
    const float *const cosine = angles.table.row(angles.positions[i]), *const sine = cosine + half;
    float* const other = head + half;
    simd::sweep(half, [&](auto at) {
        simd::Float low = at.load(head), high = at.load(other);
        turn(low, high, at.load(cosine), -at.load(sine));
        at.store(head, low);
        at.store(other, high);
    });
}

// `what` begins a message: a literal, because a check that passes must not allocate.
struct Names {
    const char *what, *table, *positions;
};
void check_angles(const Names& name, const RopeAngles& angles, std::int64_t rows, std::int64_t head_dim);
void check_positions(const Names& name, const RopeAngles& angles);  // where the host may read them

}  // namespace keel::rope
