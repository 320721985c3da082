// kernels/attention_amx.h: attention in bf16 on the processor's tile registers (kernels/amx.h).
//
// The same blocks, tiles and order as in float; products are 32 x 32 blocks of float sums, and only what is multiplied
// again (P and ds) is rounded to bf16. Scores still stand [key][row]: pairs of keys of one row are then what a tile of
// B wants, and rows of one key what a tile of A wants, so that nothing that was computed is ever transposed. Groups of
// 32 keys lie at fixed places; keys that nobody sees are zeros, never read.
#pragma once

#include "kernels/amx.h"

#if KEEL_AMX
#include <atomic>
#include <cstring>
#include <thread>

#include "kernels/attention_backward.h"
#include "kernels/attention_forward.h"
#include "kernels/matmul_amx.h"

namespace keel::attention {

using gemm::step_elements;
using gemm::store_row_of_32;
using simd::Uint;
constexpr std::int64_t key_group = 32, group_elements = gemm::step_elements;  // 32 keys by 32 rows, as two tiles
static_assert(tile_rows == 32 && lanes == 16);

// Carves typed pieces out of a workspace, 64-byte aligned.
class Carver {
public:
    explicit Carver(std::byte* at) : at_(at) {}
    template <class E>
    E* take(std::int64_t count) {
        E* const piece = reinterpret_cast<E*>(at_);
        at_ += round_up(count * static_cast<std::int64_t>(sizeof(E)), 64);
        return piece;
    }

private:
    std::byte* at_;
};

// out[i] = row i, `count` of them, zero from `width` to `deep` elements; rows beyond `have` are zero.
template <class Row>
void gather(std::int64_t count, std::int64_t have_begin, std::int64_t have_end, std::int64_t width, std::int64_t deep,
            Row row, bf16* out) {
    for (std::int64_t i = 0; i < count; ++i)
        for (std::int64_t d = 0; d < deep; d += 32)
            _mm512_storeu_si512(out + i * deep + d, i >= have_begin && i < have_end
                                                        ? gemm::amx_pack::load(row(i) + d, width - d)
                                                        : _mm512_setzero_si512());
}

inline gemm::AmxRows rows_at(const bf16* rows, std::int64_t deep) {
    return {reinterpret_cast<const char*>(rows), reinterpret_cast<const char*>(rows + 16 * deep), deep * 2, 64};
}
inline gemm::AmxRows tiles_at(const bf16* tiles) {
    return {reinterpret_cast<const char*>(tiles), reinterpret_cast<const char*>(tiles + gemm::tile_elements), 64,
            step_elements * 2};
}
// out [32][32] = A B over `steps` times 32, or += . Of rows, or of columns, only the first 16 where no more are wanted.
template <bool two_rows = true, bool two_columns = true>
inline void block_product(const gemm::AmxRows& a, const bf16* b, std::int64_t steps, bool add, float* out) {
    constexpr gemm::Reads again = gemm::Reads::again;
    gemm::amx_sums<two_rows, two_columns, again, again>(a, b, steps, {add ? out : nullptr, 32, out, 32},
                                                        [](std::int64_t) {});
}
// Rows, or columns, are as many elements of a head as are left from d on.
inline void product_of_rows(std::int64_t left, const gemm::AmxRows& a, const bf16* b, std::int64_t steps, bool add,
                            float* out) {
    (left > 16 ? block_product<true, true> : block_product<false, true>)(a, b, steps, add, out);
}
inline void product_of_columns(std::int64_t left, const gemm::AmxRows& a, const bf16* b, std::int64_t steps, bool add,
                               float* out) {
    (left > 16 ? block_product<true, true> : block_product<true, false>)(a, b, steps, add, out);
}

// bf16(low) | bf16(high) << 16, ties away from zero: half a unit in the last place, as the other rounding.
inline Uint pair_bits(Float low, Float high) {
    return ((reinterpret_cast<Uint>(low) + 0x8000u) >> 16) | ((reinterpret_cast<Uint>(high) + 0x8000u) & 0xffff0000u);
}
inline void store_bits(bf16* to, Uint bits) { std::memcpy(to, &bits, sizeof bits); }
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

// As soften() in float, for groups of keys: scores are scaled here, and P goes into `p` as pairs of keys. What they are
// relative to is a maximum of some time ago, as long as nothing is 2^8 times as large: no precision is lost by that, and
// older sums are seldom scaled. It is a row's own: a row's bits depend on no other.
constexpr float growth = 8;
inline void soften_groups(const Tile& tile, std::int64_t key, std::int64_t keys, float factor, const float* s, bf16* p,
                          float* max, float* sum, float* shrink, Ahead& ahead) {
    const Float none = simd::set(-std::numeric_limits<float>::infinity());
    for (int v = 0; v < 2; ++v) {
        const float* const column = s + v * lanes;
        const auto score = [&](auto masked, std::int64_t k) {
            const Float x = simd::load(column + k * tile_rows);
            if constexpr (masked)
                return tile.sees(key + k, v) ? x : none;
            else
                return x;
        };
        Float part[4] = {none, none, none, none};
        tile.parts(key, keys, [&](auto masked, std::int64_t from, std::int64_t to) {
            for (std::int64_t k = from; k < to; k += 4)
#pragma GCC unroll 4
                for (int i = 0; i < 4; ++i) part[i] = simd::max(part[i], score(masked, k + i));
        });
        const Float here = simd::max(simd::max(part[0], part[1]), simd::max(part[2], part[3])) * factor;
        const Float before = simd::load(max + v * lanes), most = here - before > growth ? here : before;
        const Float base = most == none ? Float{} : most;
        Float total{};
        tile.parts(key, keys, [&](auto masked, std::int64_t from, std::int64_t to) {
            for (std::int64_t k = from; k < to; k += 4) {
#pragma GCC unroll 2
                for (std::int64_t pair = k; pair < k + 4; pair += 2) {
                    const Float low = exp2(score(masked, pair) * factor - base),
                                high = exp2(score(masked, pair + 1) * factor - base);
                    const std::int64_t before_group = pair & ~(key_group - 1);
                    store_bits(p + v * gemm::tile_elements + (pair + before_group) * 16, pair_bits(low, high));
                    total += low;
                    total += high;
                }
                if (k % 16 == 0) ahead.ask(16);
            }
        });
        const Float less = exp2(before - base);
        simd::store(max + v * lanes, most);
        simd::store(shrink + v * lanes, less);
        simd::store(sum + v * lanes, simd::load(sum + v * lanes) * less + total);
    }
}

// Tiles of queries a task works on at most, where queries see far: keys and values are gathered again for every task.
constexpr std::int64_t amx_most_tiles = 16;

constexpr std::int64_t amx_forward_bytes(std::int64_t head_dim) {
    const std::int64_t deep = round_up(head_dim, 32);
    return amx_most_tiles * tile_rows * (deep * 6 + 8) + key_block * (tile_rows * 6 + deep * 6) +
           tile_rows * (deep * 2 + 4) + 16 * 64;
}

inline void amx_forward_tiles(const AttentionForward<bf16>& args, const Rows& list, std::int64_t first,
                              std::int64_t count, std::byte* workspace) {
    const amx::Tiles tiles;
    const std::int64_t head_dim = list.head_dim, column = list.kv_head * head_dim, deep = round_up(head_dim, 32);
    Carver carve(workspace);
    bf16* const q = carve.take<bf16>(amx_most_tiles * tile_rows * deep);    // [tile], pairs of dims
    float* const y = carve.take<float>(amx_most_tiles * tile_rows * deep);  // [tile][deep][tile_rows]
    float* const max = carve.take<float>(amx_most_tiles * tile_rows);
    float* const sum = carve.take<float>(amx_most_tiles * tile_rows);
    float* const s = carve.take<float>(key_block * tile_rows);
    bf16* const p = carve.take<bf16>(key_block * tile_rows);  // pairs of keys
    bf16* const k = carve.take<bf16>(key_block * deep);       // [key_block][deep]
    bf16* const v = carve.take<bf16>(key_block * deep);
    bf16* const v_tiles = carve.take<bf16>(key_block * deep);  // [deep / 32][key groups], dims are rows
    bf16* const rows = carve.take<bf16>(tile_rows * deep);
    float* const shrink = carve.take<float>(tile_rows);
    std::int64_t begin = std::numeric_limits<std::int64_t>::max(), end = 0;
    Tile tile_of[amx_most_tiles];
    for (std::int64_t t = 0; t < count; ++t) {
        const Tile& tile = tile_of[t] = Tile(list, args.lo, first + t);
        begin = std::min(begin, tile.begin), end = std::max(end, tile.end);
    }
    std::fill(max, max + amx_most_tiles * tile_rows, -std::numeric_limits<float>::infinity());
    std::fill(sum, sum + amx_most_tiles * tile_rows, 0.0f);
    for (std::int64_t t = 0; t < count; ++t) {
        if (tile_of[t].sees_any()) continue;
        std::fill_n(y + t * tile_rows * deep, tile_rows * deep, 0.0f);
        finish_tile(args, list, tile_of[t], y + t * tile_rows * deep, max + t * tile_rows, sum + t * tile_rows);
    }
    const float factor = args.scale * log2_e;
    std::int64_t asked = begin;  // keys
    for (std::int64_t block = begin / key_block * key_block; block < end; block += key_block) {
        const std::int64_t have_begin = std::max(block, begin) - block,
                           have_end = std::min(block + key_block, end) - block;
        Span copied;  // groups of keys
        for (std::int64_t t = 0; t < count; ++t) {
            const Tile& tile = tile_of[t];
            if (tile.begin >= block + key_block || tile.end <= block) continue;
            const bool fresh = block <= tile.begin, complete = block + key_block >= tile.end;
            const std::int64_t g0 = (std::max(block, tile.begin) - block) / key_group;
            const std::int64_t g1 = (std::min(block + key_block, tile.end) - block + key_group - 1) / key_group;
            const std::int64_t key = block + g0 * key_group, keys = (g1 - g0) * key_group;
            copied.reach(g0, g1, [&](std::int64_t from, std::int64_t to) {
                const auto copy = [&](const View<const bf16>& x, bf16* out) {
                    const std::int64_t start = from * key_group;
                    gather((to - from) * key_group, have_begin - start, have_end - start, head_dim, deep,
                           [&](std::int64_t i) { return x.row(block + start + i) + column; }, out + start * deep);
                };
                copy(args.k, k);
                copy(args.v, v);
                for (std::int64_t d = 0; d < deep; d += 32)
                    gemm::amx_pack::slivers_of_a({v, 1, deep}, d, 32, from * key_group, (to - from) * key_group,
                                                 v_tiles + d * key_block + from * group_elements, 0);
            });
            bf16* const tile_q = q + t * tile_rows * deep;
            float* const tile_y = y + t * tile_rows * deep;
            float* const tile_max = max + t * tile_rows;
            float* const tile_sum = sum + t * tile_rows;
            if (fresh) {
                gather(
                    tile_rows, 0, tile.rows, head_dim, deep,
                    [&](std::int64_t i) { return list.at(args.q, tile.first + i); }, rows);
                gemm::amx_pack::panels_of_b({rows, 1, deep}, 0, deep, 0, 32, tile_q, 0);
            }
            Ahead ahead;
            if (fresh && t + 1 < count) list.ahead(ahead, args.q, first + t + 1);
            asked = std::max(asked, std::min(key + keys, end));
            const std::int64_t soon = std::min(asked + tile_rows, std::min(end, key + keys + key_block));
            ahead.add(args.k, asked, soon, column, head_dim);
            ahead.add(args.v, asked, soon, column, head_dim);
            asked = std::max(asked, soon);
            if (complete) list.ahead(ahead, args.y, first + t);
            for (std::int64_t g = g0; g < g1; ++g) {
                block_product(rows_at(k + g * key_group * deep, deep), tile_q, deep / 32, false, s + (g - g0) * 1024);
                ahead.ask(16);
            }
            soften_groups(tile, key, keys, factor, s, p, tile_max, tile_sum, shrink, ahead);
            const Float less[2] = {simd::load(shrink), simd::load(shrink + lanes)};
            if (!fresh && simd::max_lane(simd::max(-less[0], -less[1])) > -1.0f)
                for (std::int64_t i = 0; i < 2 * head_dim; ++i)
                    simd::store(tile_y + i * lanes, simd::load(tile_y + i * lanes) * less[i % 2]);
            for (std::int64_t d = 0; d < deep; d += 32)
                product_of_rows(head_dim - d, tiles_at(v_tiles + d * key_block + g0 * group_elements), p, g1 - g0,
                                !fresh, tile_y + d * tile_rows);
            if (complete) finish_tile(args, list, tile, tile_y, tile_max, tile_sum);
        }
    }
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
                gemm::amx_pack::slivers_of_a({k, 1, deep}, d, 32, from * key_group, (to - from) * key_group,
                                             k_tiles + d * block_keys + from * group_elements, 0);
        });
        const auto spread = [&](const View<const bf16>& x, bf16* narrow, bf16* wide) {
            gather(
                tile_rows, 0, tile.rows, head_dim, deep, [&](std::int64_t i) { return list.at(x, tile.first + i); },
                rows);
            gemm::amx_pack::panels_of_b({rows, 1, deep}, 0, deep, 0, 32, narrow, 0);
            for (std::int64_t d = 0; d < deep; d += 32) {
                bf16* const to = wide + (d / 32 * chunk_tiles + in_chunk) * step_elements;
                gemm::amx_pack::interleave_rows(rows + d, deep, 32, 32, to, to + gemm::tile_elements);
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
