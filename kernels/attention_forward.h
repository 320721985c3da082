// kernels/attention_forward.h: a tile of queries against all its keys, on one thread, in float arithmetic.
//
// Blocks of keys lie at fixed places, and a block or a key that a query does not see changes none of its bits, so a
// query's result depends on its own interval alone: not on the tile it is in, nor on how many queries were asked at
// once.
#pragma once

#include <cmath>
#include <type_traits>

#include "kernels/attention.h"
#include "kernels/attention_tile.h"

namespace keel::attention {

// Tiles of queries one task works on, block of keys after block: what is copied of K and V is used by all of them.
constexpr std::int64_t most_tiles = 8;

// Floats of workspace.
constexpr std::int64_t forward_floats(std::int64_t head_dim) {
    return tile_rows * (most_tiles * (2 * head_dim + 2) + key_block + 1) + round_up(head_dim, lanes) * 2 * key_block;
}

// Scores become probabilities relative to the running maximum; `shrink` is what older sums must be multiplied by.
template <bool masked>
inline void soften(const Tile& tile, std::int64_t key, std::int64_t keys, float* s, float* max, float* sum,
                   float* shrink) {
    const Float none = simd::set(-std::numeric_limits<float>::infinity());
    for (int v = 0; v < tile.columns / lanes; ++v) {
        float* const column = s + v * lanes;
        const Float before = simd::load(max + v * lanes);
        const auto score = [&](std::int64_t k) {
            Float x = simd::load(column + k * tile_rows);
            if constexpr (masked) {
                x = tile.sees(key + k, v) ? x : none;
                simd::store(column + k * tile_rows, x);
            }
            return x;
        };
        Float part[4] = {before, none, none, none};  // a single maximum would wait for itself
        std::int64_t k = 0;
        for (; k + 4 <= keys; k += 4)
#pragma GCC unroll 4
            for (int i = 0; i < 4; ++i) part[i] = simd::max(part[i], score(k + i));
        for (; k < keys; ++k) part[0] = simd::max(part[0], score(k));
        const Float most = simd::max(simd::max(part[0], part[1]), simd::max(part[2], part[3]));
        const Float base = most == none ? Float{} : most;  // nothing seen yet: -inf - -inf would be NaN
        Float total{};
        for (k = 0; k < keys; ++k) {
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

// y and lse of a tile whose sums are complete. A row that saw no key has a sum of 0 and a maximum of -infinity.
template <class T>
void finish_tile(const AttentionForward<T>& args, const Rows& list, const Tile& tile, const float* y, const float* max,
                 const float* sum) {
    const std::int64_t head_dim = list.head_dim;
    for (std::int64_t i = 0; i < tile.rows; ++i)
        args.lse[list.head(tile.first + i) * list.tokens + list.token(tile.first + i)] =
            (max[i] + std::log2(sum[i])) * ln_2;
    for (std::int64_t at = 0; at < tile.columns; at += lanes) {
        const Float total = simd::load(sum + at), factor = total == Float{} ? Float{} : 1.0f / total;
        const std::int64_t rows = std::min<std::int64_t>(lanes, tile.rows - at);
        T* to[lanes];
        for (std::int64_t i = 0; i < rows; ++i) to[i] = list.at(args.y, tile.first + at + i);
        for (std::int64_t d = 0; d < head_dim; d += lanes) {
            const std::int64_t here = std::min<std::int64_t>(lanes, head_dim - d);
            Float block[lanes];
            if (rows == lanes && here == lanes) {
#pragma GCC unroll 16
                for (int i = 0; i < lanes; ++i) block[i] = simd::load(y + (d + i) * tile_rows + at) * factor;
                pack::transpose(block);
#pragma GCC unroll 16
                for (int i = 0; i < lanes; ++i) simd::store(to[i] + d, block[i]);
                continue;
            }
            for (int i = 0; i < lanes; ++i)
                block[i] = i < here ? simd::load(y + (d + i) * tile_rows + at) * factor : Float{};
            pack::transpose(block);
            for (std::int64_t i = 0; i < rows; ++i)
                simd::sweep(here, [&](auto part) { part.store(to[i] + d, block[i]); });
        }
    }
}

// Tiles [first, first + count), count <= most_tiles.
template <class T>
void forward_tiles(const AttentionForward<T>& args, const Rows& list, std::int64_t first, std::int64_t count,
                   float* workspace) {
    const std::int64_t head_dim = list.head_dim, column = list.kv_head * head_dim, wide = round_up(head_dim, lanes);
    float* const q = workspace;                                // [tile][head_dim][tile_rows], scaled to base 2
    float* const y = q + most_tiles * head_dim * tile_rows;    // [tile][head_dim][tile_rows]
    float* const max = y + most_tiles * head_dim * tile_rows;  // [tile][tile_rows]
    float* const sum = max + most_tiles * tile_rows;
    float* const s = sum + most_tiles * tile_rows;  // [key_block][tile_rows]
    float* const shrink = s + key_block * tile_rows;
    float* const k_rows = shrink + tile_rows;  // [key_block][wide]
    float* const v_rows = k_rows + key_block * wide;
    std::int64_t begin = std::numeric_limits<std::int64_t>::max(), end = 0;
    Tile tile_of[most_tiles];
    for (std::int64_t t = 0; t < count; ++t) {
        const Tile& tile = tile_of[t] = Tile(list, args.lo, first + t);
        begin = std::min(begin, tile.begin), end = std::max(end, tile.end);
    }
    std::fill(max, sum, -std::numeric_limits<float>::infinity());
    std::fill(sum, s, 0.0f);
    for (std::int64_t t = 0; t < count; ++t) {
        if (tile_of[t].sees_any()) continue;
        std::fill_n(y + t * head_dim * tile_rows, head_dim * tile_rows, 0.0f);
        finish_tile(args, list, tile_of[t], y + t * head_dim * tile_rows, max + t * tile_rows, sum + t * tile_rows);
    }
    std::int64_t asked = begin;  // keys
    for (std::int64_t block = begin / key_block * key_block; block < end; block += key_block) {
        const std::int64_t block_begin = std::max(block, begin), block_end = std::min(block + key_block, end);
        const float *k = k_rows, *v = v_rows;
        std::int64_t k_stride = wide, v_stride = wide;
        bool copies = true;
        if constexpr (std::is_same_v<T, float>) {
            copies = count > 1;  // a single tile reads each key once: where it lies
            if (!copies)
                k = args.k.row(block_begin) + column, v = args.v.row(block_begin) + column, k_stride = args.k.stride(),
                v_stride = args.v.stride();
        }
        Span copied;
        for (std::int64_t t = 0; t < count; ++t) {
            const Tile& tile = tile_of[t];
            const std::int64_t key = std::max(block_begin, tile.begin), keys = std::min(block_end, tile.end) - key;
            if (keys <= 0) continue;
            const bool fresh = block <= tile.begin, complete = block + key_block >= tile.end;
            if (copies)
                copied.reach(key, key + keys, [&](std::int64_t from, std::int64_t to) {
                    rows_of<T>(
                        to - from, head_dim, [&](std::int64_t i) { return args.k.row(from + i) + column; },
                        k_rows + (from - block_begin) * wide);
                    rows_of<T>(
                        to - from, head_dim, [&](std::int64_t i) { return args.v.row(from + i) + column; },
                        v_rows + (from - block_begin) * wide);
                });
            float* const tile_q = q + t * head_dim * tile_rows;
            float* const tile_y = y + t * head_dim * tile_rows;
            float* const tile_max = max + t * tile_rows;
            float* const tile_sum = sum + t * tile_rows;
            if (fresh)
                columns_of(
                    tile, head_dim, [&](std::int64_t i) { return list.at(args.q, tile.first + i); },
                    args.scale * log2_e, tile_q);
            Ahead ahead;
            if (fresh && t + 1 < count) list.ahead(ahead, args.q, first + t + 1);
            asked = std::max(asked, key + keys);
            const std::int64_t soon = std::min(asked + tile_rows, std::min(end, key + keys + key_block));
            ahead.add(args.k, asked, soon, column, head_dim);
            ahead.add(args.v, asked, soon, column, head_dim);
            asked = std::max(asked, soon);
            if (complete) list.ahead(ahead, args.y, first + t);
            const auto ask = [&] { ahead.ask(24); };
            tile::product(tile::Order::rows, keys, tile.columns,
                          {.a = k + (key - block_begin) * k_stride,
                           .a_stride = k_stride,
                           .b = tile_q,
                           .b_stride = tile_rows,
                           .b_panel = tile::panel,
                           .c = s,
                           .c_stride = tile_rows,
                           .k = head_dim},
                          ask);
            if (tile.all_see(key, key + keys))
                soften<false>(tile, key, keys, s, tile_max, tile_sum, shrink);
            else
                soften<true>(tile, key, keys, s, tile_max, tile_sum, shrink);
            tile::product(tile::Order::columns, head_dim, tile.columns,
                          {.a = v + (key - block_begin) * v_stride,
                           .a_stride = v_stride,
                           .b = s,
                           .b_stride = tile_rows,
                           .b_panel = tile::panel,
                           .c = tile_y,
                           .c_stride = tile_rows,
                           .k = keys,
                           .finish = fresh ? tile::Finish::store : tile::Finish::scale_add,
                           .scale = shrink},
                          ask);
            if (complete) finish_tile(args, list, tile, tile_y, tile_max, tile_sum);
        }
    }
}

}  // namespace keel::attention
