// The Hopper body of kernels/attention.h, forward (sm_90a alone): the tiles of attention.cu with the instructions of
// that GPU, for the heads, rows and scales that those take.
//
// A block takes one head and 128 queries, in three warpgroups of four warps. The first brings Q, and then K and V in a
// ring of stages of 128 keys, by bulk copies (TMA); it gives its registers to the other two, which own 64 queries each:
// S = Q K^T and O += P V by wgmma, with P in registers, as it leaves the softmax. The products of a tile's Q K^T and of
// the P V before it run together; the softmax of the first runs beside the second.
//
// Tiles of keys begin at multiples of 128 of the row: a query has the same bits in any company, at the same position
// modulo 128.
#include "kernels/attention.h"
#include "kernels/attention_hopper.cuh"

namespace keel::KEEL_DEVICE {
namespace {

using namespace hopper_tiles;
constexpr int queries = 64 * consumers, keys = 128;

struct Forward {
    float* lse;
    const std::int32_t* lo;
    int tokens, kv_tokens, group;
    int query_offset, key_begin;
    float scale;
};

template <int D>
constexpr std::size_t shared_bytes = sizeof(Half) * D*(2 * queries + 2 * stages * keys);

template <int D>
__global__ void __launch_bounds__(threads, 1)
    forward_kernel(Forward a, const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap k_map,
                   const __grid_constant__ CUtensorMap v_map, const __grid_constant__ CUtensorMap v_row_map,
                   const __grid_constant__ CUtensorMap y_map) {
    KEEL_DYNAMIC_SHARED(Half, q);
    Half *const k_ring = q + queries * D, *const v_ring = k_ring + stages * keys * D,
                *const y = v_ring + stages * keys * D;
    KEEL_SHARED(KeyBarriers<stages>, barriers, [1]);
    KEEL_SHARED(Bounds, of_warp, [threads / warp_size]);
    KeyBarriers<stages>& bar = barriers[0];
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
            mbarrier_arrive_expect(&bar.q, tile_bytes<D, queries>);
            load_tile<D, queries>(q, q_map, &bar.q, head, first_query);
        }
        bring_keys<D, keys>(bar, {.scored = k_ring, .summed = v_ring},
                            {.scored = k_map, .summed = v_map, .summed_row = v_row_map}, kv_head, bounds.least, end,
                            a.key_begin);
        return;
    }

    take_registers<consumer_registers>();
    const int consumer = warp_of_block() / 4 - 1, row = warp_of_block() % 4 * 16 + consumer * 64;  // of the block's
    const Half* const my_q = q + consumer * 64 * box_columns;
    float s[keys / 8][4], o[D / 8][4], keep[2];
    std::uint32_t p[keys / 16][4];
    Softmax softmax;
    clear(o);
    const float c = a.scale * log2_e;
    const auto soften = [&](int key) {
        if (key < bounds.most || key + keys > all_end) hide_unseen<keys>(s, a, first_query + row, key);
        weigh<keys>(softmax, keep, s, c);
    };

    mbarrier_wait(&bar.q, 0);
    if (begin < end) {
        mbarrier_wait(&bar.scored_full[0], 0);
        wgmma_fence();
        start_scores<D, queries>(s, my_q, k_ring);
        wgmma_wait<0>();
        pin(s);
        if (lane == 0) mbarrier_arrive(&bar.scored_read[0]);
        soften(begin);
        pack(p, s);
        int n = 1;
        for (int key = begin + keys; key < end; key += keys, ++n) {
            const int stage = stage_of(n), before = stage_of(n - 1);
            mbarrier_wait(&bar.scored_full[stage], round_of(n) % 2);
            wgmma_fence();
            start_scores<D, queries>(s, my_q, k_ring + stage * keys * D);
            mbarrier_wait(&bar.summed_full[before], round_of(n - 1) % 2);
            start_sum(o, p, v_ring + before * keys * D);
            wgmma_wait<1>();
            pin(s);
            if (lane == 0) mbarrier_arrive(&bar.scored_read[stage]);
            soften(key);
            wgmma_wait<0>();
            pin(o);
            if (lane == 0) mbarrier_arrive(&bar.summed_read[before]);
            scale_rows<D>(o, keep);
            pack(p, s);
        }
        mbarrier_wait(&bar.summed_full[stage_of(n - 1)], round_of(n - 1) % 2);
        wgmma_fence();
        start_sum(o, p, v_ring + stage_of(n - 1) * keys * D);
        wgmma_wait<0>();
        pin(o);
    }

    float scale[2];
    finish_rows(scale, softmax, a, a.lse + std::int64_t{head} * a.tokens, first_query + row);
    start_store<queries>(y, o, scale, row, y_map, head, first_query + row);
    if (lane == 0) wait_stores<0>();
}

template <int D>
void forward(Stream& stream, const AttentionForward<bf16>& args) {
    const std::int64_t heads = args.q.dim(1) / args.head_dim, kv_heads = args.k.dim(1) / args.head_dim;
    const auto map = [&](const auto& x, int rows) { return head_map(x, args.head_dim, rows); };
    const Forward a{.lse = args.lse.data(),
                    .lo = args.lo.data(),
                    .tokens = static_cast<int>(args.q.dim(0)),
                    .kv_tokens = static_cast<int>(args.k.dim(0)),
                    .group = static_cast<int>(heads / kv_heads),
                    .query_offset = static_cast<int>(args.query_offset),
                    .key_begin = static_cast<int>(args.key_begin),
                    .scale = args.scale};
    launch(stream,
           {.blocks = {static_cast<unsigned>(heads), static_cast<unsigned>(ceil_div(a.tokens, queries))},
            .threads = threads,
            .shared_bytes = shared_bytes<D>},
           forward_kernel<D>, a, map(args.q, queries), map(args.k, keys), map(args.v, keys), map(args.v, 1),
           map(args.y, 16));
}

}  // namespace

// For what attention.cu would give to its tiles.
void attention_forward_hopper(Stream& stream, const AttentionForward<bf16>& args) {
    if (args.head_dim <= box_columns)
        forward<64>(stream, args);
    else
        forward<128>(stream, args);
}

}  // namespace keel::KEEL_DEVICE
