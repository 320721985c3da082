// The Hopper body of kernels/attention.h, backward (sm_90a alone): the two kernels of attention_backward_tiles.cuh with
// the instructions of that GPU, from the delta and the bounds that the same kernels prepare. With P = e^(scale q.k -
// lse) and dS = P (dy.v - delta):
//
//   dk, dv    a block takes one kv head and 128 keys, each of its consumers 64 of them; tiles of 64 queries pass by, of
//             every head of the group in order: S^T = K Q^T, dP^T = V dY^T, dV += P^T dY, dK += dS^T Q. Scores are
//             transposed so that P^T and dS^T are operands where they are computed, in registers. dP runs beside the
//             exponentials, dV beside dS.
//   dq        a block takes one head and 128 queries, each of its consumers 64 of them; tiles of 64 keys pass by:
//             S = Q K^T, dP = dY V^T, dQ += dS K. The products of a tile's scores and of the dQ before it run together,
//             the second of them beside the exponentials. A tile of K is thus needed until the end of the turn after
//             its own, and the next at that turn's end: K has a third stage, so that it is brought before.
//
// Finished rows of dq and dk turn back by their angles, where they have any. Seven products instead of the five of a
// kernel that adds dQ atomically, and the same bits each time.
#include <climits>

#include "kernels/attention.h"
#include "kernels/attention_hopper.cuh"

namespace keel::KEEL_DEVICE {
namespace {

using namespace hopper_tiles;

// ---- dk, dv --------------------------------------------------------------------------------------------------------

constexpr int dkv_keys = 64 * consumers, dkv_queries = 64;

// What lies beside a tile of Q and one of dY: its first query, or one below zero after the last tile; the most of its
// first keys; and for two queries together, which are a thread's, lse in powers of two, delta, and the first key.
// Queries past the end are zeros in all but the last, which no key reaches.
struct OfQueries {
    Pack<float, 2> lse[dkv_queries / 2], delta[dkv_queries / 2];
    Pack<int, 2> first[dkv_queries / 2];
    int first_query, most;
};
// Arrivals: lane 0 of the producer with the bytes of K and V, the producer's lanes and its bytes where queries are
// here or no more will be, the consumers' warps where they were read.
struct DkvBarriers {
    std::uint64_t kv, full[stages], read[stages];
};
template <int D>
constexpr std::size_t dkv_shared_bytes = sizeof(Half) * D*(4 * dkv_keys + 2 * stages * dkv_queries);

// One query's, by the lane that has it.
KEEL_INLINE void bring_query(OfQueries& of, const Backward<Half>& a, int head, int i, int query) {
    const bool valid = query < a.tokens;
    const std::int64_t at = std::int64_t{head} * a.tokens + query;
    const float lse = valid ? load(a.lse + at).at[0] * log2_e : 0.0f;
    of.lse[i / 2].at[i % 2] = lse == -INFINITY ? 0.0f : lse;  // it sees nothing: its weights are hidden
    of.delta[i / 2].at[i % 2] = valid ? load(a.delta + at).at[0] : 0.0f;
    of.first[i / 2].at[i % 2] = valid ? load(a.lo + query).at[0] : INT_MAX;
}
// Of transposed scores, the first row of which is `key`, under the queries from `query` on: what is not seen becomes
// `hidden`.
KEEL_INLINE void hide_unseen_rows(float (&s)[dkv_queries / 8][4], const OfQueries& of, const Backward<Half>& a, int key,
                                  int query, float hidden) {
    const int lane = lane_of_warp();
#pragma unroll
    for (int n = 0; n < dkv_queries / 8; ++n) {
        const int pair = n * 4 + lane % 4;
        const Pack<int, 2> first = of.first[pair];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int k = key + lane / 4 + e / 2 * 8;
            if (k < first.at[e % 2] || k > a.query_offset + query + 2 * pair + e % 2) s[n][e] = hidden;
        }
    }
}

template <int D>
__global__ void __launch_bounds__(threads, 1)
    dkv_kernel(Backward<Half> a, const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap dy_map,
               const __grid_constant__ CUtensorMap k_map, const __grid_constant__ CUtensorMap v_map,
               const __grid_constant__ CUtensorMap dk_map, const __grid_constant__ CUtensorMap dv_map) {
    constexpr int queries = dkv_queries;
    KEEL_DYNAMIC_SHARED(Half, k);
    Half *const v = k + dkv_keys * D, *const q_ring = v + dkv_keys * D, *const dy_ring = q_ring + stages * queries * D,
                *const dk_out = dy_ring + stages * queries * D, *const dv_out = dk_out + dkv_keys * D;
    KEEL_SHARED(OfQueries, of_stage, [stages]);
    KEEL_SHARED(DkvBarriers, barriers, [1]);
    DkvBarriers& bar = barriers[0];
    const int lane = lane_of_warp(), kv_head = static_cast<int>(blockIdx.x);
    const int first_row = static_cast<int>(blockIdx.y) * dkv_keys;
    const int first_key = a.key_begin + first_row, end_key = first_key + dkv_keys;

    if (threadIdx.x == 0) {
        mbarrier_init(&bar.kv, 1);
        for (int stage = 0; stage < stages; ++stage) {
            mbarrier_init(&bar.full[stage], 1 + warp_size);
            mbarrier_init(&bar.read[stage], consumers * 4);
        }
        fence_mbarrier_init();
    }
    __syncthreads();

    if (warp_of_block() < 4) {
        give_up_registers<producer_registers>();
        if (warp_of_block() > 0) return;
        if (lane == 0) {
            mbarrier_arrive_expect(&bar.kv, 2 * tile_bytes<D, dkv_keys>);
            load_tile<D, dkv_keys>(k, k_map, &bar.kv, kv_head, first_row);
            load_tile<D, dkv_keys>(v, v_map, &bar.kv, kv_head, first_row);
        }
        // As in attention_backward_tiles.cuh: tiles of queries that may see one of these keys. Fewer than none are
        // none. Consumers do not look for them: each stage says which it holds.
        const int first_tile = max(first_key - a.query_offset, 0) / queries;
        const int tiles = (a.tokens + queries - 1) / queries - first_tile, all = a.group * tiles;
        const auto next_from = [&](int at) {
            while (at < all && load(&a.tile_bounds[first_tile + at % tiles].least).at[0] >= end_key) ++at;
            return at;
        };
        int n = 0;
        for (int at = next_from(0); at < all; at = next_from(at + 1), ++n) {
            const int stage = stage_of(n), head = kv_head * a.group + at / tiles, tile = first_tile + at % tiles;
            const int first = tile * queries;
            OfQueries& of = of_stage[stage];
            if (lane == 0) {
                mbarrier_wait(&bar.read[stage], (round_of(n) + 1) % 2);
                mbarrier_arrive_expect(&bar.full[stage], 2 * tile_bytes<D, queries>);
                load_tile<D, queries>(q_ring + stage * queries * D, q_map, &bar.full[stage], head, first);
                load_tile<D, queries>(dy_ring + stage * queries * D, dy_map, &bar.full[stage], head, first);
                of.first_query = first, of.most = load(&a.tile_bounds[tile].most).at[0];
            }
            __syncwarp();  // no lane writes before lane 0 has found the stage free
            for (int i = lane; i < queries; i += warp_size) bring_query(of, a, head, i, first + i);
            mbarrier_arrive(&bar.full[stage]);
        }
        const int stage = stage_of(n);
        if (lane == 0) {
            mbarrier_wait(&bar.read[stage], (round_of(n) + 1) % 2);
            of_stage[stage].first_query = -1;
            mbarrier_arrive(&bar.full[stage]);  // in place of the one with the bytes
        }
        __syncwarp();  // no lane arrives before lane 0 has found the stage free
        mbarrier_arrive(&bar.full[stage]);
        return;
    }

    take_registers<consumer_registers>();
    const int consumer = warp_of_block() / 4 - 1, row = warp_of_block() % 4 * 16 + consumer * 64;  // of the block's
    const Half *const my_k = k + consumer * 64 * box_columns, *const my_v = v + consumer * 64 * box_columns;
    float dk[D / 8][4], dv[D / 8][4];
    clear(dk), clear(dv);
    const float c = a.scale * log2_e;

    mbarrier_wait(&bar.kv, 0);
#pragma unroll 1
    for (int n = 0;; ++n) {
        const int stage = stage_of(n);
        const Half *const q = q_ring + stage * queries * D, *const dy = dy_ring + stage * queries * D;
        const OfQueries& of = of_stage[stage];
        mbarrier_wait(&bar.full[stage], round_of(n) % 2);
        const int first = of.first_query;
        if (first < 0) break;
        const bool some_unseen = a.query_offset + first < end_key - 1 || of.most > first_key;
        float s[queries / 8][4], dp[queries / 8][4];
        std::uint32_t p[queries / 16][4], ds[queries / 16][4];
        wgmma_fence();
        start_scores<D, dkv_keys>(s, my_k, q);
        start_scores<D, dkv_keys>(dp, my_v, dy);
        wgmma_wait<1>();
        pin(s);
        if (some_unseen) hide_unseen_rows(s, of, a, first_key + row, first, -INFINITY);
#pragma unroll
        for (int m = 0; m < queries / 8; ++m) {
            const Pack<float, 2> lse = of.lse[m * 4 + lane % 4];
#pragma unroll
            for (int e = 0; e < 4; ++e) s[m][e] = fast_exp2(s[m][e] * c - lse.at[e % 2]);
        }
        pack(p, s);
        wgmma_fence();
        start_sum(dv, p, dy);
        wgmma_wait<1>();
        pin(dp);
        if (some_unseen) hide_unseen_rows(dp, of, a, first_key + row, first, 0);
#pragma unroll
        for (int m = 0; m < queries / 8; ++m) {
            const Pack<float, 2> delta = of.delta[m * 4 + lane % 4];
#pragma unroll
            for (int e = 0; e < 4; ++e) dp[m][e] = s[m][e] * (dp[m][e] - delta.at[e % 2]);
        }
        pack(ds, dp);
        wgmma_fence();
        start_sum(dk, ds, q);
        wgmma_wait<0>();
        pin(dv), pin(dk);
        __syncwarp();  // what lanes have read of `of` is read before lane 0 gives the stage back
        if (lane == 0) mbarrier_arrive(&bar.read[stage]);
    }

    if (a.k_rope.table) turn_back<D>(dk, a.k_rope, first_row + row, a.kv_tokens);
    const float scale[2] = {a.scale, a.scale}, one[2] = {1, 1};
    start_store<dkv_keys>(dv_out, dv, one, row, dv_map, kv_head, first_row + row);
    start_store<dkv_keys>(dk_out, dk, scale, row, dk_map, kv_head, first_row + row);
    if (lane == 0) wait_stores<0>();
}

// ---- dq ------------------------------------------------------------------------------------------------------------

constexpr int dq_queries = 64 * consumers, dq_keys = 64, dq_k_stages = stages + 1;

template <int D>
constexpr std::size_t dq_shared_bytes = sizeof(Half) * D*(3 * dq_queries + (dq_k_stages + stages) * dq_keys);

template <int D>
__global__ void __launch_bounds__(threads, 1)
    dq_kernel(Backward<Half> a, const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap dy_map,
              const __grid_constant__ CUtensorMap k_map, const __grid_constant__ CUtensorMap k_row_map,
              const __grid_constant__ CUtensorMap v_map, const __grid_constant__ CUtensorMap dq_map) {
    constexpr int queries = dq_queries, keys = dq_keys;
    KEEL_DYNAMIC_SHARED(Half, q);
    Half *const dy = q + queries * D, *const k_ring = dy + queries * D,
                *const v_ring = k_ring + dq_k_stages * keys * D, *const dq_out = v_ring + stages * keys * D;
    KEEL_SHARED(KeyBarriers<dq_k_stages>, barriers, [1]);
    KEEL_SHARED(Bounds, of_warp, [threads / warp_size]);
    KeyBarriers<dq_k_stages>& bar = barriers[0];
    const int lane = lane_of_warp(), head = static_cast<int>(blockIdx.x), kv_head = head / a.group;
    const int first_query = static_cast<int>(gridDim.y - 1 - blockIdx.y) * queries;  // the longest first

    if (threadIdx.x == 0) make(bar);
    // As in attention.cu; its barrier lets all threads see the mbarriers, too.
    const Bounds bounds = first_keys<queries, threads / warp_size>(of_warp, a, first_query);
    const int end = last_key(a, min(first_query + queries, a.tokens) - 1) + 1, all_end = last_key(a, first_query) + 1;
    const int begin = bounds.least / keys * keys;

    if (warp_of_block() < 4) {
        give_up_registers<producer_registers>();
        if (warp_of_block() > 0) return;
        if (lane == 0) {
            mbarrier_arrive_expect(&bar.q, 2 * tile_bytes<D, queries>);
            load_tile<D, queries>(q, q_map, &bar.q, head, first_query);
            load_tile<D, queries>(dy, dy_map, &bar.q, head, first_query);
        }
        bring_keys<D, keys>(bar, {.scored = v_ring, .summed = k_ring},
                            {.scored = v_map, .summed = k_map, .summed_row = k_row_map}, kv_head, bounds.least, end,
                            a.key_begin);
        return;
    }

    take_registers<consumer_registers>();
    const int consumer = warp_of_block() / 4 - 1, row = warp_of_block() % 4 * 16 + consumer * 64;  // of the block's
    const Half *const my_q = q + consumer * 64 * box_columns, *const my_dy = dy + consumer * 64 * box_columns;
    // Of this thread's two queries; scores and lse in powers of two.
    const float c = a.scale * log2_e;
    float lse[2], delta[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int query = min(first_query + row + half * 8 + lane / 4, a.tokens - 1);
        const std::int64_t at = std::int64_t{head} * a.tokens + query;
        lse[half] = load(a.lse + at).at[0] * log2_e;
        if (lse[half] == -INFINITY) lse[half] = 0;  // it sees nothing: its weights are hidden
        delta[half] = load(a.delta + at).at[0];
    }
    float s[keys / 8][4], dp[keys / 8][4], dq[D / 8][4];
    std::uint32_t ds[keys / 16][4];
    clear(dq);
    const auto weigh = [&](int key) {  // s becomes dS
        if (key < bounds.most || key + keys > all_end) {
            hide_unseen<keys>(s, a, first_query + row, key);
            hide_unseen<keys>(dp, a, first_query + row, key, 0);
        }
#pragma unroll
        for (int n = 0; n < keys / 8; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) s[n][e] = fast_exp2(s[n][e] * c - lse[e / 2]) * (dp[n][e] - delta[e / 2]);
    };

    mbarrier_wait(&bar.q, 0);
    if (begin < end) {
        mbarrier_wait(&bar.summed_full[0], 0);
        mbarrier_wait(&bar.scored_full[0], 0);
        wgmma_fence();
        start_scores<D, queries>(s, my_q, k_ring);
        start_scores<D, queries>(dp, my_dy, v_ring);
        wgmma_wait<0>();
        pin(s), pin(dp);
        if (lane == 0) mbarrier_arrive(&bar.scored_read[0]);
        weigh(begin);
        pack(ds, s);
        int n = 1;
        for (int key = begin + keys; key < end; key += keys, ++n) {
            const int stage = stage_of(n), k_stage = stage_of<dq_k_stages>(n), before = stage_of<dq_k_stages>(n - 1);
            mbarrier_wait(&bar.summed_full[k_stage], round_of<dq_k_stages>(n) % 2);
            mbarrier_wait(&bar.scored_full[stage], round_of(n) % 2);
            wgmma_fence();
            start_scores<D, queries>(s, my_q, k_ring + k_stage * keys * D);
            start_scores<D, queries>(dp, my_dy, v_ring + stage * keys * D);
            start_sum(dq, ds, k_ring + before * keys * D);
            wgmma_wait<1>();
            pin(s), pin(dp);
            if (lane == 0) mbarrier_arrive(&bar.scored_read[stage]);
            weigh(key);
            wgmma_wait<0>();
            pin(dq);
            if (lane == 0) mbarrier_arrive(&bar.summed_read[before]);
            pack(ds, s);
        }
        wgmma_fence();
        start_sum(dq, ds, k_ring + stage_of<dq_k_stages>(n - 1) * keys * D);
        wgmma_wait<0>();
        pin(dq);
    }
    if (a.q_rope.table) turn_back<D>(dq, a.q_rope, first_query + row, a.tokens);
    const float scale[2] = {a.scale, a.scale};
    start_store<queries>(dq_out, dq, scale, row, dq_map, head, first_query + row);
    if (lane == 0) wait_stores<0>();
}

template <int D>
void backward(Stream& stream, const AttentionBackward<bf16>& args, const Backward<Half>& a) {
    const auto map = [&](const auto& x, int rows) { return head_map(x, args.head_dim, rows); };
    const auto blocks = [](int heads, int rows, int each) {
        return dim3{static_cast<unsigned>(heads), static_cast<unsigned>(ceil_div(rows, each))};
    };
    launch(stream,
           {.blocks = blocks(a.heads, a.tokens, dq_queries), .threads = threads, .shared_bytes = dq_shared_bytes<D>},
           dq_kernel<D>, a, map(args.q, dq_queries), map(args.dy, dq_queries), map(args.k, dq_keys), map(args.k, 1),
           map(args.v, dq_keys), map(args.dq, 16));
    launch(stream,
           {.blocks = blocks(a.heads / a.group, a.kv_tokens, dkv_keys),
            .threads = threads,
            .shared_bytes = dkv_shared_bytes<D>},
           dkv_kernel<D>, a, map(args.q, dkv_queries), map(args.dy, dkv_queries), map(args.k, dkv_keys),
           map(args.v, dkv_keys), map(args.dk, 16), map(args.dv, 16));
}

}  // namespace

// For what attention_backward.cu would give to its tiles, with at least one query and one key; it has prepared delta,
// and the bounds of every 64 queries.
void attention_backward_hopper(Stream& stream, const AttentionBackward<bf16>& args, const Backward<__nv_bfloat16>& a) {
    if (args.head_dim <= box_columns)
        backward<64>(stream, args, a);
    else
        backward<128>(stream, args, a);
}

}  // namespace keel::KEEL_DEVICE
