// kernels/matmul_plan.h: how the CPU cuts a product: blocks of k, tiles of C, and which operand is packed before.
//
// Everything follows from the shape alone. In float blocks of k are part of a result's meaning (each is one chain from
// zero, and they are added in order); tiles and pieces are not. In bf16 one chain goes through all blocks, and tasks that
// pack both operands for themselves (matmul.cpp) cut without this plan.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/base/stream.h"
#include "kernels/matmul_tile.h"

namespace keel::gemm {

constexpr std::int64_t round_up(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; }

// What a kernel asks of the cut.
struct Limits {
    std::int64_t k_block, k_unit;          // a block of k at most, and the steps it is worked in
    std::int64_t row_unit, panel;          // rows and columns worked at once
    std::int64_t tile_rows, tile_columns;  // of a tile at most, where its task packs B for itself
    std::int64_t tile_b;                   // elements of B in a tile at most, for a block of k
    std::int64_t shared_rows;              // and where B is packed already: small, to be many
    std::int64_t own_rows, own_columns;    // and where its task packs both operands; 0: never
    bool packs_a;                          // may pack A once, if it is the small operand
};

// The sum over k in even blocks.
struct Blocks {
    std::int64_t k, unit;
    tile::Cut units;
    Blocks(std::int64_t k_, const Limits& l)
        : k(k_), unit(l.k_unit), units(ceil_div(k_, l.k_unit), l.k_block / l.k_unit) {}
    std::int64_t count() const { return units.pieces; }
    std::int64_t begin(std::int64_t i) const { return std::min(k, units.begin(i) * unit); }
    std::int64_t size(std::int64_t i) const { return begin(i + 1) - begin(i); }
};

enum class Packing {
    none,  // few rows: each task packs its own panels of B, and all of A
    a,     // few rows, many columns: A is packed once, each task packs its own panels of B
    b,     // B is packed once, in pieces that fit; each task packs its rows of A
};

struct Plan {
    Packing packing;
    std::int64_t rows, columns;                  // of a tile, the most
    std::int64_t packed_columns, packed_blocks;  // of a piece of B

    // `shared` elements hold what is packed for all.
    Plan(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t shared, const Limits& l) {
        constexpr std::int64_t enough = 10;  // tiles, so that a busy neighbour delays one of many
        const Blocks blocks(k, l);
        const std::int64_t deep = round_up(k, l.k_unit), block = round_up(ceil_div(k, blocks.count()), l.k_unit),
                           wide = round_up(n, l.panel);
        const bool few = m <= (l.packs_a ? l.shared_rows : l.row_unit);
        const std::int64_t a_size = (m / l.row_unit + 1) * round_up(l.row_unit, tile::lanes) * deep;
        // From twice as many columns as rows on: packing B for all writes n * k, which the few rows hardly pay for
        // (288 x 768 over 2048 tokens, a weight gradient: 3.3 ms, now 2.9).
        packing = l.packs_a && m <= l.tile_rows && n >= 2 * m && a_size <= shared ? Packing::a
                  : few                                                           ? Packing::none
                                                                                  : Packing::b;
        packed_columns = std::min(wide, shared / deep / l.panel * l.panel);
        packed_blocks = blocks.count();
        if (packed_columns < std::min(wide, 2 * l.tile_columns)) {
            packed_columns = std::min({wide, 4 * l.tile_columns, shared / block / l.panel * l.panel});
            packed_blocks = std::max<std::int64_t>(1, shared / (packed_columns * block));
        }
        const std::int64_t width = packing == Packing::b ? packed_columns : wide;
        rows = std::min(round_up(m, l.row_unit), packing == Packing::b ? l.shared_rows : l.tile_rows);
        columns = width;
        // As wide as all of its B is kept for the next rows; of a long k, a block of it.
        const std::int64_t packed_k = packed_blocks * block, narrow = 4 * l.panel;
        const std::int64_t kept = l.tile_b / (packed_k * narrow <= l.tile_b ? packed_k : block) / l.panel * l.panel;
        const std::int64_t widest = std::clamp(kept, narrow, l.tile_columns);
        // Even pieces: a narrow last one would read its rows of A for little.
        for (std::int64_t pieces = 1; columns > widest; ++pieces)
            columns = round_up(ceil_div(width, pieces), l.panel);
        // Fewer rows read B more often from the second cache, fewer columns copy A more often: rows go first, to a
        // point.
        const auto shorter = [&](std::int64_t least) { return packing == Packing::b && rows > least * l.row_unit; };
        const auto narrower = [&](std::int64_t least) { return columns > least * l.panel; };
        while (ceil_div(m, rows) * ceil_div(width, columns) < enough) {
            if (shorter(4) || (!narrower(8) && shorter(2)))
                rows -= l.row_unit;
            else if (narrower(2))
                columns = round_up(columns / 2, l.panel);
            else
                break;
        }
    }
    bool splits_k(const Blocks& blocks) const { return packing == Packing::b && packed_blocks < blocks.count(); }
};

// Tiles whose tasks pack both operands: even ones, and an even number of them.
struct OwnTiles {
    tile::Cut rows, columns;  // in row units and panels
    OwnTiles(std::int64_t m, std::int64_t n, const Limits& l)
        : rows(ceil_div(m, l.row_unit), l.own_rows / l.row_unit), columns(ceil_div(n, l.panel), l.own_columns / l.panel) {
        if (count() % 2 == 0) return;
        tile::Cut& longer = m >= n ? rows : columns;
        longer = tile::Cut(longer.total, longer.total, longer.pieces + 1);
    }
    std::int64_t count() const { return rows.pieces * columns.pieces; }
};

// What one task packs of an operand, the most: rows of A or columns of B, and k.
struct Piece {
    std::int64_t across, k;
};

// One task: a tile of C over some blocks of k.
struct Area {
    std::int64_t row, rows, column, columns;
    std::int64_t block, blocks;  // not all of them only where C is float
    std::int64_t next_row;       // where this thread is likely to go on; a guess, for the cache
};

// An operand packed for all threads, for k0 … k0 + k. Of B: panels, the first at column `first`, each [k][panel]. Of A:
// in float blocks of k, each the slivers of all rows; in bf16 slivers, each all of k.
template <class E>
struct Packed {
    const E* data;
    std::int64_t first, k0, k;
};

}  // namespace keel::gemm
