// kernels/matmul_plan.h: how the CPU cuts a product: blocks of k, tiles of C, and which operand is packed before.
//
// Everything follows from the shape alone. Blocks of k are part of a result's meaning, tiles are not.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/base/stream.h"
#include "kernels/matmul_pack.h"

namespace keel::gemm {

// A sliver of A (14 x 256 floats) and a panel of B share the first cache; the second holds the tile of C and this and the next
// block of A and B. Measured best of 256, 384, 512 by 112, 224 rows by 256, 512 columns. 288 is a hidden size, in one block.
constexpr std::int64_t k_block = 288;
constexpr std::int64_t tile_rows = 336, tile_columns = 320;  // the most one call works on
constexpr std::int64_t tile_rows_shared = 112;               // and where B is packed already: small, to be many

inline tile::Cut blocks_of(std::int64_t k) { return {k, k_block}; }

enum class Packing {
    none,  // few rows: each task packs its own panels of B, and all of A
    a,     // few rows, many columns: A is packed once, each task packs its own panels of B
    b,     // B is packed once, in pieces that fit; each task packs its rows of A
};

struct Plan {
    Packing packing;
    std::int64_t rows, columns;                  // of a tile, the most
    std::int64_t packed_columns, packed_blocks;  // of a piece of B

    Plan(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t shared) {
        constexpr std::int64_t enough = 12;      // tiles, so that a busy neighbour delays one of many
        const std::int64_t blocks = blocks_of(k).pieces, block = ceil_div(k, blocks), wide = ceil_div(n, tile::panel) * tile::panel;
        const std::int64_t a_floats = ceil_div(m, tile::max_rows) * pack::sliver_floats(k);
        packing = m <= tile_rows && n >= 4 * m && a_floats <= shared ? Packing::a : m <= tile_rows_shared ? Packing::none : Packing::b;
        packed_columns = std::min(wide, shared / k / tile::panel * tile::panel);
        packed_blocks = blocks;
        if (packed_columns < std::min(wide, 2 * tile_columns)) {
            packed_columns = std::min(wide, 4 * tile_columns);
            packed_blocks = std::max<std::int64_t>(1, shared / (packed_columns * block));
        }
        const std::int64_t width = packing == Packing::b ? packed_columns : wide;
        rows = std::min(m, packing == Packing::b ? tile_rows_shared : tile_rows);
        columns = width;
        // Even pieces: a narrow last one would pack its rows of A for little.
        for (std::int64_t pieces = 1; columns > tile_columns; ++pieces) columns = ceil_div(ceil_div(width, pieces), tile::panel) * tile::panel;
        while (ceil_div(m, rows) * ceil_div(width, columns) < enough) {
            if (packing == Packing::b && rows > 2 * tile::max_rows) rows -= tile::max_rows;
            else if (columns > 2 * tile::panel) columns = ceil_div(columns / 2, tile::panel) * tile::panel;
            else break;
        }
    }
    bool splits_k(std::int64_t k) const { return packing == Packing::b && packed_blocks < blocks_of(k).pieces; }
};

}  // namespace keel::gemm
