// kernels/attention_tiles.cuh: what the tensor-core kernels of attention share. A tile is rows of a head in shared
// memory; a warp owns 16 rows of it (or 16 `blocks`), multiplies them with all rows of another tile, and keeps the
// products in registers, in the layout of mma.cuh: a thread holds rows lane / 4 and lane / 4 + 8.
#pragma once

#include <cmath>

#include "kernels/async.cuh"
#include "kernels/device.cuh"
#include "kernels/mma.cuh"
#include "kernels/rope.cuh"

namespace keel::KEEL_DEVICE {

constexpr float log2_e = 1.44269504f;

KEEL_INLINE int warp_of_block() { return static_cast<int>(threadIdx.x) / warp_size; }
KEEL_INLINE int lane_of_warp() { return static_cast<int>(threadIdx.x) % warp_size; }

// Of query i: the last key it sees of those given, counted like lo from the row's beginning; it may lie before lo.
template <class Args>
KEEL_INLINE int last_key(const Args& a, int i) {
    return min(a.query_offset + i, a.key_begin + a.kv_tokens - 1);
}
template <class Args>
KEEL_INLINE int first_key(const Args& a, int i) {
    return max(load(a.lo + i).at[0], a.key_begin);
}

// Eight bf16 (a chunk) at (row, chunk) of a tile with D columns. Rows are a multiple of 128 bytes apart; the
// permutation lets eight rows of a chunk lie in different banks.
template <int D>
KEEL_INLINE __nv_bfloat16* chunk_at(__nv_bfloat16* tile, int row, int chunk) {
    return tile + row * D + (chunk ^ (row & 7)) * 8;
}

// Starts copies of `rows` rows of a head into a tile: row r is row begin + r of `from`, and zeros unless it lies in
// [valid_begin, valid_end), and beyond head_dim.
template <int D, int rows, int threads>
KEEL_INLINE void copy_tile(__nv_bfloat16* tile, const __nv_bfloat16* from, std::int64_t stride, int begin,
                           int valid_begin, int valid_end, int head_dim) {
    constexpr int chunks = D / 8;
    static_assert(rows * chunks % threads == 0);
    const int thread = opaque(static_cast<int>(threadIdx.x));
#pragma unroll
    for (int n = 0; n < rows * chunks / threads; ++n) {
        const int i = n * threads + thread, row = i / chunks, chunk = i % chunks;
        const int at = begin + row;
        const bool valid = at >= valid_begin && at < valid_end && chunk * 8 < head_dim;
        cp_async_16(chunk_at<D>(tile, row, chunk), valid ? from + at * stride + chunk * 8 : from, valid);
    }
}

// s = q k^T: rows first_row … of q, all rows of k.
template <int D, int blocks, int keys>
KEEL_INLINE void multiply_transposed(float (&s)[blocks][keys / 8][4], __nv_bfloat16* q, __nv_bfloat16* k,
                                     int first_row) {
    const int lane = opaque(lane_of_warp()), matrix = lane / 8, row = lane % 8;  // addresses would take all registers
#pragma unroll
    for (int b = 0; b < blocks; ++b)
#pragma unroll
        for (int n = 0; n < keys / 8; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) s[b][n][e] = 0;
#pragma unroll
    for (int step = 0; step < D / 16; ++step) {
        std::uint32_t rows[blocks][4];
#pragma unroll
        for (int b = 0; b < blocks; ++b)
            ldmatrix_x4(rows[b], chunk_at<D>(q, first_row + b * 16 + matrix % 2 * 8 + row, step * 2 + matrix / 2));
#pragma unroll
        for (int n = 0; n < keys / 16; ++n) {
            std::uint32_t columns[4];  // of K^T: 16 keys
            ldmatrix_x4(columns, chunk_at<D>(k, n * 16 + matrix / 2 * 8 + row, step * 2 + matrix % 2));
#pragma unroll
            for (int b = 0; b < blocks; ++b) {
                mma_bf16(s[b][2 * n], rows[b], columns[0], columns[1]);
                mma_bf16(s[b][2 * n + 1], rows[b], columns[2], columns[3]);
            }
        }
    }
}

// o += p v, with p rounded: from accumulator to operand in registers.
template <int D, int blocks, int keys>
KEEL_INLINE void add_product(float (&o)[blocks][D / 8][4], const float (&p)[blocks][keys / 8][4], __nv_bfloat16* v) {
    const int lane = opaque(lane_of_warp()), matrix = lane / 8, row = lane % 8;  // addresses would take all registers
#pragma unroll
    for (int step = 0; step < keys / 16; ++step) {
        std::uint32_t weights[blocks][4];
#pragma unroll
        for (int b = 0; b < blocks; ++b)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                weights[b][i] = pack_bf16(p[b][2 * step + i / 2][i % 2 * 2], p[b][2 * step + i / 2][i % 2 * 2 + 1]);
#pragma unroll
        for (int n = 0; n < D / 16; ++n) {
            std::uint32_t columns[4];
            ldmatrix_x4_trans(columns, chunk_at<D>(v, step * 16 + matrix % 2 * 8 + row, n * 2 + matrix / 2));
#pragma unroll
            for (int b = 0; b < blocks; ++b) {
                mma_bf16(o[b][2 * n], weights[b], columns[0], columns[1]);
                mma_bf16(o[b][2 * n + 1], weights[b], columns[2], columns[3]);
            }
        }
    }
}

// Over the four lanes that share a row.
KEEL_INLINE float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(all_lanes, x, 1));
    return fmaxf(x, __shfl_xor_sync(all_lanes, x, 2));
}
KEEL_INLINE float quad_sum(float x) {
    x += __shfl_xor_sync(all_lanes, x, 1);
    return x + __shfl_xor_sync(all_lanes, x, 2);
}

// Scores of 16 queries, the first of which is `query`, over keys from `key` on: what a query does not see becomes
// `hidden`.
template <int keys, class Args>
KEEL_INLINE void hide_unseen(float (&s)[keys / 8][4], const Args& a, int query, int key, float hidden = -INFINITY) {
    const int lane = lane_of_warp();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int i = min(query + half * 8 + lane / 4, a.tokens - 1);
        const int first = first_key(a, i) - key - lane % 4 * 2, last = last_key(a, i) - key - lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < keys / 8; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e)
                if (n * 8 + e < first || n * 8 + e > last) s[n][2 * half + e] = hidden;
    }
}

// Of the two rows that a thread holds: the largest score so far, not scaled, and this thread's part of the sum of weights.
struct Softmax {
    float max[2] = {-INFINITY, -INFINITY};
    float sum[2] = {0, 0};
};
// Scores become weights 2^(c (score - maximum)), and the sum is brought to the new maximum; `keep` is what brings the weighted
// sum of values there. A row that has seen no key yet has the maximum -infinity: its weights are 0, and nothing is NaN.
template <int keys>
KEEL_INLINE void weigh(Softmax& softmax, float (&keep)[2], float (&s)[keys / 8][4], float c) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float top = softmax.max[half];
#pragma unroll
        for (int n = 0; n < keys / 8; ++n) top = fmaxf(top, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
        top = quad_max(top);
        const float base = top == -INFINITY ? 0.0f : top * c;
        keep[half] = fast_exp2(softmax.max[half] * c - base);
        softmax.max[half] = top;
        float sum = softmax.sum[half] * keep[half];
#pragma unroll
        for (int n = 0; n < keys / 8; ++n)
#pragma unroll
            for (int e = 2 * half; e < 2 * half + 2; ++e) {
                s[n][e] = fast_exp2(s[n][e] * c - base);
                sum += s[n][e];
            }
        softmax.sum[half] = sum;
    }
}
template <int D>
KEEL_INLINE void scale_rows(float (&o)[D / 8][4], const float (&keep)[2]) {
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) o[n][e] *= keep[e / 2];
}
// After the last key: what the weighted sum of values is to be multiplied with, and lse of the queries from `query` on, which
// `lse` points to for query 0.
template <class Args>
KEEL_INLINE void finish_rows(float (&scale)[2], const Softmax& softmax, const Args& a, float* lse, int query) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int lane = lane_of_warp(), i = query + half * 8 + lane / 4;
        const float sum = quad_sum(softmax.sum[half]);
        scale[half] = sum > 0 ? 1.0f / sum : 0.0f;
        if (lane % 4 == 0 && i < a.tokens)
            store(lse + i, {sum > 0 ? softmax.max[half] * a.scale + logf(sum) : -INFINITY});
    }
}

// Least and largest first key of some queries.
struct Bounds {
    int least, most;
};
// Over the queries of a block, for every thread of it; `of_warp` has a place for each warp.
template <int queries, int warps, class Args>
KEEL_INLINE Bounds first_keys(Bounds* of_warp, const Args& a, int first_query) {
    const int mine = min(first_query + static_cast<int>(threadIdx.x) % queries, a.tokens - 1);
    Bounds bounds{first_key(a, mine), first_key(a, mine)};
#pragma unroll
    for (int half = warp_size / 2; half > 0; half /= 2) {
        bounds.least = min(bounds.least, __shfl_xor_sync(all_lanes, bounds.least, half));
        bounds.most = max(bounds.most, __shfl_xor_sync(all_lanes, bounds.most, half));
    }
    if (threadIdx.x % warp_size == 0) of_warp[threadIdx.x / warp_size] = bounds;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < warps; ++w) {
        bounds.least = min(bounds.least, of_warp[w].least);
        bounds.most = max(bounds.most, of_warp[w].most);
    }
    return bounds;
}

// What the kernels of backward read and write; rows are `…_stride` elements apart.
template <class T>
struct Backward {
    T *dq, *dk, *dv;
    float* delta;         // [heads, tokens]
    Bounds* tile_bounds;  // [tiles of queries]; of the tensor-core kernels
    const T *dy, *y;
    const float* lse;
    const T *q, *k, *v;
    const std::int32_t* lo;
    std::int64_t dq_stride, dk_stride, dv_stride, dy_stride, y_stride, q_stride, k_stride, v_stride;
    int tokens, kv_tokens, heads, group, head_dim;
    int query_offset, key_begin;
    float scale;
    Angles q_rope = {}, k_rope = {};  // dq and dk turn back by these before they are rounded
};

// Rows of x turn back, of which `first` is this warp's first; those from `end` on are nobody's, and turn by any angle.
// A thread holds element c of a row, and element c + D / 2 of the same row.
template <int D>
KEEL_INLINE void turn_back(float (&x)[D / 8][4], const Angles& angles, int first, int end) {
    const int lane = lane_of_warp();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int i = min(first + half * 8 + lane / 4, end - 1);
        const float* const row = angles.table + std::int64_t{load(angles.positions + i).at[0]} * D + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < D / 16; ++n) {
            const Pack<float, 2> cosine = load<2>(row + n * 8), sine = load<2>(row + D / 2 + n * 8);
#pragma unroll
            for (int e = 0; e < 2; ++e)
                turn(x[n][2 * half + e], x[n + D / 16][2 * half + e], cosine.at[e], -sine.at[e]);
        }
    }
}

// Rows row … row + 15 of x, times scale (of the two rows that a thread holds), leave 16 bytes at a time, by way of this
// warp's own rows of a tile that nobody reads any more. Row r of the tile is row first + r of `to`, if that is below
// end.
template <int D>
KEEL_INLINE void store_rows(__nv_bfloat16* tile, const float (&x)[D / 8][4], const float (&scale)[2], int row,
                            __nv_bfloat16* to, std::int64_t stride, int first, int end, int head_dim) {
    const int lane = lane_of_warp();
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int n = 0; n < D / 8; ++n)
            *reinterpret_cast<std::uint32_t*>(chunk_at<D>(tile, row + half * 8 + lane / 4, n) + lane % 4 * 2) =
                pack_bf16(x[n][2 * half] * scale[half], x[n][2 * half + 1] * scale[half]);
    __syncwarp();
    constexpr int chunks = D / 8;
#pragma unroll
    for (int n = 0; n < 16 * chunks / warp_size; ++n) {
        const int at = n * warp_size + lane, in_tile = row + at / chunks, chunk = at % chunks, i = first + in_tile;
        if (i < end && chunk * 8 < head_dim)
            store<8>(to + i * stride + chunk * 8,
                     *reinterpret_cast<const Pack<__nv_bfloat16, 8>*>(chunk_at<D>(tile, in_tile, chunk)));
    }
}

}  // namespace keel::KEEL_DEVICE
