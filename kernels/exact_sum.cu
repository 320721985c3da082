// The CUDA bodies of kernels/exact_sum.h: integers add exactly, so atomics give the same bits in any order, and the
// limbs of squares are those of the CPU, whose tiles the blocks here take.
#include "kernels/exact_sum.h"

#include <cmath>

#include "kernels/cuda_ops.h"
#include "kernels/flat.cuh"
#include "kernels/tiles.h"

namespace keel::KEEL_DEVICE {
namespace {

constexpr int most_blocks = 1024;     // of max_abs: enough to fill any GPU
using wrapping = unsigned long long;  // what 64-bit atomics are made for; sums wrap around like the CPU's

__global__ void __launch_bounds__(flat_threads)
    add_kernel(std::int64_t* q, const float* x, std::int64_t size, double factor) {
    const std::int64_t i = flat_element(1);
    if (i >= size) return;
    const long long add = llrint(static_cast<double>(load(x + i).at[0]) * factor);
    store(q + i, {static_cast<std::int64_t>(static_cast<wrapping>(load(q + i).at[0]) + static_cast<wrapping>(add))});
}

__global__ void __launch_bounds__(flat_threads)
    read_kernel(float* y, const std::int64_t* q, std::int64_t size, int scale) {
    const std::int64_t i = flat_element(1);
    if (i < size) store(y + i, {ldexpf(static_cast<float>(load(q + i).at[0]), -scale)});
}

// Without their sign the bits of floats are ordered as integers, NaN above infinity.
__global__ void __launch_bounds__(flat_threads) max_kernel(unsigned* out, const float* x, std::int64_t size) {
    unsigned most = 0;
    for (std::int64_t i = flat_element(1); i < size; i += std::int64_t{gridDim.x} * flat_threads)
        most = max(most, __float_as_uint(load(x + i).at[0]) & 0x7fffffffu);
#pragma unroll
    for (int half = warp_size / 2; half > 0; half /= 2) most = max(most, __shfl_xor_sync(all_lanes, most, half));
    if (threadIdx.x % warp_size == 0) atomicMax(out, most);
}

// A block adds one tile: each square in a low part of 40 bits and the rest, then the tile's sum as three limbs.
constexpr int limb_bits = 40;
constexpr wrapping limb_mask = (wrapping{1} << limb_bits) - 1;
__global__ void __launch_bounds__(flat_threads)
    squares_kernel(wrapping* limbs, const float* x, std::int64_t size, double factor) {
    constexpr int warps = flat_threads / warp_size;
    KEEL_SHARED(wrapping, lows, [warps]);
    KEEL_SHARED(wrapping, highs, [warps]);
    const std::int64_t begin = blockIdx.x * tile_elements,
                       end = begin + tile_elements < size ? begin + tile_elements : size;
    wrapping low = 0, high = 0;  // of 2^15 numbers below 2^40 and 2^24
    for (std::int64_t i = begin + threadIdx.x; i < end; i += flat_threads) {
        const double v = static_cast<double>(load(x + i).at[0]);  // its square is exact in double
        const auto square = static_cast<wrapping>(llrint(v * v * factor));
        low += square & limb_mask, high += square >> limb_bits;
    }
#pragma unroll
    for (int half = warp_size / 2; half > 0; half /= 2) {
        low += __shfl_xor_sync(all_lanes, low, half);
        high += __shfl_xor_sync(all_lanes, high, half);
    }
    if (threadIdx.x % warp_size == 0) lows[threadIdx.x / warp_size] = low, highs[threadIdx.x / warp_size] = high;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int w = 1; w < warps; ++w) low += lows[w], high += highs[w];
    high += low >> limb_bits;
    atomicAdd(limbs, low & limb_mask);
    atomicAdd(limbs + 1, high & limb_mask);
    atomicAdd(limbs + 2, high >> limb_bits);
}

}  // namespace

template <>
void run(Stream& stream, const ExactAdd& args) {
    if (args.x.size() > 0)
        launch(stream, flat_shape(args.x.size(), 1), add_kernel, args.q.data(), args.x.data(), args.x.size(),
               std::ldexp(1.0, args.scale));
}
template <>
void run(Stream& stream, const ExactRead& args) {
    if (args.q.size() > 0)
        launch(stream, flat_shape(args.q.size(), 1), read_kernel, args.y.data(), args.q.data(), args.q.size(),
               args.scale);
}
template <>
void run(Stream& stream, const MaxAbs& args) {
    if (!args.accumulate)
        check(cudaMemsetAsync(args.out.data(), 0, sizeof(float), static_cast<cudaStream_t>(stream.native())));
    Shape shape = flat_shape(args.x.size(), 1);
    if (shape.blocks.x > most_blocks) shape.blocks.x = most_blocks;
    if (args.x.size() > 0)
        launch(stream, shape, max_kernel, reinterpret_cast<unsigned*>(args.out.data()), args.x.data(), args.x.size());
}
template <>
void run(Stream& stream, const ExactSquares& args) {
    if (args.x.size() > 0)
        launch(stream,
               {.blocks = static_cast<unsigned>(ceil_div(args.x.size(), tile_elements)), .threads = flat_threads},
               squares_kernel, reinterpret_cast<wrapping*>(args.limbs.data()), args.x.data(), args.x.size(),
               std::ldexp(1.0, args.scale));
}

}  // namespace keel::KEEL_DEVICE
