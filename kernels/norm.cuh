// kernels/norm.cuh: what the norms' kernels share: the sum of a block, and the last step of a gain's gradient.
#pragma once

#include "kernels/device.cuh"

namespace keel::KEEL_DEVICE {

// The sum of x over the block, in a fixed tree, for every thread of it. `partial` has a place for every warp.
KEEL_INLINE float block_sum(float x, float* partial) {
    const int warp = static_cast<int>(threadIdx.x) / warp_size, lane = static_cast<int>(threadIdx.x) % warp_size;
    const int warps = static_cast<int>(blockDim.x) / warp_size;
    x = warp_sum(x);
    if (lane == 0) partial[warp] = x;
    __syncthreads();
    x = warp_sum(lane < warps ? partial[lane] : 0.0f);
    __syncthreads();  // before the next sum writes `partial`
    return x;
}

// dgain[i] += the sum over slices of partial[slice, i]. A block takes 32 columns; its warp w adds slices w, w + 8, …,
// and the eight sums are added in order: the same tree on any GPU.
constexpr int partials_warps = 8;
static __global__ void __launch_bounds__(partials_warps* warp_size)
    add_partials_kernel(float* dgain, const float* partial, int slices, int columns) {
    KEEL_SHARED(float, sums, [partials_warps][warp_size]);
    const int warp = static_cast<int>(threadIdx.x) / warp_size, lane = static_cast<int>(threadIdx.x) % warp_size;
    const int i = static_cast<int>(blockIdx.x) * warp_size + lane;
    float sum = 0;
    if (i < columns)
        for (int s = warp; s < slices; s += partials_warps) sum += load(partial + std::int64_t{s} * columns + i).at[0];
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || i >= columns) return;
#pragma unroll
    for (int w = 1; w < partials_warps; ++w) sum += sums[w][lane];
    store(dgain + i, {load(dgain + i).at[0] + sum});
}
inline void add_partials(Stream& stream, float* dgain, const float* partial, std::int64_t slices,
                         std::int64_t columns) {
    launch(stream,
           {.blocks = static_cast<unsigned>(ceil_div(columns, std::int64_t{warp_size})),
            .threads = partials_warps * warp_size},
           add_partials_kernel, dgain, partial, static_cast<int>(slices), static_cast<int>(columns));
}

}  // namespace keel::KEEL_DEVICE
