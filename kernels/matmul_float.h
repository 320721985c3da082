// kernels/matmul_float.h: one tile of a product on one thread, in float arithmetic, for operands and results of any
// type.
//
// The sum over k is worked in blocks of the same length, chosen from k alone; a block is one chain from zero, and
// blocks are added to C in order. Neither the tile nor who packed what can be seen in a result.
#pragma once

#include <algorithm>

#include "kernels/matmul.h"
#include "kernels/matmul_pack.h"
#include "kernels/matmul_plan.h"

namespace keel::gemm {

// A sliver of A (14 x 256 floats) and a panel of B share the first cache; the second holds the tile of C and this and
// the next block of A and B. Best or within noise of it among k of 256, 384, 512 by 112, 224 rows by 256, 320, 512
// columns; 288 is a hidden size, in one block.
constexpr Limits float_limits{.k_block = 288,
                              .k_unit = 1,
                              .row_unit = tile::max_rows,
                              .panel = tile::panel,
                              .tile_rows = 336,
                              .tile_columns = 512,
                              .tile_b = 1 << 30,
                              .shared_rows = 112,
                              .own_rows = 0,
                              .own_columns = 0,
                              .packs_a = true};

// Workspace of one thread, in floats.
constexpr std::int64_t a_floats =
    (float_limits.tile_rows / tile::max_rows + 1) * pack::sliver_floats(float_limits.k_block);
constexpr std::int64_t b_floats = tile::panel * float_limits.k_block;
constexpr std::int64_t c_floats = float_limits.tile_rows * float_limits.tile_columns;
constexpr std::int64_t edge_floats = tile::max_rows * tile::panel;
static_assert((a_floats + b_floats + c_floats + edge_floats) * 4 <= matmul_workspace_bytes);

// C = edge or C + edge, the first `columns` of its columns.
inline void merge(const float* edge, float* c, std::int64_t c_stride, std::int64_t rows, std::int64_t columns,
                  bool add) {
    for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t i = 0; i < columns; ++i)
            c[r * c_stride + i] = add ? c[r * c_stride + i] + edge[r * tile::panel + i] : edge[r * tile::panel + i];
}

// Lines to ask for ahead of time: `lines` pieces of memory of `bytes`, `apart` bytes from one to the next, in `calls`
// equal shares, one a product of `k` steps.
struct LookAhead {
    const char* data;
    std::int64_t lines, share, apart, step;
    LookAhead(const void* from, std::int64_t lines_, std::int64_t apart_, std::int64_t bytes, std::int64_t calls,
              std::int64_t k)
        : data(static_cast<const char*>(from)),
          lines(lines_),
          share(ceil_div(lines_, calls)),
          apart(apart_),
          step(std::min<std::int64_t>(64, ceil_div(bytes * 4 * share, k))) {}
    void ask(tile::Product::Ahead& ahead, std::int64_t call) const {
        ahead.a = data + std::min(call * share, lines - share) * apart;
        ahead.a_row = apart, ahead.a_rows = share, ahead.a_step = step;
    }
};

// Where a tile's float sums live while k is worked: C itself, or the workspace.
template <class T, class C>
struct Sums {
    float* data;
    std::int64_t stride;
    Sums(const Matmul<T, C>& p, const Area& area, float* tile)
        : data(tile), stride(ceil_div(area.columns, tile::lanes) * tile::lanes) {
        C* const c = p.c + area.row * p.c_stride + area.column;
        if constexpr (std::is_same_v<C, float>) {
            data = c, stride = p.c_stride;
        } else if (p.accumulate) {
            for (std::int64_t r = 0; r < area.rows; ++r)
                for (std::int64_t i = 0; i < area.columns; ++i)
                    data[r * stride + i] = static_cast<float>(c[r * p.c_stride + i]);
        }
    }
    void finish(const Matmul<T, C>& p, const Area& area) const {
        if (std::is_same_v<C, float> && !p.bias) return;
        for (std::int64_t r = 0; r < area.rows; ++r) {
            C* const c = p.c + (area.row + r) * p.c_stride + area.column;
            simd::sweep(area.columns, [&](auto at) {
                const simd::Float sum = at.load(data + r * stride);
                at.store(c, p.bias ? sum + at.load(p.bias + area.column) : sum);
            });
        }
    }
};

// One product of the register tile, where it may end beyond C's last column.
inline void into(float* c, std::int64_t c_stride, std::int64_t width, tile::Product& product, bool add,
                 const tile::Kernels& kernels, std::int64_t height, float* edge) {
    product.finish = add ? tile::Finish::add : tile::Finish::store;
    product.c = c;
    product.c_stride = c_stride;
    if (width == tile::panel) return kernels.wide(product);
    if (width == tile::lanes) return kernels.narrow(product);
    product.finish = tile::Finish::store;
    product.c = edge;
    product.c_stride = tile::panel;
    (width > tile::lanes ? kernels.wide : kernels.narrow)(product);
    merge(edge, c, c_stride, height, width, add);
}

// A tile whose B is packed already: A's slivers stay in the first cache, panels of B pass by.
template <class T, class C>
void work_on_packed_b(const Matmul<T, C>& p, const Area& area, const Packed<float>& b, std::byte* workspace) {
    float* const a = reinterpret_cast<float*>(workspace);
    float* const edge = a + a_floats + b_floats + c_floats;
    const Sums<T, C> c(p, area, a + a_floats + b_floats);
    const Blocks blocks(p.k, float_limits);
    const tile::Cut slivers(area.rows, tile::max_rows);
    const bool by_rows = p.a.col_stride == 1;
    const auto order = by_rows ? tile::Order::rows : tile::Order::columns;
    const std::int64_t panels = ceil_div(area.columns, tile::panel), size = static_cast<std::int64_t>(sizeof(T));
    // Rows that do not fall on each other in the first cache are read where they are.
    const bool in_place = std::is_same_v<T, float> && by_rows && p.a.row_stride * size % 4096 != 0;
    for (std::int64_t block = area.block; block < area.block + area.blocks; ++block) {
        const std::int64_t k0 = blocks.begin(block), k = blocks.size(block);
        if (!in_place) pack::slivers_of_a(p.a, p.m, area.row, slivers, k0, k, a);
        // While a block is worked its successor comes nearer: of this tile, or the first of the tile likely to be next.
        const bool turns = block + 1 == area.block + area.blocks;
        const std::int64_t next = turns ? area.block : block + 1, next_k0 = blocks.begin(next),
                           next_k = blocks.size(next);
        const T* const next_a =
            p.a.data + (turns ? area.next_row : area.row) * p.a.row_stride + next_k0 * p.a.col_stride;
        const LookAhead ahead(next_a, by_rows ? area.rows : next_k, (by_rows ? p.a.row_stride : p.a.col_stride) * size,
                              (by_rows ? next_k : area.rows) * size, slivers.pieces * panels, k);
        for (std::int64_t s = 0; s < slivers.pieces; ++s) {
            const std::int64_t height = slivers.size(s);
            const tile::Kernels kernels = tile::kernels(order, height);
            tile::Product product{.a = a + s * pack::sliver_floats(k),
                                  .a_stride = by_rows ? k : pack::sliver_rows,
                                  .b = nullptr,
                                  .b_stride = tile::panel,
                                  .b_panel = 0,
                                  .c = nullptr,
                                  .c_stride = 0,
                                  .k = k};
            if constexpr (std::is_same_v<T, float>)
                if (in_place)
                    product.a = p.a.data + (area.row + slivers.begin(s)) * p.a.row_stride + k0,
                    product.a_stride = p.a.row_stride;
            const float* panel = b.data + (area.column - b.first) * b.k + (k0 - b.k0) * tile::panel;
            const std::int64_t behind = (next_k0 - k0 + next_k * s / slivers.pieces) * tile::panel;
            for (std::int64_t i = 0; i < panels; ++i, panel += tile::panel * b.k) {
                const std::int64_t column = i * tile::panel;
                float* const to = c.data + slivers.begin(s) * c.stride + column;
                product.b = panel;
                ahead.ask(product.ahead, s * panels + i);
                product.ahead.b = reinterpret_cast<const char*>(panel + behind);
                product.ahead.c = block == area.block ? to + tile::panel : nullptr;
                into(to, c.stride, std::min<std::int64_t>(area.columns - column, tile::panel), product,
                     block > 0 || p.accumulate, kernels, height, edge);
            }
        }
    }
    if (area.block + area.blocks == blocks.count()) c.finish(p, area);
}

// A tile that packs B for itself, panel after panel, for all its rows. A is packed already where there is `packed`.
template <class T, class C>
void work_on_own_b(const Matmul<T, C>& p, const Area& area, const Packed<float>* packed, std::byte* workspace) {
    float* const a = reinterpret_cast<float*>(workspace);
    float* const b = a + a_floats;
    float* const edge = b + b_floats + c_floats;
    const Sums<T, C> c(p, area, b + b_floats);
    const Blocks blocks(p.k, float_limits);
    const tile::Cut slivers(area.rows, tile::max_rows);
    const bool by_rows = p.a.col_stride == 1, b_by_rows = p.b.col_stride == 1;
    const auto order = by_rows ? tile::Order::rows : tile::Order::columns;
    const std::int64_t panels = ceil_div(area.columns, tile::panel), size = static_cast<std::int64_t>(sizeof(T));
    for (std::int64_t block = 0; block < blocks.count(); ++block) {
        const std::int64_t k0 = blocks.begin(block), k = blocks.size(block);
        if (!packed) pack::slivers_of_a(p.a, p.m, area.row, slivers, k0, k, a);
        const float* const a_block = packed ? packed->data + slivers.pieces * pack::sliver_rows * k0 : a;
        for (std::int64_t i = 0; i < panels; ++i) {
            const std::int64_t column = i * tile::panel,
                               width = std::min<std::int64_t>(area.columns - column, tile::panel);
            pack::panel_of_b(p.b, k0, k, area.column + column, width, b);
            // Meanwhile the next panel comes nearer, or the first one of the next block.
            const bool turns = i + 1 == panels;
            const std::int64_t next_k0 = turns && block + 1 < blocks.count() ? k0 + k : k0,
                               next_column = area.column + (turns ? 0 : column + tile::panel);
            const LookAhead ahead(p.b.data + next_k0 * p.b.row_stride + next_column * p.b.col_stride,
                                  b_by_rows ? k : width, (b_by_rows ? p.b.row_stride : p.b.col_stride) * size,
                                  (b_by_rows ? width : k) * size, slivers.pieces, k);
            tile::Product product{.a = nullptr,
                                  .a_stride = by_rows ? k : pack::sliver_rows,
                                  .b = b,
                                  .b_stride = tile::panel,
                                  .b_panel = 0,
                                  .c = nullptr,
                                  .c_stride = 0,
                                  .k = k};
            for (std::int64_t s = 0; s < slivers.pieces; ++s) {
                const std::int64_t height = slivers.size(s);
                product.a = a_block + s * pack::sliver_floats(k);
                ahead.ask(product.ahead, s);
                product.ahead.b = reinterpret_cast<const char*>(product.a + pack::sliver_floats(k));
                into(c.data + slivers.begin(s) * c.stride + column, c.stride, width, product, block > 0 || p.accumulate,
                     tile::kernels(order, height), height, edge);
            }
        }
    }
    c.finish(p, area);
}

// The float kernel, as the driver in matmul.cpp sees it.
struct FloatPath {
    using Element = float;
    static constexpr Limits limits = float_limits;
    template <class T>
    static Piece piece_of_b(const MatmulOperand<T>&) {
        return {limits.panel, limits.k_block};
    }
    template <class T>
    static Piece piece_of_a(const MatmulOperand<T>&) {
        return {limits.row_unit, limits.k_block};
    }
    template <class T>
    static void pack_b(const MatmulOperand<T>& b, std::int64_t k0, std::int64_t k, std::int64_t column,
                       std::int64_t columns, float* out, std::int64_t) {
        pack::panel_of_b(b, k0, k, column, columns, out);
    }
    template <class T>
    static void pack_a(const MatmulOperand<T>& a, std::int64_t m, std::int64_t k0, std::int64_t k, float* out) {
        const tile::Cut slivers(m, tile::max_rows);
        pack::slivers_of_a(a, m, 0, slivers, k0, k, out + slivers.pieces * pack::sliver_rows * k0);
    }
    template <class T, class C>
    static bool reads_a(const Matmul<T, C>&) {
        return true;  // a task packs its own rows where they do not lie well
    }
    template <class T>
    static void pack_rows_of_a(const MatmulOperand<T>&, std::int64_t, std::int64_t, std::int64_t, std::int64_t, float*,
                               std::int64_t) {}
    template <class T, class C>
    static void on_packed_b(const Matmul<T, C>& p, const Area& area, const Packed<float>& b, const Packed<float>&,
                            std::byte* workspace) {
        work_on_packed_b(p, area, b, workspace);
    }
    template <class T, class C>
    static void on_own_b(const Matmul<T, C>& p, const Area& area, const Packed<float>* a, std::byte* workspace) {
        work_on_own_b(p, area, a, workspace);
    }
};

}  // namespace keel::gemm
