// kernels/matmul_float.h: one tile of a product on one thread, in float arithmetic, for operands and results of any type.
//
// The sum over k is worked in blocks of the same length, chosen from k alone; a block is one chain from zero, and blocks are
// added to C in order. Neither the tile nor who packed B can be seen in a result.
#pragma once

#include <algorithm>

#include "kernels/matmul.h"
#include "kernels/matmul_pack.h"

namespace keel::gemm {

// A sliver of A (14 x 256 floats) stays in the first cache while panels of B pass through from the second, which holds the
// tile of C and this and the next block of A and B. Measured best of 256, 384, 512 by 112, 224 rows by 256, 512 columns.
constexpr std::int64_t k_block = 256;
constexpr std::int64_t tile_rows = 336, tile_columns = 256;  // the most one call works on
constexpr std::int64_t tile_rows_shared = 112;               // and where B is packed already: small, to be many

// Workspace of one thread, in floats.
constexpr std::int64_t a_floats = (tile_rows / tile::max_rows + 1) * pack::sliver_floats(k_block);
constexpr std::int64_t b_floats = tile::panel * k_block;
constexpr std::int64_t c_floats = tile_rows * tile_columns;
constexpr std::int64_t edge_floats = tile::max_rows * tile::panel;
static_assert((a_floats + b_floats + c_floats + edge_floats) * 4 <= matmul_workspace_bytes);

inline tile::Cut blocks_of(std::int64_t k) { return {k, k_block}; }

// How a product is cut, from its shape alone. B is packed once for all threads, in pieces that fit `shared` floats, unless there
// is a single tile of rows, whose tasks then pack for themselves.
struct Plan {
    std::int64_t rows, columns;                  // of a tile
    bool pack_first;
    std::int64_t packed_columns, packed_blocks;  // of a piece of B

    Plan(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t shared) {
        constexpr std::int64_t enough = 12;      // tiles, so that a busy neighbour delays one of many
        const std::int64_t blocks = blocks_of(k).pieces, block = ceil_div(k, blocks), wide = ceil_div(n, tile::panel) * tile::panel;
        pack_first = m > tile_rows_shared;
        packed_columns = std::min(wide, shared / k / tile::panel * tile::panel);
        packed_blocks = blocks;
        if (packed_columns < std::min(wide, 2 * tile_columns)) {
            packed_columns = std::min(wide, 4 * tile_columns);
            packed_blocks = std::max<std::int64_t>(1, shared / (packed_columns * block));
        }
        const std::int64_t width = pack_first ? packed_columns : wide;
        rows = std::min(m, tile_rows_shared);
        columns = std::min(width, tile_columns);
        while (ceil_div(m, rows) * ceil_div(width, columns) < enough) {
            if (pack_first && rows > 2 * tile::max_rows) rows -= tile::max_rows;
            else if (columns > 2 * tile::panel) columns = ceil_div(columns / 2, tile::panel) * tile::panel;
            else break;
        }
    }
    bool splits_k(std::int64_t k) const { return pack_first && packed_blocks < blocks_of(k).pieces; }
};

struct Area {
    std::int64_t row, rows, column, columns;  // of C
    std::int64_t block, blocks;               // of k; not all of them only where C is float
    std::int64_t next_row;                    // where this thread is likely to go on; a guess, for the cache
};

// Panels of B that were packed for all threads: [panel][k][tile::panel], for the k of the blocks in Area.
struct Packed {
    const float* data;
    std::int64_t column, k0, k;  // where the first panel begins in C, and the k it covers
};

// C += edge, the first `columns` of its columns.
inline void merge(const float* edge, float* c, std::int64_t c_stride, std::int64_t rows, std::int64_t columns, bool add) {
    for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t i = 0; i < columns; ++i)
            c[r * c_stride + i] = add ? c[r * c_stride + i] + edge[r * tile::panel + i] : edge[r * tile::panel + i];
}

// The part of A's next block, [next_row, next_row + rows) x [k0, k0 + k), that product `call` of `calls` shall ask for.
template <class T>
tile::Product::Ahead look_ahead(const MatmulOperand<T>& a, std::int64_t next_row, std::int64_t rows, std::int64_t k0, std::int64_t k,
                                std::int64_t call, std::int64_t calls) {
    const bool by_rows = a.col_stride == 1;
    const std::int64_t lines = by_rows ? rows : k, bytes = (by_rows ? k : rows) * static_cast<std::int64_t>(sizeof(T));
    const std::int64_t first = lines * call / calls, here = std::max<std::int64_t>(1, lines * (call + 1) / calls - first);
    const T* at = a.data + next_row * a.row_stride + k0 * a.col_stride + first * (by_rows ? a.row_stride : a.col_stride);
    return {.a = reinterpret_cast<const char*>(at),
            .a_row = (by_rows ? a.row_stride : a.col_stride) * static_cast<std::int64_t>(sizeof(T)), .a_rows = here,
            .a_step = std::min<std::int64_t>(64, ceil_div(bytes * 4 * here, k))};
}

// Without `packed` this call packs the panels it needs, one after another.
template <class T, class C> void work(const Matmul<T, C>& p, const Area& area, const Packed* packed, std::byte* workspace) {
    float* const a = reinterpret_cast<float*>(workspace);
    float* const b = a + a_floats;
    float* const c_tile = b + b_floats;
    float* const edge = c_tile + c_floats;
    C* const out = p.c + area.row * p.c_stride + area.column;
    float* c = c_tile;
    std::int64_t c_stride = area.columns;
    if constexpr (std::is_same_v<C, float>) {
        c = out;
        c_stride = p.c_stride;
    } else if (p.accumulate) {
        for (std::int64_t r = 0; r < area.rows; ++r)
            for (std::int64_t i = 0; i < area.columns; ++i) c[r * c_stride + i] = static_cast<float>(out[r * p.c_stride + i]);
    }
    const tile::Cut blocks = blocks_of(p.k), slivers(area.rows, tile::max_rows);
    const auto order = p.a.col_stride == 1 ? tile::Order::rows : tile::Order::columns;
    for (std::int64_t block = area.block; block < area.block + area.blocks; ++block) {
        const std::int64_t k0 = blocks.begin(block), k = blocks.size(block);
        const bool add = block > 0 || p.accumulate;
        pack::slivers_of_a(p.a, p.m, area.row, slivers, k0, k, a);
        // While a block is worked its successor comes nearer: of this tile, or the first of the tile likely to be next.
        const bool turns = block + 1 == area.block + area.blocks;
        const std::int64_t next_block = turns ? area.block : block + 1, next_row = turns ? area.next_row : area.row;
        const std::int64_t next_k0 = blocks.begin(next_block), next_k = blocks.size(next_block);
        const auto multiply = [&](std::int64_t s, std::int64_t column, const float* panel) {
            const std::int64_t height = slivers.size(s), width = std::min<std::int64_t>(area.columns - column, tile::panel);
            float* to = c + slivers.begin(s) * c_stride + column;
            tile::Product product{.a = a + s * pack::sliver_floats(k), .a_stride = order == tile::Order::rows ? k : pack::sliver_rows,
                                  .b = panel, .b_stride = tile::panel, .b_panel = 0, .c = to, .c_stride = c_stride, .k = k,
                                  .finish = add ? tile::Finish::add : tile::Finish::store};
            if (packed) {
                const std::int64_t panels = ceil_div(area.columns, tile::panel), call = s * panels + column / tile::panel;
                product.ahead = look_ahead(p.a, next_row, slivers.total, next_k0, next_k, call, slivers.pieces * panels);
                product.ahead.b = reinterpret_cast<const char*>(panel + (next_k0 - k0 + next_k * s / slivers.pieces) * tile::panel);
                if (block == area.block) product.ahead.c = to + tile::panel;
            }
            if (width % tile::lanes == 0) return tile::product(order, height, width, product);
            product.c = edge;
            product.c_stride = tile::panel;
            product.finish = tile::Finish::store;
            tile::product(order, height, width > tile::lanes ? tile::panel : tile::lanes, product);
            merge(edge, to, c_stride, height, width, add);
        };
        if (packed) {
            for (std::int64_t s = 0; s < slivers.pieces; ++s)
                for (std::int64_t column = 0; column < area.columns; column += tile::panel)
                    multiply(s, column, packed->data + (area.column + column - packed->column) * packed->k + (k0 - packed->k0) * tile::panel);
        } else {
            for (std::int64_t column = 0; column < area.columns; column += tile::panel) {
                pack::panel_of_b(p.b, k0, k, area.column + column, std::min<std::int64_t>(area.columns - column, tile::panel), b);
                for (std::int64_t s = 0; s < slivers.pieces; ++s) multiply(s, column, b);
            }
        }
    }
    if (area.block + area.blocks < blocks.pieces || (std::is_same_v<C, float> && !p.bias)) return;
    for (std::int64_t r = 0; r < area.rows; ++r)
        for (std::int64_t i = 0; i < area.columns; ++i) {
            const float sum = c[r * c_stride + i];
            out[r * p.c_stride + i] = C(p.bias ? sum + static_cast<float>(p.bias[area.column + i]) : sum);
        }
}

}  // namespace keel::gemm
