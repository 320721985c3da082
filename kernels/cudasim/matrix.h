// kernels/cudasim/matrix.h: ldmatrix and mma.sync, each a collective over the fragments of all 32 lanes (PTX
// ISA 9.7.14).
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cudasim/block.h"

namespace sim {

struct LoadPart : Part {
    const void* row;
    std::uint32_t* registers;
};
const Collective& ldmatrix_collective(int matrices, bool transposed);  // 2 or 4 matrices

template <int matrices, bool transposed>
void ldmatrix(std::uint32_t (&registers)[matrices], const void* row, const Site& site) {
    LoadPart part{{&ldmatrix_collective(matrices, transposed), all_lanes, site}, row, registers};
    Block::current().join(part);
}

// d += a b, summed in double along k and rounded once: neither the order nor the truncation of any one GPU.
void mma_m16n8k16_bf16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1,
                       const Site& site);

inline float exp2_flushed(float x) {
    const float y = std::exp2(x);
    return y < 0x1p-126f ? 0.0f : y;  // NaN stays
}

}  // namespace sim
