// comm/nccl_sum.cuh: what ranks brought, in the memory of one GPU, reduced in the order of ranks: comm/sum.h on a GPU,
// with the same bits.
#pragma once

#include "comm/group.h"
#include "kernels/flat.cuh"

namespace keel::KEEL_DEVICE {

// The type that elements are summed in.
template <class T>
struct Wide {
    using type = T;
};
template <>
struct Wide<__nv_bfloat16> {
    using type = float;
};
template <>
struct Wide<std::int64_t> {
    using type = std::uint64_t;  // wraps around
};
template <class T>
KEEL_INLINE typename Wide<T>::type widened(T x) {
    return static_cast<typename Wide<T>::type>(x);
}
KEEL_INLINE float widened(__nv_bfloat16 x) { return to_float(x); }
template <class T, class W>
KEEL_INLINE T narrowed(W x) {
    if constexpr (std::is_same_v<T, __nv_bfloat16>)
        return from_float<T>(x);
    else
        return static_cast<T>(x);
}
// A NaN is the largest.
template <class W>
KEEL_INLINE W larger(W a, W b) {
    if constexpr (std::is_floating_point_v<W>)
        return !(a >= b) && a == a ? b : a;
    else
        return static_cast<std::int64_t>(a) < static_cast<std::int64_t>(b) ? b : a;
}

// Rank r's elements lie at parts + r * stride, but those of `rank` at own. out may be own.
template <class T, int n, bool largest>
__global__ void __launch_bounds__(flat_threads)
    reduce_ranks_kernel(T* out, const T* own, const T* parts, std::int64_t stride, std::int64_t count, int ranks,
                        int rank) {
    const std::int64_t i = flat_element(n);
    if (i >= count) return;
    typename Wide<T>::type sum[n] = {};
    for (int r = 0; r < ranks; ++r) {
        const Pack<T, n> x = load<n>((r == rank ? own : parts + r * stride) + i);
#pragma unroll
        for (int k = 0; k < n; ++k)
            sum[k] = r == 0 ? widened(x.at[k]) : largest ? larger(sum[k], widened(x.at[k])) : sum[k] + widened(x.at[k]);
    }
    Pack<T, n> y;
#pragma unroll
    for (int k = 0; k < n; ++k) y.at[k] = narrowed<T>(sum[k]);
    store<n>(out + i, y);
}

template <class T>
void reduce_ranks(Stream& stream, bool largest, std::byte* out, const std::byte* own, const std::byte* parts,
                  std::int64_t stride_bytes, std::int64_t count, int ranks, int rank) {
    const auto as = [](auto* p) {
        return reinterpret_cast<std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(p)>>, const T*, T*>>(
            p);
    };
    constexpr int n = widest<T>;
    const std::int64_t stride = stride_bytes / static_cast<std::int64_t>(sizeof(T));
    const bool vectors =
        in_vectors_of(n, as(out), count) && in_vectors_of(n, as(own), count) && in_vectors_of(n, as(parts), stride);
    const auto go = [&](auto* kernel, int width) {
        launch(stream, flat_shape(count, width), kernel, as(out), as(own), as(parts), stride, count, ranks, rank);
    };
    if (vectors)
        go(largest ? reduce_ranks_kernel<T, n, true> : reduce_ranks_kernel<T, n, false>, n);
    else
        go(largest ? reduce_ranks_kernel<T, 1, true> : reduce_ranks_kernel<T, 1, false>, 1);
}

inline void reduce_ranks(Stream& stream, const Group::Call& call, std::byte* out, const std::byte* own,
                         const std::byte* parts, std::int64_t stride_bytes, std::int64_t count, int ranks, int rank) {
    const bool largest = call.kind == Collective::all_reduce_max;
    switch (call.element) {
        case Element::f32:
            return reduce_ranks<float>(stream, largest, out, own, parts, stride_bytes, count, ranks, rank);
        case Element::f64:
            return reduce_ranks<double>(stream, largest, out, own, parts, stride_bytes, count, ranks, rank);
        case Element::bf16:
            return reduce_ranks<__nv_bfloat16>(stream, largest, out, own, parts, stride_bytes, count, ranks, rank);
        case Element::i64:
            return reduce_ranks<std::int64_t>(stream, largest, out, own, parts, stride_bytes, count, ranks, rank);
        case Element::f16:  // the CPU's alone
        case Element::raw:
            break;
    }
    fail("nccl: raw bytes have no sum");
}

}  // namespace keel::KEEL_DEVICE
