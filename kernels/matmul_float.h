// kernels/matmul_float.h: one tile of a product on one thread, in float arithmetic, for operands and results of any type.
//
// The sum over k is worked in blocks of the same length, chosen from k alone; a block is one chain from zero, and blocks are
// added to C in order. Neither the tile nor who packed B can be seen in a result.
#pragma once

#include <algorithm>

#include "kernels/matmul.h"
#include "kernels/matmul_pack.h"

namespace keel::gemm {

// A sliver of A (14 x 512 floats) stays in the first cache while panels of B pass through.
constexpr std::int64_t k_block = 512;
constexpr std::int64_t tile_rows = 336, tile_columns = 512;  // the most one call works on

// Workspace of one thread, in floats.
constexpr std::int64_t a_floats = tile_rows * k_block + simd::width;
constexpr std::int64_t b_floats = tile::panel * k_block;
constexpr std::int64_t c_floats = tile_rows * tile_columns;
constexpr std::int64_t edge_floats = tile::max_rows * tile::panel;
static_assert((a_floats + b_floats + c_floats + edge_floats) * 4 <= matmul_workspace_bytes);

struct Area {
    std::int64_t row, rows, column, columns;  // of C; column is a multiple of tile::panel
};

// C += edge, the first `columns` of its columns.
inline void merge(const float* edge, float* c, std::int64_t c_stride, std::int64_t rows, std::int64_t columns, bool add) {
    for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t i = 0; i < columns; ++i)
            c[r * c_stride + i] = add ? c[r * c_stride + i] + edge[r * tile::panel + i] : edge[r * tile::panel + i];
}

// `packed` holds B's panels from area.column on, each [k][tile::panel]; null lets this call pack the panels it needs.
template <class T, class C> void work(const Matmul<T, C>& p, const Area& area, const float* packed, std::byte* workspace) {
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
    const tile::Cut blocks(p.k, k_block), slivers(area.rows, tile::max_rows), panels(area.columns, tile::panel);
    const auto order = p.a.col_stride == 1 ? tile::Order::rows : tile::Order::columns;
    for (std::int64_t block = 0; block < blocks.pieces; ++block) {
        const std::int64_t k0 = blocks.begin(block), k = blocks.size(block);
        const bool add = block > 0 || p.accumulate;
        pack::slivers_of_a(p.a, p.m, area.row, slivers, k0, k, a);
        const auto multiply = [&](std::int64_t s, std::int64_t column, const float* panel) {
            const std::int64_t height = slivers.size(s), width = std::min<std::int64_t>(area.columns - column, tile::panel);
            float* to = c + slivers.begin(s) * c_stride + column;
            tile::Product product{.a = a + slivers.begin(s) * k, .a_stride = order == tile::Order::rows ? k : height,
                                  .b = panel, .b_stride = tile::panel, .b_panel = 0, .c = to, .c_stride = c_stride, .k = k,
                                  .finish = add ? tile::Finish::add : tile::Finish::store};
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
                    multiply(s, column, packed + column * p.k + k0 * tile::panel);
        } else {
            for (std::int64_t column = 0; column < area.columns; column += tile::panel) {
                pack::panel_of_b(p.b, k0, k, area.column + column, std::min<std::int64_t>(area.columns - column, tile::panel), b);
                for (std::int64_t s = 0; s < slivers.pieces; ++s) multiply(s, column, b);
            }
        }
    }
    if (std::is_same_v<C, float> && !p.bias) return;
    for (std::int64_t r = 0; r < area.rows; ++r)
        for (std::int64_t i = 0; i < area.columns; ++i) {
            const float sum = c[r * c_stride + i];
            out[r * p.c_stride + i] = C(p.bias ? sum + static_cast<float>(p.bias[area.column + i]) : sum);
        }
}

}  // namespace keel::gemm
