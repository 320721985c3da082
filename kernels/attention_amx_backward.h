// kernels/attention_amx_backward.h: a block of keys against all queries that see it, on tile registers.
// What it keeps, and how, is in kernels/attention_amx.h; who waits for whom, in kernels/attention_backward.h.
#pragma once

#include "kernels/attention_amx.h"

#if KEEL_AMX
#include <atomic>
#include <cstring>
#include <thread>

#include "kernels/attention_backward.h"

namespace keel::attention {

// 32 floats rounded as bf16 rounds, subnormals too: for results.
inline void store_result(bf16* to, const float* in) {
    alignas(64) static constexpr std::uint16_t upper[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                                            23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                                            45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
    const Uint low = simd::round_bits(simd::load(in)), high = simd::round_bits(simd::load(in + lanes));
    const __m512i both = _mm512_maskz_permutex2var_epi16(~0u, reinterpret_cast<__m512i>(low), _mm512_load_si512(upper),
                                                         reinterpret_cast<__m512i>(high));
    std::memcpy(to, &both, sizeof both);
}

// Tiles of queries whose P and ds wait for one product into dk and dv.
constexpr std::int64_t chunk_tiles = 4;

// Keys a task owns at most, where queries see more than most_keys: a tile of queries is gathered, and its dq added to,
// half as often. With chunks of 4 tiles what a task works on still lies in the second cache.
constexpr std::int64_t amx_most_keys = 512;

constexpr std::int64_t amx_backward_bytes(std::int64_t head_dim) {
    const std::int64_t deep = round_up(head_dim, 32);
    return amx_most_keys * deep * (4 + 4 + 2 + 2 + 2) + chunk_tiles * amx_most_keys * tile_rows * 4 +
           amx_most_keys * tile_rows * 2 + chunk_tiles * tile_rows * deep * 4 + 3 * tile_rows * deep * 2 +
           tile_rows * deep * 2 + 2 * 1024 * 4 + tile_rows * deep * 4 + 2 * tile_rows * 4 + 24 * 64;
}

// ds of two keys becomes pairs inside of quarters of a row, so that column i of the two tiles of pairs is not row i but
// this one. dq's columns stand in that order until they are written.
constexpr std::int64_t row_of_column(std::int64_t i) { return i % 16 / 4 * 8 + i / 16 * 4 + i % 4; }

// P and ds of 32 keys by 32 rows, from scores and dp. `p` and `ds`: as rows of a key; `ds_pairs`: as pairs of keys.
template <bool masked>
inline void differentiate_group(const Tile& tile, std::int64_t key, const float* s, const float* dp, const float* lse,
                                const float* delta, float factor, float scale, bf16* p, bf16* ds, bf16* ds_pairs,
                                Ahead& ahead) {
    const Float base[2] = {simd::load(lse), simd::load(lse + lanes)};
    const Float mean[2] = {simd::load(delta), simd::load(delta + lanes)};
    for (std::int64_t k = 0; k < key_group; k += 2) {
        Float prob[2][2], grad[2][2];
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i)
#pragma GCC unroll 2
            for (int v = 0; v < 2; ++v) {
                const std::int64_t at = (k + i) * tile_rows + v * lanes;
                Float x = exp2<true>(simd::load(s + at) * factor - base[v]);
                Float y = x * (simd::load(dp + at) * scale - mean[v]);
                if constexpr (masked) {
                    const Int seen = tile.sees(key + k + i, v);
                    x = seen ? x : Float{};
                    y = seen ? y : Float{};
                }
                prob[i][v] = x;
                grad[i][v] = y;
            }
        __m512i both[2];
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i) {
            store_row_of_32(p + (k + i) * 32, prob[i][0], prob[i][1]);
            store_row_of_32(ds + (k + i) * 32, grad[i][0], grad[i][1]);
            std::memcpy(&both[i], ds + (k + i) * 32, sizeof both[i]);
        }
        _mm512_storeu_si512(ds_pairs + k * 16, _mm512_unpacklo_epi16(both[0], both[1]));
        _mm512_storeu_si512(ds_pairs + gemm::tile_elements + k * 16, _mm512_unpackhi_epi16(both[0], both[1]));
        if (k % 8 == 0) ahead.ask(16);
    }
}

inline void amx_backward_block(const AttentionBackward<bf16>& args, const Rows& list, std::int64_t block,
                               std::int64_t block_keys, const BackwardScratch& scratch, std::byte* workspace) {
    const amx::Tiles tiles;
    const std::int64_t head_dim = list.head_dim, column = list.kv_head * head_dim, deep = round_up(head_dim, 32);
    const std::int64_t block_begin = block * block_keys, block_size = std::min(block_keys, args.k.dim(0) - block_begin);
    const std::int64_t block_end = block_begin + block_size, groups = block_keys / key_group;
    Carver carve(workspace);
    float* const dk = carve.take<float>(block_keys * deep);  // [group][deep / 32][32][32]
    float* const dv = carve.take<float>(block_keys * deep);
    bf16* const k = carve.take<bf16>(block_keys * deep);  // [block_keys][deep]
    bf16* const v = carve.take<bf16>(block_keys * deep);
    bf16* const k_tiles = carve.take<bf16>(block_keys * deep);  // [deep / 32][groups], dims are rows
    bf16* const p =
        carve.take<bf16>(chunk_tiles * block_keys * tile_rows);  // [group][tile of the chunk], keys are rows
    bf16* const ds = carve.take<bf16>(chunk_tiles * block_keys * tile_rows);
    bf16* const ds_pairs = carve.take<bf16>(block_keys * tile_rows);  // [group], pairs of keys
    bf16* const q_wide =
        carve.take<bf16>(chunk_tiles * tile_rows * deep);  // [deep / 32][tile of the chunk], pairs of rows
    bf16* const dy_wide = carve.take<bf16>(chunk_tiles * tile_rows * deep);
    bf16* const q = carve.take<bf16>(tile_rows * deep);  // pairs of dims
    bf16* const dy = carve.take<bf16>(tile_rows * deep);
    bf16* const rows = carve.take<bf16>(tile_rows * deep);
    float* const result = reinterpret_cast<float*>(rows);  // [lanes][deep], when `rows` has been read
    float* const s = carve.take<float>(1024);
    float* const dp = carve.take<float>(1024);
    float* const own_dq = carve.take<float>(tile_rows * deep);  // [deep][tile_rows]
    float* const lse = carve.take<float>(tile_rows);
    float* const delta = carve.take<float>(tile_rows);

    const std::int64_t first_tile = std::max<std::int64_t>(0, block_begin - list.query_offset) * list.group / tile_rows;
    const auto unseen = [&](std::int64_t index) {
        return scratch.begin[index] >= block_end || list.end(index) <= block_begin;
    };
    std::int64_t begin = block_end, end = block_begin;
    for (std::int64_t index = first_tile; index < list.tiles(); ++index)
        if (!unseen(index))
            begin = std::min<std::int64_t>(begin, scratch.begin[index]), end = std::max(end, list.end(index));
    const std::int64_t have_begin = std::max(begin, block_begin) - block_begin,
                       have_end = std::min(end, block_end) - block_begin;

    const float factor = args.scale * log2_e;
    std::int64_t in_chunk = 0, results_asked = 0;
    Span copied;                                 // groups of keys
    Span work[amx_most_keys / key_group];        // of a group of keys: the tiles of the chunk that see some of it
    bool begun[amx_most_keys / key_group] = {};  // dk and dv of a group of keys
    const auto flush = [&] {
        for (std::int64_t g = 0; g < groups; ++g) {
            const std::int64_t tile = work[g].begin, steps = work[g].end - tile;
            if (steps == 0) continue;
            for (std::int64_t d = 0; d < deep; d += 32)
                for (const bool value : {true, false})
                    product_of_columns(head_dim - d,
                                       tiles_at((value ? p : ds) + (g * chunk_tiles + tile) * group_elements),
                                       (value ? dy_wide : q_wide) + (d / 32 * chunk_tiles + tile) * step_elements,
                                       steps, begun[g], (value ? dv : dk) + (g * key_group * deep) + d * 32);
            work[g] = {};
            begun[g] = true;
        }
        in_chunk = 0;
    };
    for (std::int64_t index = first_tile; index < list.tiles(); ++index) {
        if (unseen(index)) continue;
        const Tile tile(list, args.lo, index);
        const std::int64_t g0 = (std::max(tile.begin, block_begin) - block_begin) / key_group;
        const std::int64_t g1 = (std::min(tile.end, block_end) - block_begin + key_group - 1) / key_group;
        copied.reach(g0, g1, [&](std::int64_t from, std::int64_t to) {
            const auto copy = [&](const View<const bf16>& x, bf16* out) {
                const std::int64_t first = from * key_group;
                gather((to - from) * key_group, have_begin - first, have_end - first, head_dim, deep,
                       [&](std::int64_t i) { return x.row(block_begin + first + i) + column; }, out + first * deep);
            };
            copy(args.k, k);
            copy(args.v, v);
            for (std::int64_t d = 0; d < deep; d += 32)
                gemm::pairs_pack::slivers_of_a({k, 1, deep}, d, 32, from * key_group, (to - from) * key_group,
                                             k_tiles + d * block_keys + from * group_elements, 0);
        });
        const auto spread = [&](const View<const bf16>& x, bf16* narrow, bf16* wide) {
            gather(
                tile_rows, 0, tile.rows, head_dim, deep, [&](std::int64_t i) { return list.at(x, tile.first + i); },
                rows);
            gemm::pairs_pack::panels_of_b({rows, 1, deep}, 0, deep, 0, 32, narrow, 0);
            for (std::int64_t d = 0; d < deep; d += 32) {
                bf16* const to = wide + (d / 32 * chunk_tiles + in_chunk) * step_elements;
                gemm::pairs_pack::interleave_rows(rows + d, deep, 32, 32, to, to + gemm::tile_elements);
            }
        };
        spread(args.q, q, q_wide);
        spread(args.dy, dy, dy_wide);
        lse_and_delta(args, list, tile, args.scale, lse, delta);
        const bool first = tile.begin >= block_begin, last = tile.end <= block_begin + block_keys;
        Ahead ahead;
        list.ahead(ahead, args.q, index + 1);
        list.ahead(ahead, args.dy, index + 1);
        list.ahead(ahead, args.y, index + 1);
        const std::int64_t next = std::min(block_begin + copied.end * key_group, block_end),
                           soon = std::min(next + key_group, block_end);
        ahead.add(args.k, next, soon, column, head_dim);
        ahead.add(args.v, next, soon, column, head_dim);
        if (last) list.ahead(ahead, args.dq, index);
        const std::int64_t results = std::min(results_asked + tile_rows, block_size);
        ahead.add(args.dk, block_begin + results_asked, block_begin + results, column, head_dim);
        ahead.add(args.dv, block_begin + results_asked, block_begin + results, column, head_dim);
        results_asked = results;
        for (std::int64_t g = g0; g < g1; ++g) {
            bf16* const p_at = p + g * chunk_tiles * group_elements;
            bf16* const ds_at = ds + g * chunk_tiles * group_elements;
            if (work[g].begin == work[g].end) work[g] = {in_chunk, in_chunk};
            const std::int64_t gap = work[g].end * group_elements, filled = in_chunk * group_elements;
            std::fill(p_at + gap, p_at + filled, bf16(0.0f));
            std::fill(ds_at + gap, ds_at + filled, bf16(0.0f));
            work[g].end = in_chunk + 1;
            const std::int64_t key = block_begin + g * key_group;
            block_product(rows_at(k + g * key_group * deep, deep), q, deep / 32, false, s);
            block_product(rows_at(v + g * key_group * deep, deep), dy, deep / 32, false, dp);
            bf16* const pairs = ds_pairs + g * group_elements;
            if (tile.all_see(key, key + key_group))
                differentiate_group<false>(tile, key, s, dp, lse, delta, factor, args.scale, p_at + filled,
                                           ds_at + filled, pairs, ahead);
            else
                differentiate_group<true>(tile, key, s, dp, lse, delta, factor, args.scale, p_at + filled,
                                          ds_at + filled, pairs, ahead);
        }
        ahead.ask(1024);
        std::atomic<std::int32_t>& turn = scratch.turn[list.kv_head * list.tiles() + index];
        while (turn.load(std::memory_order_acquire) != block) std::this_thread::yield();
        float* const dq =
            first && last ? own_dq : scratch.dq + (list.kv_head * list.tiles() + index) * tile_rows * deep;
        for (std::int64_t d = 0; d < deep; d += 32)
            product_of_rows(head_dim - d, tiles_at(k_tiles + d * block_keys + g0 * group_elements),
                            ds_pairs + g0 * group_elements, g1 - g0, !first, dq + d * tile_rows);
        if (last) {
            for (std::int64_t half = 0; half < tile_rows; half += lanes) {
                for (std::int64_t d = 0; d < head_dim; d += lanes) {
                    Float x[lanes];
                    for (int i = 0; i < lanes; ++i) x[i] = simd::load(dq + (d + i) * tile_rows + half);
                    pack::transpose(x);
                    for (int i = 0; i < lanes; ++i) simd::store(result + i * deep + d, x[i]);
                }
                for (std::int64_t i = 0; i < lanes; ++i) {
                    const std::int64_t in_tile = row_of_column(half + i), row = tile.first + in_tile;
                    if (in_tile >= tile.rows) continue;
                    if (args.q_rope) rope::turn_back(result + i * deep, *args.q_rope, list.token(row));
                    store_row(list.at(args.dq, row), result + i * deep, head_dim);
                }
            }
        }
        turn.store(static_cast<std::int32_t>(block + 1), std::memory_order_release);
        if (++in_chunk == chunk_tiles) flush();
    }
    if (in_chunk > 0) flush();
    for (std::int64_t g = 0; g < groups; ++g)
        if (!begun[g])
            for (float* const to : {dk, dv})
                std::fill(to + g * key_group * deep, to + (g + 1) * key_group * deep, 0.0f);
    for (std::int64_t i = 0; i < block_size; ++i) {
        const auto part = [&](std::int64_t d) { return (i / key_group * deep + d) * 32 + i % key_group * 32; };
        const auto store = [&](const View<bf16>& x, std::int64_t d, const float* from) {
            bf16* const to = x.row(block_begin + i) + column + d;
            if (head_dim - d >= 32)
                store_result(to, from);
            else
                store_row(to, from, head_dim - d);
        };
        for (std::int64_t d = 0; d < head_dim; d += 32) {
            std::memcpy(result + d, dk + part(d), 32 * sizeof(float));
            store(args.dv, d, dv + part(d));
        }
        if (args.k_rope) rope::turn_back(result, *args.k_rope, block_begin + i);
        for (std::int64_t d = 0; d < head_dim; d += 32) store(args.dk, d, result + d);
    }
}

}  // namespace keel::attention
#endif
