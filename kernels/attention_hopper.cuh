// kernels/attention_hopper.cuh: what attention's kernels for Hopper share (sm_90a alone): the roles of a block, rings
// of stages, tiles that bulk copies (TMA) bring and wgmma multiplies.
//
// A block is three warpgroups of four warps. The first gives its registers to the others, and one warp of it brings
// what they multiply; those, the consumers, own 64 rows each. A tile is D / 64 boxes of its rows, one after the other:
// 128 bytes a row, in the swizzle of 128 bytes.
//
// What waits for an mbarrier is one lane of the producing warp, or all of a consumer: of two lanes that wait, one may
// come late and meet the phase after its own, which then nobody completes. A consumer's lanes are held together by its
// products.
#pragma once

#include "kernels/attention_tiles.cuh"
#include "kernels/tensor_map.cuh"
#include "kernels/wgmma.cuh"

namespace keel::KEEL_DEVICE {
namespace hopper_tiles {

using Half = __nv_bfloat16;  // half of a register
constexpr int warpgroup = 128, consumers = 2, threads = warpgroup * (1 + consumers);
constexpr int stages = 2;
constexpr int box_columns = 64;  // as many bf16 as the span of the swizzle, 128 bytes

// 65536 registers: what a consumer's sums, 64 x 128 once or twice, and its scores take, and what is left.
constexpr int producer_registers = 24, consumer_registers = 240;
static_assert(warpgroup * (producer_registers + consumers * consumer_registers) <= 65536);

// The n-th tile lies in stage n % count of a ring of `count`, and a stage is used the n / count-th time.
template <int count = stages>
KEEL_INLINE int stage_of(int n) {
    return n % count;
}
template <int count = stages>
KEEL_INLINE unsigned round_of(int n) {
    return static_cast<unsigned>(n / count);
}

// ---- tiles brought -------------------------------------------------------------------------------------------------

// Heads between columns and rows: what lies beyond head_dim is outside of the tensor.
inline CUtensorMap head_map(const auto& x, std::int64_t head_dim, int rows) {
    return tensor_map(kernel_pointer(x), {head_dim, x.dim(1) / head_dim, x.dim(0)}, {head_dim, x.stride()},
                      {static_cast<unsigned>(box_columns), 1u, static_cast<unsigned>(rows)},
                      CU_TENSOR_MAP_SWIZZLE_128B);
}

template <int D, int rows>
constexpr unsigned tile_bytes = unsigned{sizeof(Half)} * D* rows;
// By one thread: rows of a head, from row `first` of the tensor on. Those outside of it are zeros.
template <int D, int rows>
KEEL_INLINE void load_tile(Half* tile, const CUtensorMap& map, std::uint64_t* full, int head, int first) {
    for (int b = 0; b < D / box_columns; ++b)
        load_box(tile + b * rows * box_columns, map, full, b * box_columns, head, first);
}

// Forward and dq: tiles of keys pass by, one of K and one of V at a time. `scored` is the one that nothing but scores
// are made of, K or V; `summed`, in a ring of summed_stages, is weighted and summed up. Arrivals: the producer at those
// that say a tile is here, and the consumers' warps at those that say it was read.
template <int summed_stages>
struct KeyBarriers {
    std::uint64_t q;  // what stays: Q, and dY
    std::uint64_t scored_full[stages], scored_read[stages], summed_full[summed_stages], summed_read[summed_stages];
};
// By one thread.
template <int summed_stages>
KEEL_INLINE void make(KeyBarriers<summed_stages>& bar) {
    mbarrier_init(&bar.q, 1);
    for (int stage = 0; stage < stages; ++stage) {
        mbarrier_init(&bar.scored_full[stage], 1);
        mbarrier_init(&bar.scored_read[stage], consumers * 4);
    }
    for (int stage = 0; stage < summed_stages; ++stage) {
        mbarrier_init(&bar.summed_full[stage], 1);
        mbarrier_init(&bar.summed_read[stage], consumers * 4);
    }
    fence_mbarrier_init();
}
struct KeyRings {
    Half *scored, *summed;
};
struct KeyMaps {
    const CUtensorMap &scored, &summed, &summed_row;  // boxes of a tile of keys; of one row
};
// By the producing warp: tiles from the one of key `least` on, up to `end`, which lie in the tensors from key `origin`
// on.
template <int D, int keys, int summed_stages>
KEEL_INLINE void bring_keys(KeyBarriers<summed_stages>& bar, const KeyRings& rings, const KeyMaps& maps, int head,
                            int least, int end, int origin) {
    const int lane = lane_of_warp();
    for (int key = least / keys * keys, n = 0; key < end; key += keys, ++n) {
        const int stage = stage_of(n), summed_stage = stage_of<summed_stages>(n);
        Half *const scored = rings.scored + stage * keys * D, *const summed = rings.summed + summed_stage * keys * D;
        const bool whole = key >= least && key + keys <= end;
        if (lane == 0) {
            mbarrier_wait(&bar.scored_read[stage], (round_of(n) + 1) % 2);
            mbarrier_arrive_expect(&bar.scored_full[stage], tile_bytes<D, keys>);
            load_tile<D, keys>(scored, maps.scored, &bar.scored_full[stage], head, key - origin);
            mbarrier_wait(&bar.summed_read[summed_stage], (round_of<summed_stages>(n) + 1) % 2);
            mbarrier_arrive_expect(&bar.summed_full[summed_stage], tile_bytes<D, keys>);
            if (whole) load_tile<D, keys>(summed, maps.summed, &bar.summed_full[summed_stage], head, key - origin);
        }
        if (whole) continue;
        // A weight of 0 does not take away a value that is NaN: rows that nobody sees come from outside of the tensor,
        // as zeros, and so each row by itself. No load comes before lane 0 has found the stage free.
        __syncwarp();
        for (int row = lane; row < keys; row += warp_size) {
            const bool seen = key + row >= least && key + row < end;
            for (int b = 0; b < D / box_columns; ++b)
                load_box(summed + (b * keys + row) * box_columns, maps.summed_row, &bar.summed_full[summed_stage],
                         b * box_columns, head, seen ? key + row - origin : -1);
        }
    }
}

// ---- tiles multiplied ----------------------------------------------------------------------------------------------

// Where 16 columns from 16 * step on begin in a tile of `rows` rows, and rows in it.
KEEL_INLINE const Half* columns_of(const Half* tile, int rows, int step) {
    return tile + step * 16 / box_columns * rows * box_columns + step * 16 % box_columns;
}
// s = a b^T: a consumer's 64 rows, which begin at `a` in a tile of a_rows, and all rows of tile b.
template <int D, int a_rows, int n8>
KEEL_INLINE void start_scores(float (&s)[n8][4], const Half* a, const Half* b) {
#pragma unroll
    for (int step = 0; step < D / 16; ++step)
        wgmma<false, false>(s, shared_matrix(columns_of(a, a_rows, step), 0, 1024, Swizzle::bytes_128),
                            shared_matrix(columns_of(b, 8 * n8, step), 0, 1024, Swizzle::bytes_128), step > 0);
    wgmma_commit();
}
// o += p b: all rows of tile b, weighted.
template <int n8, int b16>
KEEL_INLINE void start_sum(float (&o)[n8][4], const std::uint32_t (&p)[b16][4], const Half* b) {
#pragma unroll
    for (int step = 0; step < b16; ++step)
        wgmma<true>(
            o, p[step],
            shared_matrix(b + step * 16 * box_columns, 16 * b16 * box_columns * sizeof(Half), 1024, Swizzle::bytes_128),
            true);
    wgmma_commit();
}
// Accumulators become an operand, rounded.
template <int n16, int n8>
KEEL_INLINE void pack(std::uint32_t (&p)[n16][4], const float (&s)[n8][4]) {
    static_assert(n8 == 2 * n16);
#pragma unroll
    for (int step = 0; step < n16; ++step)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            p[step][i] = pack_bf16(s[2 * step + i / 2][i % 2 * 2], s[2 * step + i / 2][i % 2 * 2 + 1]);
}
template <int n8>
KEEL_INLINE void clear(float (&x)[n8][4]) {
#pragma unroll
    for (int n = 0; n < n8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) x[n][e] = 0;
}

// ---- tiles stored --------------------------------------------------------------------------------------------------

// By a consumer's warp: its rows row … row + 15 of a tile of `rows`, times scale, go to memory by way of that tile,
// from row `first` of the tensor on; those beyond its end do not. The map's boxes are 16 rows. wait_stores<0>() before
// the block ends.
template <int rows, int n8>
KEEL_INLINE void start_store(Half* tile, const float (&x)[n8][4], const float (&scale)[2], int row,
                             const CUtensorMap& map, int head, int first) {
    const int lane = lane_of_warp();
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int n = 0; n < n8; ++n)
            *reinterpret_cast<std::uint32_t*>(
                chunk_at<box_columns>(tile + n / 8 * rows * box_columns, row + half * 8 + lane / 4, n % 8) +
                lane % 4 * 2) = pack_bf16(x[n][2 * half] * scale[half], x[n][2 * half + 1] * scale[half]);
    fence_async();
    __syncwarp();
    if (lane == 0) {
        for (int b = 0; b < n8 * 8 / box_columns; ++b)
            store_box(map, tile + (b * rows + row) * box_columns, b * box_columns, head, first);
        commit_stores();
    }
}

}  // namespace hopper_tiles
}  // namespace keel::KEEL_DEVICE
