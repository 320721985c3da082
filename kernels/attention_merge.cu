// The CUDA bodies of kernels/attention_merge.h. Merging, a warp takes one head of one token; the other two go element
// by element.
#include "kernels/attention_merge.h"

#include "kernels/cuda_ops.h"
#include "kernels/flat.cuh"

namespace keel::KEEL_DEVICE {
namespace {

constexpr int warps = 8;

struct Weights {
    float sum, part, lse;
};
// e^(lse - l) and e^(part - l), as shares relative to the larger: l itself is rounded, and far from 0 that would be an
// error of both.
KEEL_INLINE Weights weights(float lse, float part) {
    const float most = fmaxf(lse, part);
    if (most == -INFINITY) return {0, 0, most};
    const float a = expf(lse - most), b = expf(part - most), total = a + b;
    return {a / total, b / total, most + logf(total)};
}

template <class T>
struct Merge {
    float *sum, *lse;
    const T* part;
    const float* part_lse;
    std::int64_t sum_stride, part_stride, tokens;
    int heads, head_dim;
    bool accumulate;
};

template <class T, int n>
__global__ void __launch_bounds__(warps* warp_size) merge_kernel(Merge<T> a) {
    const int lane = static_cast<int>(threadIdx.x) % warp_size;
    const std::int64_t at = std::int64_t{blockIdx.x} * warps + threadIdx.x / warp_size;
    if (at >= a.tokens * a.heads) return;  // the whole warp
    const std::int64_t token = at / a.heads, head = at % a.heads, of_row = head * a.tokens + token;
    float* const sum = a.sum + token * a.sum_stride + head * a.head_dim;
    const T* const part = a.part + token * a.part_stride + head * a.head_dim;
    const float part_lse = load(a.part_lse + of_row).at[0];
    Weights w{0, 1, part_lse};
    if (a.accumulate) {
        w = weights(load(a.lse + of_row).at[0], part_lse);
        if (w.part == 0) return;  // the whole warp: not a bit changes
        __syncwarp();             // every lane has read lse
    }
    if (lane == 0) store(a.lse + of_row, {w.lse});
    for (int i = lane * n; i < a.head_dim; i += warp_size * n) {
        const Pack<T, n> add = load<n>(part + i);
        Pack<float, n> v;
        if (a.accumulate) v = load<n>(sum + i);
#pragma unroll
        for (int k = 0; k < n; ++k)
            v.at[k] = a.accumulate ? v.at[k] * w.sum + to_float(add.at[k]) * w.part : to_float(add.at[k]);
        store<n>(sum + i, v);
    }
}

// y = x, or y += x, for matrices of strided rows; `columns` is a multiple of n.
template <bool accumulate, class Y, class X, int n>
__global__ void __launch_bounds__(flat_threads)
    rows_kernel(Y* y, const X* x, std::int64_t y_stride, std::int64_t x_stride, std::int64_t rows,
                std::int64_t columns) {
    const std::int64_t i = flat_element(n);
    if (i >= rows * columns) return;
    y += i / columns * y_stride + i % columns;
    x += i / columns * x_stride + i % columns;
    const Pack<X, n> v = load<n>(x);
    Pack<Y, n> out;
    if constexpr (accumulate) out = load<n>(y);
#pragma unroll
    for (int k = 0; k < n; ++k)
        out.at[k] = from_float<Y>(accumulate ? to_float(out.at[k]) + to_float(v.at[k]) : to_float(v.at[k]));
    store<n>(y, out);
}

template <class T>
void merge(Stream& stream, const AttentionMerge<T>& args) {
    using K = in_kernel<T>;
    const std::int64_t heads = args.lse.dim(0), tokens = args.lse.dim(1), head_dim = args.sum.dim(1) / heads;
    if (tokens * head_dim == 0) return;
    const Merge<K> a{.sum = args.sum.data(),
                     .lse = args.lse.data(),
                     .part = kernel_pointer(args.part),
                     .part_lse = args.part_lse.data(),
                     .sum_stride = args.sum.stride(),
                     .part_stride = args.part.stride(),
                     .tokens = tokens,
                     .heads = static_cast<int>(heads),
                     .head_dim = static_cast<int>(head_dim),
                     .accumulate = args.accumulate};
    launch(stream, {.blocks = static_cast<unsigned>(ceil_div(tokens * heads, warps)), .threads = warps * warp_size},
           pieces_in_vectors_of(4, args.sum, head_dim) && pieces_in_vectors_of(4, args.part, head_dim)
               ? merge_kernel<K, 4>
               : merge_kernel<K, 1>,
           a);
}

template <bool accumulate, class Y, class X>
void each_element(Stream& stream, const View<Y>& y, const View<X>& x) {
    using A = in_kernel<Y>;
    using B = in_kernel<std::remove_const_t<X>>;
    const std::int64_t rows = y.dim(0), columns = y.dim(1);
    if (rows * columns == 0) return;
    const bool fours = pieces_in_vectors_of(4, y, columns) && pieces_in_vectors_of(4, x, columns);
    launch(stream, flat_shape(rows * columns, fours ? 4 : 1),
           fours ? rows_kernel<accumulate, A, B, 4> : rows_kernel<accumulate, A, B, 1>, kernel_pointer(y),
           kernel_pointer(x), y.stride(), x.stride(), rows, columns);
}

}  // namespace

template <>
void run(Stream& stream, const AttentionMerge<float>& args) {
    merge(stream, args);
}
template <>
void run(Stream& stream, const AttentionMerge<bf16>& args) {
    merge(stream, args);
}
template <>
void run(Stream& stream, const AddPart<float>& args) {
    each_element<true>(stream, args.sum, args.part);
}
template <>
void run(Stream& stream, const AddPart<bf16>& args) {
    each_element<true>(stream, args.sum, args.part);
}
template <>
void run(Stream& stream, const RoundSum<float>& args) {
    each_element<false>(stream, args.y, args.sum);
}
template <>
void run(Stream& stream, const RoundSum<bf16>& args) {
    each_element<false>(stream, args.y, args.sum);
}

}  // namespace keel::KEEL_DEVICE
