// The CUDA bodies of kernels/head_norm.h: a warp takes one head of one token. Backward sums dgain over the slices of
// tokens of kernels/tiles.h: a block sums one slice, each of its warps in a row of shared memory of its own, then rows
// in order; then a second kernel adds the slices.
#include "kernels/cuda_ops.h"
#include "kernels/head_norm.h"
#include "kernels/norm.cuh"
#include "kernels/tiles.h"

namespace keel::KEEL_DEVICE {
namespace {

constexpr int warps = 8;

KEEL_INLINE int warp_of_block() { return static_cast<int>(threadIdx.x) / warp_size; }
KEEL_INLINE int lane_of_warp() { return static_cast<int>(threadIdx.x) % warp_size; }

// y may be x: a lane reads its elements before it writes them.
template <class T, int n>
__global__ void __launch_bounds__(warps* warp_size)
    forward_kernel(T* y, float* rstd, const T* x, const T* gain, std::int64_t y_stride, std::int64_t x_stride,
                   std::int64_t tokens, int heads, int head_dim, float eps) {
    const std::int64_t row = std::int64_t{blockIdx.x} * warps + warp_of_block();
    if (row >= tokens * heads) return;  // the whole warp
    const std::int64_t token = row / heads, head = row % heads * head_dim;
    x += token * x_stride + head;
    y += token * y_stride + head;
    float squares = 0;
    for (int i = lane_of_warp() * n; i < head_dim; i += warp_size * n) {
        const Pack<T, n> v = load<n>(x + i);
#pragma unroll
        for (int k = 0; k < n; ++k) squares += to_float(v.at[k]) * to_float(v.at[k]);
    }
    const float scale = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(head_dim) + eps);
    if (lane_of_warp() == 0) store(rstd + row, {scale});
    for (int i = lane_of_warp() * n; i < head_dim; i += warp_size * n) {
        Pack<T, n> v = load<n>(x + i);
        const Pack<T, n> g = load<n>(gain + i);
#pragma unroll
        for (int k = 0; k < n; ++k) v.at[k] = from_float<T>(rounded<T>(to_float(v.at[k]) * scale) * to_float(g.at[k]));
        store<n>(y + i, v);
    }
}

// Loops over a head are not unrolled: registers would spill.
// dx may be dy. partial[slice, :] = sum over the slice's tokens and heads of dy * x * rstd.
template <class T, int n>
__global__ void __launch_bounds__(warps* warp_size)
    backward_kernel(T* dx, float* partial, const T* dy, const T* x, const T* gain, const float* rstd,
                    std::int64_t dx_stride, std::int64_t dy_stride, std::int64_t x_stride, std::int64_t tokens,
                    std::int64_t slice_tokens, int heads, int head_dim) {
    KEEL_DYNAMIC_SHARED(float, sums);  // [warps][head_dim]
    float* const mine = sums + warp_of_block() * head_dim;
#pragma unroll 1
    for (int i = lane_of_warp() * n; i < head_dim; i += warp_size * n)
        for (int k = 0; k < n; ++k) mine[i + k] = 0;
    const std::int64_t slice = blockIdx.x, begin = slice * slice_tokens,
                       stop = begin + slice_tokens < tokens ? begin + slice_tokens : tokens;
    for (std::int64_t row = begin * heads + warp_of_block(); row < stop * heads; row += warps) {
        const std::int64_t token = row / heads, head = row % heads * head_dim;
        const T* const row_x = x + token * x_stride + head;
        const T* const row_dy = dy + token * dy_stride + head;
        const float scale = load(rstd + row).at[0];
        float dot = 0;
#pragma unroll 1
        for (int i = lane_of_warp() * n; i < head_dim; i += warp_size * n) {
            const Pack<T, n> v = load<n>(row_x + i), d = load<n>(row_dy + i), g = load<n>(gain + i);
#pragma unroll
            for (int k = 0; k < n; ++k) dot += to_float(d.at[k]) * to_float(g.at[k]) * to_float(v.at[k]);
        }
        const float mean = warp_sum(dot) * scale / static_cast<float>(head_dim);
#pragma unroll 1
        for (int i = lane_of_warp() * n; i < head_dim; i += warp_size * n) {
            const Pack<T, n> v = load<n>(row_x + i), g = load<n>(gain + i);
            Pack<T, n> d = load<n>(row_dy + i);
#pragma unroll
            for (int k = 0; k < n; ++k) {
                const float dk = to_float(d.at[k]), normed = to_float(v.at[k]) * scale;
                mine[i + k] += dk * normed;
                d.at[k] = from_float<T>((dk * to_float(g.at[k]) - normed * mean) * scale);
            }
            store<n>(dx + token * dx_stride + head + i, d);
        }
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < head_dim; i += warps * warp_size) {
        float total = sums[i];
        for (int w = 1; w < warps; ++w) total += sums[w * head_dim + i];
        store(partial + slice * head_dim + i, {total});
    }
}

template <class T>
void forward(Stream& stream, const HeadNormForward<T>& a) {
    using K = in_kernel<T>;
    const std::int64_t tokens = a.x.dim(0), head_dim = a.gain.dim(0), heads = a.x.dim(1) / head_dim;
    if (tokens * heads == 0) return;
    const auto go = [&](auto* kernel) {
        launch(stream, {.blocks = static_cast<unsigned>(ceil_div(tokens * heads, warps)), .threads = warps * warp_size},
               kernel, kernel_pointer(a.y), a.rstd.data(), kernel_pointer(a.x), kernel_pointer(a.gain), a.y.stride(),
               a.x.stride(), tokens, static_cast<int>(heads), static_cast<int>(head_dim), a.eps);
    };
    if (pieces_in_vectors_of(4, a.x, head_dim) && pieces_in_vectors_of(4, a.y, head_dim) && in_vectors_of(4, a.gain.data(), 0))
        go(forward_kernel<K, 4>);
    else
        go(forward_kernel<K, 1>);
}

template <class T>
void backward(Stream& stream, const HeadNormBackward<T>& a) {
    using K = in_kernel<T>;
    const std::int64_t tokens = a.x.dim(0), head_dim = a.gain.dim(0), heads = a.x.dim(1) / head_dim;
    if (tokens * heads == 0) return;
    const TokenSlices slices(tokens);
    float* const partial = reinterpret_cast<float*>(a.scratch.data());
    const auto go = [&](auto* kernel) {
        launch(stream,
               {.blocks = static_cast<unsigned>(slices.count()),
                .threads = warps * warp_size,
                .shared_bytes = sizeof(float) * static_cast<std::size_t>(warps * head_dim)},
               kernel, kernel_pointer(a.dx), partial, kernel_pointer(a.dy), kernel_pointer(a.x), kernel_pointer(a.gain),
               a.rstd.data(), a.dx.stride(), a.dy.stride(), a.x.stride(), tokens, slices.begin(1),
               static_cast<int>(heads), static_cast<int>(head_dim));
    };
    if (pieces_in_vectors_of(4, a.x, head_dim) && pieces_in_vectors_of(4, a.dx, head_dim) && pieces_in_vectors_of(4, a.dy, head_dim) &&
        in_vectors_of(4, a.gain.data(), 0))
        go(backward_kernel<K, 4>);
    else
        go(backward_kernel<K, 1>);
    add_partials(stream, a.dgain.data(), partial, slices.count(), head_dim);
}

}  // namespace

template <>
void run(Stream& stream, const HeadNormForward<float>& args) {
    forward(stream, args);
}
template <>
void run(Stream& stream, const HeadNormForward<bf16>& args) {
    forward(stream, args);
}
template <>
void run(Stream& stream, const HeadNormBackward<float>& args) {
    backward(stream, args);
}
template <>
void run(Stream& stream, const HeadNormBackward<bf16>& args) {
    backward(stream, args);
}

}  // namespace keel::KEEL_DEVICE
