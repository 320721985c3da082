// kernels/attention_backward_tiles.cuh: attention's backward on tensor cores (sm_80), without atomics. With
// P = e^(scale q.k - lse), delta = dy.y and dS = P (dy.v - delta):
//
//   prepare   delta, a warp per query and head; least and most lo of every tile of queries, a warp per tile.
//   dq        a block takes one head and 64 queries, each of its four warps 16 of them, and passes over the keys:
//             S = Q K^T, dP = dY V^T, dQ += dS K.
//   dk, dv    a block takes one kv head and 128 keys, each of its eight warps 16 of them, and passes over the
//             queries of every head of the group in order: S^T = K Q^T, dP^T = V dY^T, dV += P^T dY, dK += dS^T Q.
//             Scores are transposed so that P^T and dS^T are operands where they are computed, in registers.
//
// Finished rows of dq and dk turn back by their angles, where they have any, before they are rounded and leave.
//
// What passes by comes in two stages: the next tiles are copied while these are multiplied. Seven products instead of
// the five of a kernel that adds dQ atomically, and the same bits each time.
#pragma once

#include "kernels/attention_tiles.cuh"

namespace keel::KEEL_DEVICE {

namespace backward_tiles {

using Half = __nv_bfloat16;  // half of a register
constexpr int prepare_warps = 8;
constexpr int dq_queries = 64, dq_warps = dq_queries / 16, dq_threads = dq_warps * warp_size;
constexpr int dkv_keys = 128, dkv_warps = dkv_keys / 16, dkv_threads = dkv_warps * warp_size;
// Rows of a tile that passes by; more would spill.
template <int D>
constexpr int dq_keys = D <= 64 ? 64 : 32;
template <int D>
constexpr int dkv_queries = D <= 64 ? 64 : 32;

static __global__ void __launch_bounds__(prepare_warps* warp_size) delta_kernel(Backward<Half> a) {
    const std::int64_t at = std::int64_t{blockIdx.x} * prepare_warps + warp_of_block();
    if (at >= std::int64_t{a.tokens} * a.heads) return;  // the whole warp
    const std::int64_t token = at / a.heads, head = at % a.heads;
    float sum = 0;
    for (int d = lane_of_warp() * 8; d < a.head_dim; d += warp_size * 8) {
        const auto dy = load<8>(a.dy + token * a.dy_stride + head * a.head_dim + d);
        const auto y = load<8>(a.y + token * a.y_stride + head * a.head_dim + d);
#pragma unroll
        for (int k = 0; k < 8; ++k) sum += to_float(dy.at[k]) * to_float(y.at[k]);
    }
    sum = warp_sum(sum);
    if (lane_of_warp() == 0) store(a.delta + head * a.tokens + token, {sum});
}

template <int queries>
static __global__ void __launch_bounds__(prepare_warps* warp_size) bounds_kernel(Backward<Half> a) {
    const int tile = static_cast<int>(blockIdx.x) * prepare_warps + warp_of_block(), first = tile * queries;
    if (first >= a.tokens) return;  // the whole warp
    int least = load(a.lo + first).at[0], most = least;
    for (int i = first + lane_of_warp(); i < min(first + queries, a.tokens); i += warp_size) {
        const int lo = load(a.lo + i).at[0];
        least = min(least, lo), most = max(most, lo);
    }
#pragma unroll
    for (int half = warp_size / 2; half > 0; half /= 2) {
        least = min(least, __shfl_xor_sync(all_lanes, least, half));
        most = max(most, __shfl_xor_sync(all_lanes, most, half));
    }
    if (lane_of_warp() == 0) a.tile_bounds[tile] = {least, most};
}

template <int D>
constexpr std::size_t dq_shared_bytes = sizeof(Half) * (2 * dq_queries + 4 * dq_keys<D>)*D + sizeof(Bounds) * dq_warps;

template <int D>
static __global__ void __launch_bounds__(dq_threads) dq_kernel(Backward<Half> a) {
    constexpr int keys = dq_keys<D>;
    KEEL_DYNAMIC_SHARED(Half, memory);
    Half *const q = memory, *const dy = q + dq_queries * D, *const k = dy + dq_queries * D, *const v = k + 2 * keys * D;
    const int lane = lane_of_warp(), row = warp_of_block() * 16;
    const int head = static_cast<int>(blockIdx.x), column = head * a.head_dim, kv_column = head / a.group * a.head_dim;
    const int first_query = static_cast<int>(gridDim.y - 1 - blockIdx.y) * dq_queries;  // the longest first
    const int end_query = min(first_query + dq_queries, a.tokens);

    // Keys that some query of the block sees lie in [bounds.least, end); all see those in [bounds.most, all_end).
    const Bounds bounds = first_keys<dq_queries, dq_warps>(reinterpret_cast<Bounds*>(v + 2 * keys * D), a, first_query);
    const int end = last_key(a, end_query - 1) + 1, all_end = last_key(a, first_query) + 1;
    const auto copy_keys = [&](int stage, int key) {
        const int begin = key - a.key_begin, valid = bounds.least - a.key_begin, valid_end = end - a.key_begin;
        copy_tile<D, keys, dq_threads>(k + stage * keys * D, a.k + kv_column, a.k_stride, begin, valid, valid_end,
                                       a.head_dim);
        copy_tile<D, keys, dq_threads>(v + stage * keys * D, a.v + kv_column, a.v_stride, begin, valid, valid_end,
                                       a.head_dim);
    };
    int key = bounds.least / keys * keys;
    copy_tile<D, dq_queries, dq_threads>(q, a.q + column, a.q_stride, first_query, 0, a.tokens, a.head_dim);
    copy_tile<D, dq_queries, dq_threads>(dy, a.dy + column, a.dy_stride, first_query, 0, a.tokens, a.head_dim);
    if (key < end) copy_keys(0, key);
    cp_async_commit();

    // Of this thread's two queries; scores and lse in powers of two.
    const float c = a.scale * log2_e;
    float lse[2], delta[2];
    const auto query = [&](int half) { return min(first_query + row + half * 8 + lane / 4, a.tokens - 1); };
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const std::int64_t of_row = std::int64_t{head} * a.tokens + query(half);
        lse[half] = load(a.lse + of_row).at[0] * log2_e;
        if (lse[half] == -INFINITY) lse[half] = 0;  // it sees nothing: all its weights are 0, and none is NaN
        delta[half] = load(a.delta + of_row).at[0];
    }
    float dq[1][D / 8][4] = {};
#pragma unroll 1  // twice would need its addresses twice, and there are no registers for that
    for (int stage = 0; key < end; key += keys, stage ^= 1) {
        if (key + keys < end) copy_keys(stage ^ 1, key + keys);
        cp_async_commit();
        cp_async_wait<1>();  // these keys are here; the next may still be on their way
        __syncthreads();
        float s[1][keys / 8][4], dp[1][keys / 8][4];
        multiply_transposed<D, 1, keys>(s, q, k + stage * keys * D, row);
        multiply_transposed<D, 1, keys>(dp, dy, v + stage * keys * D, row);
        if (key < bounds.most || key + keys > all_end) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int i = query(half);
                const int first = first_key(a, i) - key - lane % 4 * 2, last = last_key(a, i) - key - lane % 4 * 2;
#pragma unroll
                for (int n = 0; n < keys / 8; ++n)
#pragma unroll
                    for (int e = 0; e < 2; ++e)
                        if (n * 8 + e < first || n * 8 + e > last) s[0][n][2 * half + e] = -INFINITY;
            }
        }
#pragma unroll
        for (int n = 0; n < keys / 8; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e)
                s[0][n][e] = fast_exp2(s[0][n][e] * c - lse[e / 2]) * (dp[0][n][e] - delta[e / 2]);
        add_product<D, 1, keys>(dq, s, k + stage * keys * D);
        __syncthreads();  // before these keys are overwritten
    }
    cp_async_wait<0>();
    __syncthreads();  // without a key to see: other threads' copies into Q have landed, too
    if (a.q_rope.table) turn_back<D>(dq[0], a.q_rope, first_query + row, a.tokens);
    const float scale[2] = {a.scale, a.scale};
    store_rows<D>(q, dq[0], scale, row, a.dq + column, a.dq_stride, first_query, a.tokens, a.head_dim);
}

// What the dk, dv kernel keeps of a tile of queries beside Q and dY.
template <int queries>
struct OfQueries {
    float lse[queries], delta[queries];
    int lo[queries];
};
template <int D>
constexpr std::size_t dkv_shared_bytes = sizeof(Half) * (2 * dkv_keys + 4 * dkv_queries<D>)*D +
                                         2 * sizeof(OfQueries<dkv_queries<D>>);

template <int D>
static __global__ void __launch_bounds__(dkv_threads) dkv_kernel(Backward<Half> a) {
    constexpr int queries = dkv_queries<D>;
    KEEL_DYNAMIC_SHARED(Half, memory);
    Half *const k = memory, *const v = k + dkv_keys * D, *const q = v + dkv_keys * D, *const dy = q + 2 * queries * D;
    auto* const of_stage = reinterpret_cast<OfQueries<queries>*>(dy + 2 * queries * D);
    const int lane = lane_of_warp(), row = warp_of_block() * 16;
    const int kv_head = static_cast<int>(blockIdx.x), kv_column = kv_head * a.head_dim;
    const int first_row = static_cast<int>(blockIdx.y) * dkv_keys;
    const int first_key = a.key_begin + first_row, end_key = a.key_begin + min(first_row + dkv_keys, a.kv_tokens);

    // Tiles of queries of all heads of the group, one head after the other, from the first that may see a key; those
    // that see none of these are passed over.
    const int first_tile = max(first_key - a.query_offset, 0) / queries;
    const int tiles = max((a.tokens + queries - 1) / queries - first_tile, 0), all = a.group * tiles;
    const auto next_from = [&](int at) {
        while (at < all && a.tile_bounds[first_tile + at % tiles].least >= end_key) ++at;
        return at;
    };
    const auto copy_queries = [&](int stage, int at) {
        const int head = kv_head * a.group + at / tiles, first = (first_tile + at % tiles) * queries;
        const int column = head * a.head_dim;
        copy_tile<D, queries, dkv_threads>(q + stage * queries * D, a.q + column, a.q_stride, first, 0, a.tokens,
                                           a.head_dim);
        copy_tile<D, queries, dkv_threads>(dy + stage * queries * D, a.dy + column, a.dy_stride, first, 0, a.tokens,
                                           a.head_dim);
        if (const int i = static_cast<int>(threadIdx.x); i < queries) {
            const bool valid = first + i < a.tokens;
            const std::int64_t of_row = std::int64_t{head} * a.tokens + (valid ? first + i : 0);
            cp_async_4(of_stage[stage].lse + i, a.lse + of_row, valid);
            cp_async_4(of_stage[stage].delta + i, a.delta + of_row, valid);
            cp_async_4(of_stage[stage].lo + i, a.lo + (valid ? first + i : 0), valid);
        }
    };
    int at = next_from(0);
    copy_tile<D, dkv_keys, dkv_threads>(k, a.k + kv_column, a.k_stride, first_row, 0, a.kv_tokens, a.head_dim);
    copy_tile<D, dkv_keys, dkv_threads>(v, a.v + kv_column, a.v_stride, first_row, 0, a.kv_tokens, a.head_dim);
    if (at < all) copy_queries(0, at);
    cp_async_commit();

    const float c = a.scale * log2_e;
    float dk[1][D / 8][4] = {}, dv[1][D / 8][4] = {};
#pragma unroll 1
    for (int stage = 0; at < all; stage ^= 1) {
        const int following = next_from(at + 1);
        if (following < all) copy_queries(stage ^ 1, following);
        cp_async_commit();
        cp_async_wait<1>();  // these queries are here; the next may still be on their way
        __syncthreads();
        float s[1][queries / 8][4], dp[1][queries / 8][4];
        multiply_transposed<D, 1, queries>(s, k, q + stage * queries * D, row);
        multiply_transposed<D, 1, queries>(dp, v, dy + stage * queries * D, row);
        const int tile = first_tile + at % tiles, first = tile * queries;
        const bool some_unseen =
            a.query_offset + first < end_key - 1 || a.tile_bounds[tile].most > first_key || first + queries > a.tokens;
        const OfQueries<queries>& of = of_stage[stage];
#pragma unroll
        for (int n = 0; n < queries / 8; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int i = n * 8 + lane % 4 * 2 + e % 2, key = first_key + row + lane / 4 + e / 2 * 8;
                const bool unseen =
                    some_unseen && (first + i >= a.tokens || key < of.lo[i] || key > a.query_offset + first + i);
                const float p = unseen ? 0.0f : fast_exp2(s[0][n][e] * c - of.lse[i] * log2_e);
                s[0][n][e] = p;
                dp[0][n][e] = unseen ? 0.0f : p * (dp[0][n][e] - of.delta[i]);
            }
        add_product<D, 1, queries>(dv, s, dy + stage * queries * D);
        add_product<D, 1, queries>(dk, dp, q + stage * queries * D);
        __syncthreads();  // before these queries are overwritten
        at = following;
    }
    cp_async_wait<0>();
    __syncthreads();  // without a query: other threads' copies into K and V have landed, too
    if (a.k_rope.table) turn_back<D>(dk[0], a.k_rope, first_row + row, a.kv_tokens);
    const float scale[2] = {a.scale, a.scale}, one[2] = {1, 1};
    store_rows<D>(k, dk[0], scale, row, a.dk + kv_column, a.dk_stride, first_row, a.kv_tokens, a.head_dim);
    store_rows<D>(v, dv[0], one, row, a.dv + kv_column, a.dv_stride, first_row, a.kv_tokens, a.head_dim);
}

inline unsigned blocks(std::int64_t n, int each) { return static_cast<unsigned>(ceil_div(n, std::int64_t{each})); }

// Of at least one query: delta, and the bounds of every `queries` of them.
template <int queries>
void prepare(Stream& stream, const Backward<Half>& a) {
    constexpr int each = prepare_warps * warp_size;
    const std::int64_t rows = std::int64_t{a.tokens} * a.heads;
    launch(stream, {.blocks = blocks(rows, prepare_warps), .threads = each}, delta_kernel, a);
    launch(stream, {.blocks = blocks(a.tokens, queries * prepare_warps), .threads = each}, bounds_kernel<queries>, a);
}

template <int D>
void run(Stream& stream, const Backward<Half>& a) {
    if (a.tokens > 0) {
        prepare<dkv_queries<D>>(stream, a);
        launch(stream,
               {.blocks = {static_cast<unsigned>(a.heads), blocks(a.tokens, dq_queries)},
                .threads = dq_threads,
                .shared_bytes = dq_shared_bytes<D>},
               dq_kernel<D>, a);
    }
    if (a.kv_tokens > 0)
        launch(stream,
               {.blocks = {static_cast<unsigned>(a.heads / a.group), blocks(a.kv_tokens, dkv_keys)},
                .threads = dkv_threads,
                .shared_bytes = dkv_shared_bytes<D>},
               dkv_kernel<D>, a);
}

}  // namespace backward_tiles
}  // namespace keel::KEEL_DEVICE
