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
#include "kernels/attention_tiles.cuh"
#include "kernels/tensor_map.cuh"
#include "kernels/wgmma.cuh"

namespace keel::KEEL_DEVICE {
namespace {

constexpr int warpgroup = 128, consumers = 2, threads = warpgroup * (1 + consumers);
constexpr int queries = 64 * consumers, keys = 128, stages = 2;
constexpr int box_columns = 64;  // as many bf16 as the span of the swizzle, 128 bytes

// 65536 registers: what a consumer's 64 x 128 scores and 64 x 128 sums take, and what is left.
constexpr int producer_registers = 24, consumer_registers = 240;
static_assert(warpgroup * (producer_registers + consumers * consumer_registers) <= 65536);

struct Forward {
    float* lse;
    const std::int32_t* lo;
    int tokens, kv_tokens, group;
    int query_offset, key_begin;
    float scale;
};

// A tile is D / 64 boxes of its rows, one after the other: 128 bytes a row, in the swizzle of 128 bytes.
template <int D>
constexpr std::size_t shared_bytes = sizeof(__nv_bfloat16) * D*(2 * queries + 2 * stages * keys);

// Arrivals: the producer at those that say a tile is here, and the consumers' warps at those that say it was read.
struct Barriers {
    std::uint64_t q, k_full[stages], k_read[stages], v_full[stages], v_read[stages];
};

// The n-th tile of keys lies in stage n % stages, and a stage is used the n / stages-th time.
KEEL_INLINE int stage_of(int n) { return n % stages; }
KEEL_INLINE unsigned round_of(int n) { return static_cast<unsigned>(n / stages); }

// Where a consumer's 16 columns from 16 * step on begin in a tile of `rows` rows, and rows in it.
KEEL_INLINE const __nv_bfloat16* columns_of(const __nv_bfloat16* tile, int rows, int step) {
    return tile + step * 16 / box_columns * rows * box_columns + step * 16 % box_columns;
}

// S = Q K^T of 64 queries.
template <int D>
KEEL_INLINE void start_scores(float (&s)[keys / 8][4], const __nv_bfloat16* q, const __nv_bfloat16* k) {
#pragma unroll
    for (int step = 0; step < D / 16; ++step)
        wgmma<false, false>(s, shared_matrix(columns_of(q, queries, step), 0, 1024, Swizzle::bytes_128),
                            shared_matrix(columns_of(k, keys, step), 0, 1024, Swizzle::bytes_128), step > 0);
    wgmma_commit();
}
// O += P V.
template <int D>
KEEL_INLINE void start_values(float (&o)[D / 8][4], const std::uint32_t (&p)[keys / 16][4], const __nv_bfloat16* v) {
#pragma unroll
    for (int step = 0; step < keys / 16; ++step)
        wgmma<true>(o, p[step],
                    shared_matrix(v + step * 16 * box_columns, keys * box_columns * sizeof(__nv_bfloat16), 1024,
                                  Swizzle::bytes_128),
                    true);
    wgmma_commit();
}
// Accumulators become an operand, rounded.
KEEL_INLINE void pack(std::uint32_t (&p)[keys / 16][4], const float (&s)[keys / 8][4]) {
#pragma unroll
    for (int step = 0; step < keys / 16; ++step)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            p[step][i] = pack_bf16(s[2 * step + i / 2][i % 2 * 2], s[2 * step + i / 2][i % 2 * 2 + 1]);
}

template <int D>
__global__ void __launch_bounds__(threads, 1)
    forward_kernel(Forward a, const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap k_map,
                   const __grid_constant__ CUtensorMap v_map, const __grid_constant__ CUtensorMap v_row_map,
                   const __grid_constant__ CUtensorMap y_map) {
    constexpr int boxes = D / box_columns;
    KEEL_DYNAMIC_SHARED(__nv_bfloat16, q);
    __nv_bfloat16 *const k_ring = q + queries * D, *const v_ring = k_ring + stages * keys * D,
                         *const y = v_ring + stages * keys * D;
    KEEL_SHARED(Barriers, barriers, [1]);
    KEEL_SHARED(Bounds, of_warp, [threads / warp_size]);
    Barriers& bar = barriers[0];
    const int lane = lane_of_warp(), head = static_cast<int>(blockIdx.x), kv_head = head / a.group;
    const int first_query = static_cast<int>(gridDim.y - 1 - blockIdx.y) * queries;  // the longest first

    if (threadIdx.x == 0) {
        mbarrier_init(&bar.q, 1);
        for (int stage = 0; stage < stages; ++stage) {
            mbarrier_init(&bar.k_full[stage], 1);
            mbarrier_init(&bar.v_full[stage], 1);
            mbarrier_init(&bar.k_read[stage], consumers * 4);
            mbarrier_init(&bar.v_read[stage], consumers * 4);
        }
        fence_mbarrier_init();
    }
    // As in attention.cu; its barrier lets all threads see the mbarriers, too.
    const Bounds bounds = first_keys<queries, threads / warp_size>(of_warp, a, first_query);
    const int end = last_key(a, min(first_query + queries, a.tokens) - 1) + 1, all_end = last_key(a, first_query) + 1;
    const int begin = bounds.least / keys * keys;

    if (warp_of_block() < 4) {
        give_up_registers<producer_registers>();
        if (warp_of_block() > 0) return;
        constexpr unsigned tile_bytes = sizeof(__nv_bfloat16) * keys * D;
        if (lane == 0) {
            mbarrier_arrive_expect(&bar.q, sizeof(__nv_bfloat16) * queries * D);
            for (int b = 0; b < boxes; ++b)
                load_box(q + b * queries * box_columns, q_map, &bar.q, b * box_columns, head, first_query);
        }
        for (int key = begin, n = 0; key < end; key += keys, ++n) {
            const int stage = stage_of(n);
            __nv_bfloat16 *const k = k_ring + stage * keys * D, *const v = v_ring + stage * keys * D;
            const bool whole = key >= bounds.least && key + keys <= end;
            if (lane == 0) {  // alone: of two lanes that wait, one may come late and meet the phase after its own
                mbarrier_wait(&bar.k_read[stage], (round_of(n) + 1) % 2);
                mbarrier_arrive_expect(&bar.k_full[stage], tile_bytes);
                for (int b = 0; b < boxes; ++b)
                    load_box(k + b * keys * box_columns, k_map, &bar.k_full[stage], b * box_columns, kv_head,
                             key - a.key_begin);
                mbarrier_wait(&bar.v_read[stage], (round_of(n) + 1) % 2);
                mbarrier_arrive_expect(&bar.v_full[stage], tile_bytes);
                for (int b = 0; b < boxes && whole; ++b)
                    load_box(v + b * keys * box_columns, v_map, &bar.v_full[stage], b * box_columns, kv_head,
                             key - a.key_begin);
            }
            if (whole) continue;
            // A weight of 0 does not take away a value that is NaN: rows that nobody sees come from outside of V, as
            // zeros, and so each row by itself. No load comes before lane 0 has found the stage free.
            __syncwarp();
            for (int row = lane; row < keys; row += warp_size) {
                const bool seen = key + row >= bounds.least && key + row < end;
                for (int b = 0; b < boxes; ++b)
                    load_box(v + (b * keys + row) * box_columns, v_row_map, &bar.v_full[stage], b * box_columns, kv_head,
                             seen ? key + row - a.key_begin : -1);
            }
        }
        return;
    }

    take_registers<consumer_registers>();
    const int consumer = warp_of_block() / 4 - 1, row = warp_of_block() % 4 * 16 + consumer * 64;  // of the block's
    const __nv_bfloat16* const my_q = q + consumer * 64 * box_columns;
    float s[keys / 8][4], o[D / 8][4], keep[2];
    std::uint32_t p[keys / 16][4];
    Softmax softmax;
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) o[n][e] = 0;
    const float c = a.scale * log2_e;
    const auto soften = [&](int key) {
        if (key < bounds.most || key + keys > all_end) hide_unseen<keys>(s, a, first_query + row, key);
        weigh<keys>(softmax, keep, s, c);
    };

    mbarrier_wait(&bar.q, 0);
    if (begin < end) {
        mbarrier_wait(&bar.k_full[0], 0);
        wgmma_fence();
        start_scores<D>(s, my_q, k_ring);
        wgmma_wait<0>();
        pin(s);
        if (lane == 0) mbarrier_arrive(&bar.k_read[0]);
        soften(begin);
        pack(p, s);
        int n = 1;
        for (int key = begin + keys; key < end; key += keys, ++n) {
            const int stage = stage_of(n), before = stage_of(n - 1);
            mbarrier_wait(&bar.k_full[stage], round_of(n) % 2);
            wgmma_fence();
            start_scores<D>(s, my_q, k_ring + stage * keys * D);
            mbarrier_wait(&bar.v_full[before], round_of(n - 1) % 2);
            start_values<D>(o, p, v_ring + before * keys * D);
            wgmma_wait<1>();
            pin(s);
            if (lane == 0) mbarrier_arrive(&bar.k_read[stage]);
            soften(key);
            wgmma_wait<0>();
            pin(o);
            if (lane == 0) mbarrier_arrive(&bar.v_read[before]);
            scale_rows<D>(o, keep);
            pack(p, s);
        }
        mbarrier_wait(&bar.v_full[stage_of(n - 1)], round_of(n - 1) % 2);
        wgmma_fence();
        start_values<D>(o, p, v_ring + stage_of(n - 1) * keys * D);
        wgmma_wait<0>();
        pin(o);
    }

    // 16 rows of each warp leave as boxes, which end where the tensor does.
    float scale[2];
    finish_rows(scale, softmax, a, a.lse + std::int64_t{head} * a.tokens, first_query + row);
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int n = 0; n < D / 8; ++n)
            *reinterpret_cast<std::uint32_t*>(
                chunk_at<box_columns>(y + n / 8 * queries * box_columns, row + half * 8 + lane / 4, n % 8) +
                lane % 4 * 2) = pack_bf16(o[n][2 * half] * scale[half], o[n][2 * half + 1] * scale[half]);
    fence_async();
    __syncwarp();
    if (lane == 0) {
        for (int b = 0; b < boxes; ++b)
            store_box(y_map, y + (b * queries + row) * box_columns, b * box_columns, head, first_query + row);
        commit_stores();
        wait_stores<0>();
    }
}

template <int D>
void forward(Stream& stream, const AttentionForward<bf16>& args) {
    const std::int64_t heads = args.q.dim(1) / args.head_dim, kv_heads = args.k.dim(1) / args.head_dim;
    // Heads between columns and rows: what lies beyond head_dim is outside of the tensor.
    const auto map = [&](const auto& x, std::int64_t of_heads, unsigned rows) {
        return tensor_map(kernel_pointer(x), {args.head_dim, of_heads, x.dim(0)}, {args.head_dim, x.stride()},
                          {static_cast<unsigned>(box_columns), 1u, rows}, CU_TENSOR_MAP_SWIZZLE_128B);
    };
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
           forward_kernel<D>, a, map(args.q, heads, queries), map(args.k, kv_heads, keys), map(args.v, kv_heads, keys),
           map(args.v, kv_heads, 1), map(args.y, heads, 16));
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
