// The CUDA bodies of kernels/cross_entropy.h: a block takes one row of logits. Statistics are online: a thread keeps
// its own maximum and the sum of exponentials below it; threads are joined in a fixed tree.
#include <cfloat>

#include "kernels/cross_entropy.h"
#include "kernels/cuda_ops.h"
#include "kernels/device.cuh"

namespace keel::KEEL_DEVICE {
namespace {

constexpr int threads = 512, warps = threads / warp_size;

// The maximum starts at the least finite number, so that a shard of -infinity alone gives sum 0 and not inf - inf.
struct RowStats {
    float max, sum;
};
KEEL_INLINE RowStats of_nothing() { return {-FLT_MAX, 0.0f}; }
KEEL_INLINE RowStats joined(RowStats a, RowStats b) {
    const float max = fmaxf(a.max, b.max);
    return {max, a.sum * expf(a.max - max) + b.sum * expf(b.max - max)};
}
KEEL_INLINE RowStats joined_over_warp(RowStats a) {
#pragma unroll
    for (int half = warp_size / 2; half > 0; half /= 2)
        a = joined(a, {__shfl_xor_sync(all_lanes, a.max, half), __shfl_xor_sync(all_lanes, a.sum, half)});
    return a;
}

template <int n>
__global__ void __launch_bounds__(threads)
    stats_kernel(float* max, float* sum, float* target, const float* logits, const std::int32_t* labels,
                 std::int64_t stride, std::int64_t vocab, std::int64_t vocab_begin) {
    KEEL_SHARED(RowStats, of_warp, [warps]);
    const std::int64_t token = blockIdx.x;
    const float* const row = logits + token * stride;
    RowStats mine = of_nothing();
    for (std::int64_t i = std::int64_t{threadIdx.x} * n; i < vocab; i += threads * n) {
        const Pack<float, n> v = load<n>(row + i);
        float top = mine.max;
#pragma unroll
        for (int k = 0; k < n; ++k) top = fmaxf(top, v.at[k]);
        mine.sum *= expf(mine.max - top);  // once per n
        mine.max = top;
#pragma unroll
        for (int k = 0; k < n; ++k) mine.sum += expf(v.at[k] - top);
    }
    mine = joined_over_warp(mine);
    const int warp = static_cast<int>(threadIdx.x) / warp_size, lane = static_cast<int>(threadIdx.x) % warp_size;
    if (lane == 0) of_warp[warp] = mine;
    __syncthreads();
    if (warp > 0) return;
    mine = joined_over_warp(lane < warps ? of_warp[lane] : of_nothing());
    if (lane > 0) return;
    const std::int32_t label = load(labels + token).at[0];
    const std::int64_t column = label - vocab_begin;
    store(max + token, {mine.max});
    store(sum + token, {mine.sum});
    store(target + token, {label >= 0 && column >= 0 && column < vocab ? load(row + column).at[0] : 0.0f});
}

__global__ void __launch_bounds__(threads)
    merge_kernel(float* sum, const float* max, const float* common, std::int64_t tokens) {
    const std::int64_t t = std::int64_t{blockIdx.x} * threads + threadIdx.x;
    if (t >= tokens) return;
    store(sum + t, {load(sum + t).at[0] * expf(load(max + t).at[0] - load(common + t).at[0])});
}

// max - target is exact or nearly so for logits of any size; lse itself would first lose the small part of a large one.
KEEL_INLINE float loss_of(float max, float sum, float target) { return logf(sum) + (max - target); }

// dlogits may be logits: a thread reads its elements before it writes them.
template <class T, int n>
__global__ void __launch_bounds__(threads)
    grad_kernel(float* loss, T* dlogits, const float* logits, const std::int32_t* labels, const float* max,
                const float* sum, const float* target, std::int64_t dlogits_stride, std::int64_t stride,
                std::int64_t vocab, std::int64_t vocab_begin, float z_loss, float grad_scale) {
    const std::int64_t token = blockIdx.x;
    const float* const row = logits + token * stride;
    T* const to = dlogits + token * dlogits_stride;
    const std::int32_t label = load(labels + token).at[0];
    const bool ignored = label < 0;
    const float top = load(max + token).at[0], total = load(sum + token).at[0], lse = top + logf(total);
    const float scale = grad_scale * (1.0f + 2.0f * z_loss * lse) / total;
    if (threadIdx.x == 0)
        store(loss + token, {ignored ? 0.0f : loss_of(top, total, load(target + token).at[0]) + z_loss * lse * lse});
    for (std::int64_t i = std::int64_t{threadIdx.x} * n; i < vocab; i += threads * n) {
        const Pack<float, n> v = load<n>(row + i);
        Pack<T, n> d;
#pragma unroll
        for (int k = 0; k < n; ++k) {
            const float g = expf(v.at[k] - top) * scale - (vocab_begin + i + k == label ? grad_scale : 0.0f);
            d.at[k] = from_float<T>(ignored ? 0.0f : g);
        }
        store<n>(to + i, d);
    }
}

__global__ void __launch_bounds__(threads) loss_kernel(float* loss, const std::int32_t* labels, const float* max,
                                                       const float* sum, const float* target, std::int64_t tokens) {
    const std::int64_t t = std::int64_t{blockIdx.x} * threads + threadIdx.x;
    if (t >= tokens) return;
    const float value = loss_of(load(max + t).at[0], load(sum + t).at[0], load(target + t).at[0]);
    store(loss + t, {load(labels + t).at[0] < 0 ? 0.0f : value});
}

Shape a_thread_each(std::int64_t n) {
    return {.blocks = static_cast<unsigned>(ceil_div(n, threads)), .threads = threads};
}
Shape a_block_each(std::int64_t n) { return {.blocks = static_cast<unsigned>(n), .threads = threads}; }

template <class T>
void grad(Stream& stream, const CrossEntropyGrad<T>& a) {
    using K = in_kernel<T>;
    const std::int64_t tokens = a.logits.dim(0), vocab = a.logits.dim(1);
    if (tokens == 0) return;
    const auto go = [&](auto* kernel) {
        launch(stream, a_block_each(tokens), kernel, a.loss.data(), kernel_pointer(a.dlogits), a.logits.data(),
               a.labels.data(), a.max.data(), a.sum.data(), a.target.data(), a.dlogits.stride(), a.logits.stride(),
               vocab, a.vocab_begin, a.z_loss, a.scale);
    };
    if (pieces_in_vectors_of(4, a.logits, a.logits.dim(1)) && pieces_in_vectors_of(4, a.dlogits, a.dlogits.dim(1)))
        go(grad_kernel<K, 4>);
    else
        go(grad_kernel<K, 1>);
}

}  // namespace

template <>
void run(Stream& stream, const CrossEntropyStats& a) {
    const std::int64_t tokens = a.logits.dim(0), vocab = a.logits.dim(1);
    if (tokens == 0) return;
    launch(stream, a_block_each(tokens), pieces_in_vectors_of(4, a.logits, a.logits.dim(1)) ? stats_kernel<4> : stats_kernel<1>, a.max.data(),
           a.sum.data(), a.target.data(), a.logits.data(), a.labels.data(), a.logits.stride(), vocab, a.vocab_begin);
}
template <>
void run(Stream& stream, const CrossEntropyMerge& a) {
    const std::int64_t tokens = a.sum.dim(0);
    if (tokens > 0)
        launch(stream, a_thread_each(tokens), merge_kernel, a.sum.data(), a.max.data(), a.common.data(), tokens);
}
template <>
void run(Stream& stream, const CrossEntropyGrad<float>& args) {
    grad(stream, args);
}
template <>
void run(Stream& stream, const CrossEntropyGrad<bf16>& args) {
    grad(stream, args);
}
template <>
void run(Stream& stream, const CrossEntropyLoss& a) {
    const std::int64_t tokens = a.loss.dim(0);
    if (tokens > 0)
        launch(stream, a_thread_each(tokens), loss_kernel, a.loss.data(), a.labels.data(), a.max.data(), a.sum.data(),
               a.target.data(), tokens);
}

}  // namespace keel::KEEL_DEVICE
