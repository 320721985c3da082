// kernels/matmul_amx.h: 32 x 32 sums of a bf16 product on the processor's tile registers: two tiles of A by two of B, four of
// sums.
#pragma once

#include "kernels/amx.h"

#if KEEL_AMX
#include "kernels/matmul_pairs_pack.h"

namespace keel::gemm {

// Whether an operand is read again soon, or passes by the nearest cache, which then keeps the other.
enum class Reads { again, once };

// to = from + A B over `steps` times 32 k, one chain. Without the second 16 rows or columns, their sums are not touched.
// beside(i) is called at every step.
template <bool two_rows, bool two_columns, Reads of_a, Reads of_b, class Beside>
inline void amx_sums(const PairRows& a, const bf16* b, std::int64_t steps, const BlockSums& sums, Beside beside) {
// A macro, because the tile is part of the instruction.
#define KEEL_TILE_LOAD(reads, tile, at, stride)    \
    do {                                           \
        if constexpr (reads == Reads::once)        \
            _tile_stream_loadd(tile, at, stride);  \
        else                                       \
            _tile_loadd(tile, at, stride);         \
    } while (0)
    if (sums.from) {
        const std::int64_t row = sums.from_stride * 4;
        const float* const lower = sums.from + 16 * sums.from_stride;
        _tile_loadd(0, sums.from, row);
        if (two_columns) _tile_loadd(1, sums.from + 16, row);
        if (two_rows) _tile_loadd(2, lower, row);
        if (two_rows && two_columns) _tile_loadd(3, lower + 16, row);
    } else {
        _tile_zero(0);
        if (two_columns) _tile_zero(1);
        if (two_rows) _tile_zero(2);
        if (two_rows && two_columns) _tile_zero(3);
    }
    const char *upper = a.upper, *lower = a.lower;
    for (std::int64_t i = 0; i < steps; ++i) {
        KEEL_TILE_LOAD(of_a, 4, upper, a.stride);
        KEEL_TILE_LOAD(of_b, 6, b, 64);
        _tile_dpbf16ps(0, 4, 6);
        beside(i);
        if (two_columns) {
            KEEL_TILE_LOAD(of_b, 7, b + tile_elements, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (two_rows) {
            KEEL_TILE_LOAD(of_a, 5, lower, a.stride);
            _tile_dpbf16ps(2, 5, 6);
            if (two_columns) _tile_dpbf16ps(3, 5, 7);
        }
        upper += a.step, lower += a.step, b += step_elements;
    }
    const std::int64_t row = sums.to_stride * 4;
    float* const lower_sums = sums.to + 16 * sums.to_stride;
    _tile_stored(0, sums.to, row);
    if (two_columns) _tile_stored(1, sums.to + 16, row);
    if (two_rows) _tile_stored(2, lower_sums, row);
    if (two_rows && two_columns) _tile_stored(3, lower_sums + 16, row);
#undef KEEL_TILE_LOAD
}

struct TileUnit {
    using Scope = amx::Tiles;
    template <class Beside>
    static void block(const PairRows& a, const bf16* b, std::int64_t steps, std::int64_t rows, std::int64_t columns,
                      const BlockSums& sums, Beside beside) {
        if (rows > 16 && columns > 16)
            steps <= near_steps ? amx_sums<true, true, Reads::again, Reads::once>(a, b, steps, sums, beside)
                                : amx_sums<true, true, Reads::once, Reads::once>(a, b, steps, sums, beside);
        else if (rows > 16)
            amx_sums<true, false, Reads::again, Reads::once>(a, b, steps, sums, beside);
        else if (columns > 16)
            amx_sums<false, true, Reads::again, Reads::once>(a, b, steps, sums, beside);
        else
            amx_sums<false, false, Reads::again, Reads::once>(a, b, steps, sums, beside);
    }
};

}  // namespace keel::gemm
#endif
