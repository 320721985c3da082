// kernels/attention_backward.h: a block of keys against all queries that see it, on one thread, in float arithmetic.
//
// The block owns its dk and dv. A dq belongs to all blocks its query sees: each adds its part when its turn comes, in
// ascending order, and the last one turns dq back, if it is to be, and writes it. Blocks are taken in that order too,
// so whoever waits waits for work that has begun. With P = softmax and delta = rowsum(dy * y):
//   dv = P^T dy,   ds = P * (dy v^T - delta) * scale,   dk = ds^T q,   dq = ds k.
#pragma once

#include <atomic>
#include <thread>
#include <type_traits>

#include "kernels/attention.h"
#include "kernels/attention_tile.h"
#include "kernels/rope_rows.h"

namespace keel::attention {

// Keys a task owns at most: every tile of queries is gathered once for all of them.
constexpr std::int64_t most_keys = 256;

// Of them, these are worked with a tile at a time: their scores stay in the nearest cache from product to product.
constexpr std::int64_t part_keys = 64;

// Floats of workspace.
constexpr std::int64_t backward_floats(std::int64_t head_dim) {
    const std::int64_t wide = round_up(head_dim, lanes);
    return tile_rows * (2 * head_dim + 2 * part_keys + 3 * wide + 2) + most_keys * 4 * wide;
}

// Scratch shared by the threads, for all heads.
struct BackwardScratch {
    float* dq;  // sums in progress: [kv_heads][rows][head_dim], or [kv_heads][tiles][head_dim][tile_rows]
    std::atomic<std::int32_t>* turn;  // [kv_heads][tiles], the block of keys that may add to this tile's dq
    std::int32_t* begin;              // [tiles], the first key that a tile sees

    struct Sizes {
        std::int64_t dq, turn, begin;  // bytes
        Sizes(std::int64_t tokens, std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim) {
            const std::int64_t tiles = kv_heads * ((heads / kv_heads * tokens + tile_rows - 1) / tile_rows);
            dq = tiles * tile_rows * round_up(head_dim, 32) * 4;
            turn = round_up(tiles * 4, 64);
            begin = round_up(tiles / kv_heads * 4, 64);
        }
    };
    BackwardScratch(std::byte* at, std::int64_t tokens, std::int64_t heads, std::int64_t kv_heads,
                    std::int64_t head_dim) {
        const Sizes bytes(tokens, heads, kv_heads, head_dim);
        dq = reinterpret_cast<float*>(at);
        turn = reinterpret_cast<std::atomic<std::int32_t>*>(at + bytes.dq);
        begin = reinterpret_cast<std::int32_t*>(at + bytes.dq + bytes.turn);
    }
};

// lse in base 2, and delta times `scale`, of a tile's rows. Every block of keys computes them again: a tile's dy is in
// the nearest cache by then, and a pass of their own over dy and y would take longer.
template <class T>
void lse_and_delta(const AttentionBackward<T>& args, const Rows& list, const Tile& tile, float scale, float* lse,
                   float* delta) {
    for (std::int64_t i = 0; i < tile_rows; ++i) {
        lse[i] = delta[i] = 0;
        if (i >= tile.rows) continue;
        const std::int64_t row = tile.first + i;
        const T *dy = list.at(args.dy, row), *y = list.at(args.y, row);
        Float sum{};
        simd::sweep(list.head_dim, [&](auto at) { sum += at.load(dy) * at.load(y); });
        lse[i] = args.lse[list.head(row) * list.tokens + list.token(row)] * log2_e;
        delta[i] = simd::sum(sum) * scale;
    }
}

// Where a tile's keys begin, and so whose turn is first on its dq. Nobody comes to a tile that sees no key.
template <class T>
void backward_prepare(const AttentionBackward<T>& args, const Rows& list, std::int64_t index, std::int64_t kv_heads,
                      std::int64_t block_keys, const BackwardScratch& scratch) {
    const Tile tile(list, args.lo, index);
    scratch.begin[index] = static_cast<std::int32_t>(tile.begin);
    for (std::int64_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
        scratch.turn[kv_head * list.tiles() + index].store(static_cast<std::int32_t>(tile.begin / block_keys),
                                                           std::memory_order_relaxed);
        Rows here = list;
        here.kv_head = kv_head;
        for (std::int64_t i = 0; !tile.sees_any() && i < tile.rows; ++i)
            std::fill_n(here.at(args.dq, tile.first + i), here.head_dim, T(0.0f));
    }
}

// s becomes P and dp becomes ds; dp and delta have been scaled.
template <bool masked>
inline void differentiate(const Tile& tile, std::int64_t key, std::int64_t keys, const float* lse, const float* delta,
                          float* s, float* dp) {
    for (int v = 0; v < tile.columns / lanes; ++v) {
        const Float base = simd::load(lse + v * lanes), mean = simd::load(delta + v * lanes);
        for (std::int64_t k = 0; k < keys; ++k) {
            float* const at = s + k * tile_rows + v * lanes;
            float* const d_at = dp + k * tile_rows + v * lanes;
            Float p = exp2(simd::load(at) - base);
            Float ds = p * (simd::load(d_at) - mean);
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
    float* const q_columns = v + block_keys * wide;              // [head_dim][tile_rows], scaled to base 2
    float* const dy_columns = q_columns + head_dim * tile_rows;  // scaled
    float* const q_rows = dy_columns + head_dim * tile_rows;     // [tile_rows][wide]
    float* const dy_rows = q_rows + tile_rows * wide;
    float* const dq = dy_rows + tile_rows * wide;  // [tile_rows][wide]
    float* const s = dq + tile_rows * wide;        // [part_keys][tile_rows]
    float* const dp = s + part_keys * tile_rows;
    float* const lse = dp + part_keys * tile_rows;
    float* const delta = lse + tile_rows;
    std::fill(dk, k, 0.0f);

    const std::int64_t block_end = block_begin + block_size;
    const std::int64_t first_token = std::max<std::int64_t>(0, block_begin - list.query_offset);
    Span copied;  // keys of the block, as all below
    std::int64_t results_asked = 0;
    for (std::int64_t index = first_token * list.group / tile_rows; index < list.tiles(); ++index) {
        if (scratch.begin[index] >= block_end || list.end(index) <= block_begin) continue;
        const Tile tile(list, args.lo, index);
        const std::int64_t begin = std::max(tile.begin, block_begin) - block_begin,
                           end = std::min(tile.end, block_end) - block_begin;
        copied.reach(begin, end, [&](std::int64_t from, std::int64_t to) {
            rows_of<T>(
                to - from, head_dim, [&](std::int64_t i) { return args.k.row(block_begin + from + i) + column; },
                k + from * wide);
            rows_of<T>(
                to - from, head_dim, [&](std::int64_t i) { return args.v.row(block_begin + from + i) + column; },
                v + from * wide);
        });
        rows_of<T>(
            tile.rows, head_dim, [&](std::int64_t i) { return list.at(args.q, tile.first + i); }, q_rows);
        rows_of<T>(
            tile.rows, head_dim, [&](std::int64_t i) { return list.at(args.dy, tile.first + i); }, dy_rows);
        columns_of(
            tile, head_dim, [&](std::int64_t i) { return q_rows + i * wide; }, args.scale * log2_e, q_columns);
        columns_of(
            tile, head_dim, [&](std::int64_t i) { return dy_rows + i * wide; }, args.scale, dy_columns);
        lse_and_delta(args, list, tile, args.scale, lse, delta);
        const bool first = tile.begin >= block_begin, last = tile.end <= block_begin + block_keys;
        Ahead ahead;
        list.ahead(ahead, args.q, index + 1);
        list.ahead(ahead, args.dy, index + 1);
        list.ahead(ahead, args.y, index + 1);
        const std::int64_t copied_end = block_begin + copied.end,
                           soon = block_begin + std::min(copied.end + tile_rows, block_size);
        ahead.add(args.k, copied_end, soon, column, head_dim);
        ahead.add(args.v, copied_end, soon, column, head_dim);
        if (last) list.ahead(ahead, args.dq, index);
        const std::int64_t results = std::min(results_asked + tile_rows, block_size);
        ahead.add(args.dk, block_begin + results_asked, block_begin + results, column, head_dim);
        ahead.add(args.dv, block_begin + results_asked, block_begin + results, column, head_dim);
        results_asked = results;
        const auto multiply = [&](tile::Order order, std::int64_t rows, std::int64_t columns,
                                  const tile::Product& product) {
            tile::product(order, rows, columns, product, [&] { ahead.ask(8); });
        };
        for (std::int64_t part = begin / part_keys * part_keys; part < end; part += part_keys) {
            const std::int64_t at = std::max(begin, part), keys = std::min(end, part + part_keys) - at;
            const tile::Product transposed{.a = k + at * wide,
                                           .a_stride = wide,
                                           .b = q_columns,
                                           .b_stride = tile_rows,
                                           .b_panel = tile::panel,
                                           .c = s,
                                           .c_stride = tile_rows,
                                           .k = head_dim};
            multiply(tile::Order::rows, keys, tile.columns, transposed);
            tile::Product product = transposed;
            product.a = v + at * wide, product.b = dy_columns, product.c = dp;
            multiply(tile::Order::rows, keys, tile.columns, product);
            const std::int64_t key = block_begin + at;
            if (tile.all_see(key, key + keys))
                differentiate<false>(tile, key, keys, lse, delta, s, dp);
            else
                differentiate<true>(tile, key, keys, lse, delta, s, dp);

            product = {.a = s,
                       .a_stride = tile_rows,
                       .b = dy_rows,
                       .b_stride = wide,
                       .b_panel = tile::panel,
                       .c = dv + at * wide,
                       .c_stride = wide,
                       .k = tile.rows,
                       .finish = tile::Finish::add};
            multiply(tile::Order::rows, keys, wide, product);
            product.a = dp, product.b = q_rows, product.c = dk + at * wide;
            multiply(tile::Order::rows, keys, wide, product);
            multiply(tile::Order::columns, tile.rows, wide,
                     {.a = dp,
                      .a_stride = tile_rows,
                      .b = k + at * wide,
                      .b_stride = wide,
                      .b_panel = tile::panel,
                      .c = dq,
                      .c_stride = wide,
                      .k = keys,
                      .finish = part <= begin ? tile::Finish::store : tile::Finish::add});
        }

        std::atomic<std::int32_t>& turn = scratch.turn[list.kv_head * list.tiles() + index];
        while (turn.load(std::memory_order_acquire) != block) std::this_thread::yield();
        for (std::int64_t i = 0; i < tile.rows; ++i) {
            float* const part = dq + i * wide;
            float* const total = scratch.dq + (list.kv_head * list.count() + tile.first + i) * head_dim;
            if (!first) simd::sweep(head_dim, [&](auto at) { at.store(part, at.load(total) + at.load(part)); });
            if (!last) {
                store_row(total, part, head_dim);
                continue;
            }
            const std::int64_t row = tile.first + i;
            if (args.q_rope) rope::turn_back(part, *args.q_rope, list.token(row));
            store_row(list.at(args.dq, row), part, head_dim);
        }
        turn.store(static_cast<std::int32_t>(block + 1), std::memory_order_release);
    }
    for (std::int64_t i = 0; i < block_size; ++i) {
        if (args.k_rope) rope::turn_back(dk + i * wide, *args.k_rope, block_begin + i);
        store_row(args.dk.row(block_begin + i) + column, dk + i * wide, head_dim);
        store_row(args.dv.row(block_begin + i) + column, dv + i * wide, head_dim);
    }
}

}  // namespace keel::attention
