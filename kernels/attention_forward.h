// kernels/attention_forward.h: a tile of queries against all its keys, on one thread, in float arithmetic.
//
// Blocks of keys lie at fixed places, and a block or a key that a query does not see changes none of its bits, so a query's
// result depends on its own interval alone: not on the tile it is in, nor on how many queries were asked at once.
#pragma once

#include <cmath>
#include <type_traits>

#include "kernels/attention.h"
#include "kernels/attention_tile.h"

namespace keel::attention {

// Floats of workspace.
constexpr std::int64_t forward_floats(std::int64_t head_dim) {
    return tile_rows * (2 * head_dim + key_block + 3) + round_up(head_dim, lanes) * (2 * key_block + lanes);
}

// Scores become probabilities relative to the running maximum; `shrink` is what older sums must be multiplied by.
template <bool masked>
inline void soften(const Tile& tile, std::int64_t key, std::int64_t keys, float* s, float* max, float* sum, float* shrink) {
    const Float none = simd::set(-std::numeric_limits<float>::infinity());
    for (int v = 0; v < tile.columns / lanes; ++v) {
        float* const column = s + v * lanes;
        const Float before = simd::load(max + v * lanes);
        Float most = before;
        for (std::int64_t k = 0; k < keys; ++k) {
            Float x = simd::load(column + k * tile_rows);
            if constexpr (masked) {
                x = tile.sees(key + k, v) ? x : none;
                simd::store(column + k * tile_rows, x);
            }
            most = simd::max(most, x);
        }
        const Float base = most == none ? Float{} : most;  // nothing seen yet: -inf - -inf would be NaN
        Float total{};
        for (std::int64_t k = 0; k < keys; ++k) {
            const Float p = exp2(simd::load(column + k * tile_rows) - base);
            simd::store(column + k * tile_rows, p);
            total += p;
        }
        const Float less = exp2(before - base);
        simd::store(max + v * lanes, most);
        simd::store(shrink + v * lanes, less);
        simd::store(sum + v * lanes, simd::load(sum + v * lanes) * less + total);
    }
}

template <class T>
void forward_tile(const AttentionForward<T>& args, const Rows& list, std::int64_t index, float* workspace) {
    const std::int64_t head_dim = list.head_dim, column = list.kv_head * head_dim;
    const Tile tile(list, args.lo, index);
    float* const q = workspace;                                 // [head_dim][tile_rows], scaled to base 2
    float* const y = q + head_dim * tile_rows;                  // [head_dim][tile_rows]
    float* const s = y + head_dim * tile_rows;                  // [key_block][tile_rows]
    float* const max = s + key_block * tile_rows;
    float* const sum = max + tile_rows;
    float* const shrink = sum + tile_rows;
    float* const k_rows = shrink + tile_rows;                   // [key_block][head_dim], if T is not float
    float* const v_rows = k_rows + key_block * round_up(head_dim, lanes);
    float* const out = v_rows + key_block * round_up(head_dim, lanes);  // [lanes][head_dim]
    columns_of(list, args.q, tile, args.scale * log2_e, q);
    for (std::int64_t i = 0; i < tile_rows; ++i) max[i] = -std::numeric_limits<float>::infinity(), sum[i] = 0;

    for (std::int64_t block = tile.begin / key_block * key_block; block < tile.end; block += key_block) {
        const std::int64_t key = std::max(block, tile.begin), keys = std::min(block + key_block, tile.end) - key;
        const float *k, *v;
        std::int64_t k_stride, v_stride;
        if constexpr (std::is_same_v<T, float>) {
            k = args.k.row(key) + column, k_stride = args.k.stride();
            v = args.v.row(key) + column, v_stride = args.v.stride();
        } else {
            rows_of<T>(keys, head_dim, [&](std::int64_t i) { return args.k.row(key + i) + column; }, k_rows);
            rows_of<T>(keys, head_dim, [&](std::int64_t i) { return args.v.row(key + i) + column; }, v_rows);
            k = k_rows, v = v_rows, k_stride = v_stride = round_up(head_dim, lanes);
        }
        tile::product(tile::Order::rows, keys, tile.columns,
                      {.a = k, .a_stride = k_stride, .b = q, .b_stride = tile_rows, .b_panel = tile::panel, .c = s,
                       .c_stride = tile_rows, .k = head_dim});
        if (tile.all_see(key, key + keys)) soften<false>(tile, key, keys, s, max, sum, shrink);
        else soften<true>(tile, key, keys, s, max, sum, shrink);
        const bool first = block <= tile.begin;
        tile::product(tile::Order::columns, head_dim, tile.columns,
                      {.a = v, .a_stride = v_stride, .b = s, .b_stride = tile_rows, .b_panel = tile::panel, .c = y,
                       .c_stride = tile_rows, .k = keys, .finish = first ? tile::Finish::store : tile::Finish::scale_add,
                       .scale = shrink});
    }
    for (std::int64_t i = 0; i < tile.rows; ++i)
        args.lse[list.head(tile.first + i) * list.tokens + list.token(tile.first + i)] = (max[i] + std::log2(sum[i])) * ln_2;
    for (std::int64_t at = 0; at < tile.columns; at += lanes) {
        const Float divisor = simd::load(sum + at);
        const std::int64_t stride = round_up(head_dim, lanes);
        for (std::int64_t d = 0; d < head_dim; d += lanes) {
            Float block[lanes];
            for (int i = 0; i < lanes; ++i) block[i] = d + i < head_dim ? simd::load(y + (d + i) * tile_rows + at) / divisor : Float{};
            pack::transpose(block);
            for (int i = 0; i < lanes; ++i) simd::store(out + i * stride + d, block[i]);
        }
        for (std::int64_t i = 0; i < std::min<std::int64_t>(lanes, tile.rows - at); ++i) {
            T* const row = list.at(args.y, tile.first + at + i);
            for (std::int64_t d = 0; d < head_dim; d += lanes) {
                if (d + lanes <= head_dim) simd::store(row + d, simd::load(out + i * stride + d));
                else simd::store_part(row + d, simd::load(out + i * stride + d), head_dim - d);
            }
        }
    }
}

}  // namespace keel::attention
