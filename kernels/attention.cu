// The CUDA bodies of kernels/attention.h, forward. Two kernels:
//
// tiles    bf16, head_dim up to 128 in whole 16 bytes, aligned rows, scale above zero: tensor cores (sm_80). A block
//          takes one head and a tile of queries, each of its four warps some rows of it. Q, one tile of K and one of V
//          lie in shared memory; the next K comes while P V is computed, and V while Q K is. P goes from accumulator to
//          operand in registers. attention_hopper.cu takes their place on a stream that allows it (kernels/hopper.h).
// any      everything else, float among it: a warp per query and head, a lane per key.
//
// Tiles of keys begin at multiples of their size, counted from the row's beginning (key 0, not key_begin): what else is
// in the batch moves no bit, but a document that begins elsewhere in the row may.
#include "kernels/attention.h"

#include "kernels/attention_tiles.cuh"
#include "kernels/cuda_ops.h"

namespace keel::KEEL_DEVICE {
namespace {

constexpr int warps = 4, threads = warps * warp_size;

// What a kernel reads and writes; rows are `…_stride` elements apart.
template <class T>
struct Forward {
    T* y;
    float* lse;
    const T *q, *k, *v;
    const std::int32_t* lo;
    std::int64_t y_stride, q_stride, k_stride, v_stride;
    int tokens, kv_tokens, group, head_dim;
    int query_offset, key_begin;
    float scale;
};

template <int D, int blocks, int keys>
__global__ void __launch_bounds__(threads) tiles_kernel(Forward<__nv_bfloat16> a) {
    constexpr int queries = warps * blocks * 16;
    KEEL_DYNAMIC_SHARED(__nv_bfloat16, memory);
    __nv_bfloat16 *const q = memory, *const k = q + queries * D, *const v = k + keys * D;
    const int head = static_cast<int>(blockIdx.x), row = warp_of_block() * blocks * 16;
    const int first_query = static_cast<int>(gridDim.y - 1 - blockIdx.y) * queries;  // the longest first
    const int end_query = min(first_query + queries, a.tokens);
    const __nv_bfloat16* const k_head = a.k + head / a.group * a.head_dim;
    const __nv_bfloat16* const v_head = a.v + head / a.group * a.head_dim;

    // Keys that some query of the block sees lie in [bounds.least, end); all queries see those in [bounds.most,
    // all_end).
    const Bounds bounds = first_keys<queries, warps>(reinterpret_cast<Bounds*>(v + keys * D), a, first_query);
    const int end = last_key(a, end_query - 1) + 1, all_end = last_key(a, first_query) + 1;
    const auto copy_keys = [&](__nv_bfloat16* tile, const __nv_bfloat16* from, std::int64_t stride, int key) {
        copy_tile<D, keys, threads>(tile, from, stride, key - a.key_begin, bounds.least - a.key_begin,
                                    end - a.key_begin, a.head_dim);
    };

    // One warp's, `blocks` times 16 queries.
    float o[blocks][D / 8][4];
    Softmax softmax[blocks];
#pragma unroll
    for (int b = 0; b < blocks; ++b)
#pragma unroll
        for (int n = 0; n < D / 8; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) o[b][n][e] = 0;

    int key = bounds.least / keys * keys;
    copy_tile<D, queries, threads>(q, a.q + head * a.head_dim, a.q_stride, first_query, 0, a.tokens, a.head_dim);
    if (key < end) copy_keys(k, k_head, a.k_stride, key);
    cp_async_commit();
    const float c = a.scale * log2_e;
    for (; key < end; key += keys) {
        copy_keys(v, v_head, a.v_stride, key);
        cp_async_commit();
        cp_async_wait<1>();  // Q and this K are here
        __syncthreads();
        float s[blocks][keys / 8][4];
        multiply_transposed<D, blocks, keys>(s, q, k, row);
        __syncthreads();  // before K is overwritten
        if (key + keys < end) copy_keys(k, k_head, a.k_stride, key + keys);
        cp_async_commit();
        if (key < bounds.most || key + keys > all_end) {
#pragma unroll
            for (int b = 0; b < blocks; ++b) hide_unseen<keys>(s[b], a, first_query + row + b * 16, key);
        }
#pragma unroll
        for (int b = 0; b < blocks; ++b) {
            float keep[2];
            weigh<keys>(softmax[b], keep, s[b], c);
            scale_rows<D>(o[b], keep);
        }
        cp_async_wait<1>();  // V is here; the next K may still be on its way
        __syncthreads();
        add_product<D, blocks, keys>(o, s, v);
        __syncthreads();  // before V is overwritten
    }
    cp_async_wait<0>();
    __syncthreads();  // a tile that sees no key comes here straight: other threads' copies into Q have landed, too

#pragma unroll
    for (int b = 0; b < blocks; ++b) {
        float scale[2];
        finish_rows(scale, softmax[b], a, a.lse + std::int64_t{head} * a.tokens, first_query + row + b * 16);
        store_rows<D>(q, o[b], scale, row + b * 16, a.y + head * a.head_dim, a.y_stride, first_query, a.tokens,
                      a.head_dim);
    }
}

// A warp per query and head. Keys are taken 32 at a time, one by each lane, from the query's first on; for the weighted
// sum of values a lane owns every 32nd element of the head.
constexpr int most_head_dim = 256;
template <class T>
__global__ void __launch_bounds__(threads) any_kernel(Forward<T> a, int heads) {
    KEEL_SHARED(float, queries, [warps][most_head_dim]);
    const int lane = static_cast<int>(threadIdx.x) % warp_size, warp = static_cast<int>(threadIdx.x) / warp_size;
    const std::int64_t at = std::int64_t{blockIdx.x} * warps + warp;
    if (at >= std::int64_t{a.tokens} * heads) return;  // the whole warp
    const int i = static_cast<int>(at / heads), head = static_cast<int>(at % heads);
    float* const q = queries[warp];
    for (int d = lane; d < a.head_dim; d += warp_size)
        q[d] = to_float(load(a.q + i * a.q_stride + head * a.head_dim + d).at[0]);
    __syncwarp();
    const T* const k = a.k + head / a.group * a.head_dim;
    const T* const v = a.v + head / a.group * a.head_dim;
    const int last = last_key(a, i);
    float o[most_head_dim / warp_size] = {};
    float top = -INFINITY, sum = 0;
    for (int key = first_key(a, i); key <= last; key += warp_size) {
        const int here = min(last - key + 1, warp_size);  // keys of this round
        float s = -INFINITY;
        if (lane < here) {
            s = 0;
            const T* const mine = k + (key + lane - a.key_begin) * a.k_stride;
            for (int d = 0; d < a.head_dim; ++d) s += q[d] * to_float(load(mine + d).at[0]);
            s *= a.scale;
        }
        const float higher = fmaxf(top, warp_max(s)), keep = expf(top - higher), p = expf(s - higher);
        top = higher;
        sum = sum * keep + p;  // this lane's keys
#pragma unroll
        for (float& x : o) x *= keep;
        for (int n = 0; n < here; ++n) {
            const float weight = __shfl_sync(all_lanes, p, n);
            const T* const values = v + (key + n - a.key_begin) * a.v_stride;
#pragma unroll
            for (int e = 0; e < most_head_dim / warp_size; ++e)
                if (const int d = e * warp_size + lane; d < a.head_dim)
                    o[e] += weight * to_float(load(values + d).at[0]);
        }
    }
    sum = warp_sum(sum);
    const bool any = sum > 0;
    if (lane == 0) store(a.lse + std::int64_t{head} * a.tokens + i, {any ? top + logf(sum) : -INFINITY});
#pragma unroll
    for (int e = 0; e < most_head_dim / warp_size; ++e)
        if (const int d = e * warp_size + lane; d < a.head_dim)
            store(a.y + i * a.y_stride + head * a.head_dim + d, {from_float<T>(any ? o[e] / sum : 0.0f)});
}

template <class T>
Forward<in_kernel<T>> arguments(const AttentionForward<T>& a) {
    return {.y = kernel_pointer(a.y),
            .lse = a.lse.data(),
            .q = kernel_pointer(a.q),
            .k = kernel_pointer(a.k),
            .v = kernel_pointer(a.v),
            .lo = a.lo.data(),
            .y_stride = a.y.stride(),
            .q_stride = a.q.stride(),
            .k_stride = a.k.stride(),
            .v_stride = a.v.stride(),
            .tokens = static_cast<int>(a.q.dim(0)),
            .kv_tokens = static_cast<int>(a.k.dim(0)),
            .group = static_cast<int>(a.q.dim(1) / a.k.dim(1)),
            .head_dim = static_cast<int>(a.head_dim),
            .query_offset = static_cast<int>(a.query_offset),
            .key_begin = static_cast<int>(a.key_begin),
            .scale = a.scale};
}

template <int D, int blocks, int keys>
void forward_tiles(Stream& stream, const Forward<__nv_bfloat16>& a, int heads) {
    constexpr int queries = warps * blocks * 16;
    launch(stream,
           {.blocks = {static_cast<unsigned>(heads), static_cast<unsigned>(ceil_div(a.tokens, queries))},
            .threads = threads,
            .shared_bytes = sizeof(__nv_bfloat16) * (queries + 2 * keys) * D + sizeof(Bounds) * warps},
           tiles_kernel<D, blocks, keys>, a);
}
template <class T>
void forward_any(Stream& stream, const Forward<T>& a, int heads) {
    launch(stream,
           {.blocks = static_cast<unsigned>(ceil_div(std::int64_t{a.tokens} * heads, warps)), .threads = threads},
           any_kernel<T>, a, heads);
}

}  // namespace

// attention_hopper.cu; where it is built.
void attention_forward_hopper(Stream& stream, const AttentionForward<bf16>& args);

template <>
void run(Stream& stream, const AttentionForward<float>& args) {
    forward_any(stream, arguments(args), static_cast<int>(args.q.dim(1) / args.head_dim));
}
template <>
void run(Stream& stream, const AttentionForward<bf16>& args) {
    const int heads = static_cast<int>(args.q.dim(1) / args.head_dim);
    const auto in_chunks = [](const auto& view) { return in_vectors_of(8, view.data(), view.stride()); };
    const bool aligned =
        args.head_dim % 8 == 0 && in_chunks(args.y) && in_chunks(args.q) && in_chunks(args.k) && in_chunks(args.v);
    if (!aligned || args.head_dim > 128 || !(args.scale > 0) || args.k.dim(0) == 0)
        forward_any(stream, arguments(args), heads);
#if KEEL_HOPPER || !defined(__CUDACC__)
    else if (stream.hopper())
        attention_forward_hopper(stream, args);
#endif
    else if (args.head_dim <= 64)
        forward_tiles<64, 2, 64>(stream, arguments(args), heads);
    else
        forward_tiles<128, 1, 64>(stream, arguments(args), heads);
}

}  // namespace keel::KEEL_DEVICE
