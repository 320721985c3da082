// kernels/attention_amx_forward.h: tiles of queries against all their keys, on tile registers.
// What it keeps, and how, is in kernels/attention_amx.h; whose bits depend on what, in kernels/attention_forward.h.
#pragma once

#include "kernels/attention_amx.h"

#if KEEL_AMX
#include <cstring>

#include "kernels/attention_forward.h"

namespace keel::attention {

// bf16(low) | bf16(high) << 16, ties away from zero: half a unit in the last place, as the other rounding.
inline Uint pair_bits(Float low, Float high) {
    return ((reinterpret_cast<Uint>(low) + 0x8000u) >> 16) | ((reinterpret_cast<Uint>(high) + 0x8000u) & 0xffff0000u);
}
inline void store_bits(bf16* to, Uint bits) { std::memcpy(to, &bits, sizeof bits); }
// P is relative to a row's maximum of some time ago, as long as nothing in the row is 2^growth times as large: no
// precision is lost by that, and older sums are seldom scaled. A row's bits still depend on no other row.
constexpr float growth = 8;

// As soften() in float, for groups of keys: scores are scaled here, and P goes into `p` as pairs of keys.
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
                    gemm::pairs_pack::slivers_of_a({v, 1, deep}, d, 32, from * key_group, (to - from) * key_group,
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
                gemm::pairs_pack::panels_of_b({rows, 1, deep}, 0, deep, 0, 32, tile_q, 0);
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

}  // namespace keel::attention
#endif
