// The CUDA bodies of kernels/reduce.h but for hash (hash.cu). A warp makes one partial result, lane i the accumulator i of the
// tree that the header fixes, so that a GPU and a CPU agree bit for bit. One warp then adds the partial results in
// order: a value read by every lane at once and passed around, so that only the additions wait for one another.
#include "kernels/cuda_ops.h"
#include "kernels/device.cuh"
#include "kernels/reduce.h"

namespace keel::KEEL_DEVICE {
namespace {

static_assert(reduce_lanes == warp_size);
constexpr int warps = 8;

// What an element adds. The square is exact, so it is the same whether or not it is fused with the addition.
struct Square {
    using Result = double;
    KEEL_INLINE static double of(float x) { return static_cast<double>(x) * static_cast<double>(x); }
};
struct Itself {
    using Result = double;
    KEEL_INLINE static double of(float x) { return static_cast<double>(x); }
};
struct Nonfinite {
    using Result = long long;
    KEEL_INLINE static long long of(float x) { return (__float_as_uint(x) & 0x7f800000u) == 0x7f800000u ? 1 : 0; }
};

template <class Term>
__global__ void __launch_bounds__(warps* warp_size)
    blocks_kernel(typename Term::Result* partial, const float* x, std::int64_t size) {
    const std::int64_t block = std::int64_t{blockIdx.x} * warps + threadIdx.x / warp_size, begin = block * reduce_block;
    if (begin >= size) return;  // the whole warp
    const int lane = static_cast<int>(threadIdx.x) % warp_size;
    const int elements = static_cast<int>(size - begin < reduce_block ? size - begin : reduce_block);
    typename Term::Result total = 0;
#pragma unroll 8
    for (int i = lane; i < elements; i += warp_size) total += Term::of(load(x + begin + i).at[0]);
#pragma unroll
    for (int half = warp_size / 2; half > 0; half /= 2) total += __shfl_xor_sync(all_lanes, total, half);
    if (lane == 0) store(partial + block, {total});
}

template <class Result>
__global__ void __launch_bounds__(warp_size) in_order_kernel(Result* out, const Result* partial, std::int64_t blocks) {
    const int lane = static_cast<int>(threadIdx.x);
    Result total = 0;
    for (std::int64_t b = 0; b < blocks; b += warp_size) {
        const Result mine = b + lane < blocks ? load(partial + b + lane).at[0] : Result{0};
        const int here = static_cast<int>(blocks - b < warp_size ? blocks - b : warp_size);
        for (int i = 0; i < here; ++i) total += __shfl_sync(all_lanes, mine, i);
    }
    if (lane == 0) store(out, {total});
}

template <class Term, class Args>
void reduce(Stream& stream, const Args& a) {
    using Result = typename Term::Result;
    static_assert(sizeof(Result) == sizeof(a.out[0]));
    auto* const partial = reinterpret_cast<Result*>(a.scratch.data());
    const std::int64_t size = a.x.size(), blocks = ceil_div(size, reduce_block);
    if (blocks > 0)
        launch(stream, {.blocks = static_cast<unsigned>(ceil_div(blocks, warps)), .threads = warps * warp_size},
               blocks_kernel<Term>, partial, a.x.data(), size);
    launch(stream, {.blocks = 1, .threads = warp_size}, in_order_kernel<Result>,
           reinterpret_cast<Result*>(a.out.data()), partial, blocks);
}

}  // namespace

template <>
void run(Stream& stream, const SumOfSquares& args) {
    reduce<Square>(stream, args);
}
template <>
void run(Stream& stream, const Sum& args) {
    reduce<Itself>(stream, args);
}
template <>
void run(Stream& stream, const CountNonfinite& args) {
    reduce<Nonfinite>(stream, args);
}

}  // namespace keel::KEEL_DEVICE
