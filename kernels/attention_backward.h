// kernels/attention_backward.h: a block of keys against all queries that see it, on one thread, in float arithmetic.
//
// The block owns its dk and dv. A dq belongs to all blocks its query sees: each adds its part when its turn comes, in
// ascending order, and the last one writes dq. Blocks are taken in that order too, so whoever waits waits for work that
// has begun. With P = softmax and delta = rowsum(dy * y):
//   dv = P^T dy,   ds = P * (dy v^T - delta) * scale,   dk = ds^T q,   dq = ds k.
#pragma once

#include <atomic>
#include <thread>
#include <type_traits>

#include "kernels/attention.h"
#include "kernels/attention_tile.h"

namespace keel::attention {

// Keys a task owns at most: every tile of queries is gathered once for all of them.
constexpr std::int64_t most_keys = 256;

// Floats of workspace.
constexpr std::int64_t backward_floats(std::int64_t head_dim) {
    const std::int64_t wide = round_up(head_dim, lanes);
    return tile_rows * (2 * head_dim + 2 * most_keys + 3 * wide + 2) + most_keys * 4 * wide;
}

// Scratch shared by the threads, for all heads.
struct BackwardScratch {
    float* delta;  // [kv_heads][rows]
    float* dq;     // sums in progress: [kv_heads][rows][head_dim], or [kv_heads][tiles][head_dim][tile_rows]
    std::atomic<std::int32_t>* turn;  // [kv_heads][tiles], the block of keys that may add to this tile's dq

    struct Sizes {
        std::int64_t delta, dq, turn;  // bytes
        Sizes(std::int64_t tokens, std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim) {
            const std::int64_t tiles = kv_heads * ((heads / kv_heads * tokens + tile_rows - 1) / tile_rows);
            delta = round_up(heads * tokens * 4, 64);
            dq = tiles * tile_rows * round_up(head_dim, 32) * 4;
            turn = round_up(tiles * 4, 64);
        }
    };
    BackwardScratch(std::byte* at, std::int64_t tokens, std::int64_t heads, std::int64_t kv_heads,
                    std::int64_t head_dim) {
        const Sizes bytes(tokens, heads, kv_heads, head_dim);
        delta = reinterpret_cast<float*>(at);
        dq = reinterpret_cast<float*>(at + bytes.delta);
        turn = reinterpret_cast<std::atomic<std::int32_t>*>(at + bytes.delta + bytes.dq);
    }
};

// delta of a tile's rows, and whose turn is first.
template <class T>
void backward_prepare(const AttentionBackward<T>& args, const Rows& list, std::int64_t index, std::int64_t block_keys,
                      const BackwardScratch& scratch) {
    const Tile tile(list, args.lo, index);
    for (std::int64_t i = 0; i < tile.rows; ++i) {
        const std::int64_t row = tile.first + i;
        const T *dy = list.at(args.dy, row), *y = list.at(args.y, row);
        Float sum{};
        for (std::int64_t d = 0; d < list.head_dim; d += lanes) {
            const std::int64_t here = list.head_dim - d;
            sum += here >= lanes ? simd::load(dy + d) * simd::load(y + d)
                                 : simd::load_part(dy + d, here) * simd::load_part(y + d, here);
        }
        scratch.delta[list.kv_head * list.count() + row] = simd::sum(sum);
    }
    scratch.turn[list.kv_head * list.tiles() + index].store(static_cast<std::int32_t>(tile.begin / block_keys),
                                                            std::memory_order_relaxed);
}

// s becomes P and dp becomes ds.
template <bool masked>
inline void differentiate(const Tile& tile, std::int64_t key, std::int64_t keys, const float* lse, const float* delta,
                          float scale, float* s, float* dp) {
    for (int v = 0; v < tile.columns / lanes; ++v) {
        const Float base = simd::load(lse + v * lanes), mean = simd::load(delta + v * lanes);
        for (std::int64_t k = 0; k < keys; ++k) {
            float* const at = s + k * tile_rows + v * lanes;
            float* const d_at = dp + k * tile_rows + v * lanes;
            Float p = exp2(simd::load(at) - base);
            Float ds = p * (simd::load(d_at) - mean) * scale;
            if constexpr (masked) {
                const Int seen = tile.sees(key + k, v);
                p = seen ? p : Float{};
                ds = seen ? ds : Float{};
            }
            simd::store(at, p);
            simd::store(d_at, ds);
        }
    }
}

template <class T>
void backward_block(const AttentionBackward<T>& args, const Rows& list, std::int64_t block, std::int64_t block_keys,
                    const BackwardScratch& scratch, float* workspace) {
    const std::int64_t head_dim = list.head_dim, column = list.kv_head * head_dim, wide = round_up(head_dim, lanes);
    const std::int64_t block_begin = block * block_keys, block_size = std::min(block_keys, args.k.dim(0) - block_begin);
    float* const dk = workspace;  // [block_keys][wide]
    float* const dv = dk + block_keys * wide;
    float* const k = dv + block_keys * wide;
    float* const v = k + block_keys * wide;
    float* const q_columns = v + block_keys * wide;  // [head_dim][tile_rows], scaled to base 2
    float* const dy_columns = q_columns + head_dim * tile_rows;
    float* const q_rows = dy_columns + head_dim * tile_rows;  // [tile_rows][wide]
    float* const dy_rows = q_rows + tile_rows * wide;
    float* const dq = dy_rows + tile_rows * wide;  // [tile_rows][wide]
    float* const s = dq + tile_rows * wide;        // [block_keys][tile_rows]
    float* const dp = s + block_keys * tile_rows;
    float* const lse = dp + block_keys * tile_rows;
    float* const delta = lse + tile_rows;
    std::fill(dk, k, 0.0f);
    rows_of<T>(
        block_size, head_dim, [&](std::int64_t i) { return args.k.row(block_begin + i) + column; }, k);
    rows_of<T>(
        block_size, head_dim, [&](std::int64_t i) { return args.v.row(block_begin + i) + column; }, v);

    const std::int64_t first_token = std::max<std::int64_t>(0, block_begin - list.query_offset);
    for (std::int64_t index = first_token * list.group / tile_rows; index < list.tiles(); ++index) {
        const Tile tile(list, args.lo, index);
        if (tile.begin >= block_begin + block_size || tile.end <= block_begin) continue;
        const std::int64_t key = std::max(tile.begin, block_begin),
                           keys = std::min(tile.end, block_begin + block_size) - key;
        const std::int64_t skip = key - block_begin;
        columns_of(list, args.q, tile, args.scale * log2_e, q_columns);
        columns_of(list, args.dy, tile, 1.0f, dy_columns);
        rows_of<T>(
            tile.rows, head_dim, [&](std::int64_t i) { return list.at(args.q, tile.first + i); }, q_rows);
        rows_of<T>(
            tile.rows, head_dim, [&](std::int64_t i) { return list.at(args.dy, tile.first + i); }, dy_rows);
        for (std::int64_t i = 0; i < tile_rows; ++i) {
            const std::int64_t row = tile.first + i;
            const bool used = i < tile.rows;
            lse[i] = used ? args.lse[list.head(row) * list.tokens + list.token(row)] * log2_e : 0;
            delta[i] = used ? scratch.delta[list.kv_head * list.count() + row] : 0;
        }
        const tile::Product transposed{.a = k + skip * wide,
                                       .a_stride = wide,
                                       .b = q_columns,
                                       .b_stride = tile_rows,
                                       .b_panel = tile::panel,
                                       .c = s,
                                       .c_stride = tile_rows,
                                       .k = head_dim};
        tile::product(tile::Order::rows, keys, tile.columns, transposed);
        tile::Product product = transposed;
        product.a = v + skip * wide, product.b = dy_columns, product.c = dp;
        tile::product(tile::Order::rows, keys, tile.columns, product);
        if (tile.all_see(key, key + keys))
            differentiate<false>(tile, key, keys, lse, delta, args.scale, s, dp);
        else
            differentiate<true>(tile, key, keys, lse, delta, args.scale, s, dp);

        product = {.a = s,
                   .a_stride = tile_rows,
                   .b = dy_rows,
                   .b_stride = wide,
                   .b_panel = tile::panel,
                   .c = dv + skip * wide,
                   .c_stride = wide,
                   .k = tile.rows,
                   .finish = tile::Finish::add};
        tile::product(tile::Order::rows, keys, wide, product);
        product.a = dp, product.b = q_rows, product.c = dk + skip * wide;
        tile::product(tile::Order::rows, keys, wide, product);
        tile::product(tile::Order::columns, tile.rows, wide,
                      {.a = dp,
                       .a_stride = tile_rows,
                       .b = k + skip * wide,
                       .b_stride = wide,
                       .b_panel = tile::panel,
                       .c = dq,
                       .c_stride = wide,
                       .k = keys});

        std::atomic<std::int32_t>& turn = scratch.turn[list.kv_head * list.tiles() + index];
        while (turn.load(std::memory_order_acquire) != block) std::this_thread::yield();
        const bool first = tile.begin >= block_begin, last = tile.end <= block_begin + block_keys;
        for (std::int64_t i = 0; i < tile.rows; ++i) {
            float* const part = dq + i * wide;
            float* const total = scratch.dq + (list.kv_head * list.count() + tile.first + i) * head_dim;
            if (!first) simd::sweep(head_dim, [&](auto at) { at.store(part, at.load(total) + at.load(part)); });
            if (last)
                store_row(list.at(args.dq, tile.first + i), part, head_dim);
            else
                store_row(total, part, head_dim);
        }
        turn.store(static_cast<std::int32_t>(block + 1), std::memory_order_release);
    }
    for (std::int64_t i = 0; i < block_size; ++i) {
        store_row(args.dk.row(block_begin + i) + column, dk + i * wide, head_dim);
        store_row(args.dv.row(block_begin + i) + column, dv + i * wide, head_dim);
    }
}

}  // namespace keel::attention
