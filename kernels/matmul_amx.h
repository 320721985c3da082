// kernels/matmul_amx.h: one tile of a bf16 product on one thread, on the processor's tile registers.
//
// C is worked in blocks of 32 x 32: two tiles of A by two of B, four of sums. A is read where it lies if its rows are
// contiguous, whole and not a power of two apart; else it is copied into tiles. B becomes tiles of pairs of k.
// As in the float kernel, a block of k is one chain from zero, and blocks are added in order.
#pragma once

#include "kernels/amx.h"

#if KEEL_AMX
#include "kernels/matmul.h"
#include "kernels/matmul_pack.h"
#include "kernels/matmul_plan.h"

namespace keel::gemm {

constexpr Limits amx_limits{.k_block = 512,
                            .k_unit = 32,
                            .row_unit = 32,
                            .panel = 32,
                            .tile_rows = 256,
                            .tile_columns = 512,
                            .shared_rows = 256,
                            .packs_a = false};
constexpr std::int64_t tile_elements = 512, step_elements = 2 * tile_elements;  // a tile; two side by side, for 32 k

// Workspace of one thread, in bytes.
constexpr std::int64_t amx_a_bytes = amx_limits.tile_rows * amx_limits.k_block * 2;
constexpr std::int64_t amx_b_bytes = amx_limits.panel * amx_limits.k_block * 2;
constexpr std::int64_t amx_block_bytes = 32 * 32 * 4;
static_assert(amx_a_bytes + amx_b_bytes + amx_block_bytes + amx_limits.tile_rows * amx_limits.tile_columns * 4 <=
              matmul_workspace_bytes);

namespace amx_pack {

using simd::Float;

inline __mmask32 first(std::int64_t n) { return n >= 32 ? 0xffffffffu : n <= 0 ? 0u : (1u << n) - 1u; }
inline __m512i load(const bf16* p, std::int64_t n) { return _mm512_maskz_loadu_epi16(first(n), p); }

// a0 b0 a1 b1 … of 32 elements each, in two registers.
inline void interleave(__m512i a, __m512i b, __m512i& low, __m512i& high) {
    const __m512i x = _mm512_unpacklo_epi16(a, b),
                  y = _mm512_unpackhi_epi16(a, b);  // quarters 0 0' 1 1' 2 2' 3 3', lows and highs
    const __m512i even = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11),
                  odd = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    low = _mm512_permutex2var_epi64(x, even, y);
    high = _mm512_permutex2var_epi64(x, odd, y);
}

// 32 elements along the contiguous direction of each of `rows` <= 16 rows, as 16 rows of a tile.
inline void copy(const bf16* in, std::int64_t stride, std::int64_t rows, std::int64_t columns, bf16* out) {
    for (std::int64_t r = 0; r < 16; ++r)
        _mm512_storeu_si512(out + r * 32, r < rows ? load(in + r * stride, columns) : _mm512_setzero_si512());
}
// The same, with 32-bit pairs of elements transposed.
inline void transpose_pairs(const bf16* in, std::int64_t stride, std::int64_t rows, std::int64_t columns, bf16* out) {
    Float x[16];
    if (rows >= 16 && columns >= 32) {
#pragma GCC unroll 16
        for (int r = 0; r < 16; ++r)
            x[r] = static_cast<Float>(_mm512_castsi512_ps(_mm512_loadu_si512(in + r * stride)));
    } else {
        for (int r = 0; r < 16; ++r)
            x[r] = static_cast<Float>(
                _mm512_castsi512_ps(r < rows ? load(in + r * stride, columns) : _mm512_setzero_si512()));
    }
    pack::transpose(x);
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) std::memcpy(out + r * 32, &x[r], 64);
}
// Pairs of rows interleaved: tile row i holds rows 2 i and 2 i + 1, for two tiles of 16 columns.
inline void interleave_rows(const bf16* in, std::int64_t stride, std::int64_t rows, std::int64_t columns, bf16* left,
                            bf16* right) {
    for (std::int64_t i = 0; i < 16; ++i) {
        __m512i low, high;
        interleave(2 * i < rows ? load(in + 2 * i * stride, columns) : _mm512_setzero_si512(),
                   2 * i + 1 < rows ? load(in + (2 * i + 1) * stride, columns) : _mm512_setzero_si512(), low, high);
        _mm512_storeu_si512(left + i * 32, low);
        _mm512_storeu_si512(right + i * 32, high);
    }
}
inline void transpose_tile(bf16* tile) { transpose_pairs(tile, 32, 16, 32, tile); }

// One panel of B, k0 … k0 + k by `columns` <= 32 columns, as [k / 32][2] tiles.
inline void panel_of_b(const MatmulOperand<bf16>& b, std::int64_t k0, std::int64_t k, std::int64_t column,
                       std::int64_t columns, bf16* out) {
    const bf16* in = b.data + k0 * b.row_stride + column * b.col_stride;
    for (std::int64_t i = 0; i < k; i += 32, out += step_elements) {
        if (b.col_stride == 1) {
            interleave_rows(in + i * b.row_stride, b.row_stride, k - i, columns, out, out + tile_elements);
        } else {
            transpose_pairs(in + i, b.col_stride, columns, k - i, out);
            transpose_pairs(in + 16 * b.col_stride + i, b.col_stride, columns - 16, k - i, out + tile_elements);
        }
    }
}

// One sliver of A, `rows` <= 32 rows by k0 … k0 + k, as [k / 32][2] tiles.
inline void sliver_of_a(const MatmulOperand<bf16>& a, std::int64_t row, std::int64_t rows, std::int64_t k0,
                        std::int64_t k, bf16* out) {
    const bf16* in = a.data + row * a.row_stride + k0 * a.col_stride;
    for (std::int64_t i = 0; i < k; i += 32, out += step_elements) {
        if (a.col_stride == 1) {
            copy(in + i, a.row_stride, rows, k - i, out);
            copy(in + 16 * a.row_stride + i, a.row_stride, rows - 16, k - i, out + tile_elements);
        } else {
            interleave_rows(in + i * a.col_stride, a.col_stride, k - i, rows, out, out + tile_elements);
            transpose_tile(out);
            transpose_tile(out + tile_elements);
        }
    }
}

}  // namespace amx_pack

// Rows of A as the tiles are loaded: the upper and lower 16 rows, `stride` bytes from row to row, `step` bytes for 32
// k.
struct AmxRows {
    const char* upper;
    const char* lower;
    std::int64_t stride, step;
};

// Four tiles of sums over `steps` times 32 k, left in tile registers 0 to 3. `ahead`: lines wanted next, one a step
// from each of `ahead_rows` rows.
template <bool two_rows, bool two_columns>
inline void amx_sums(const AmxRows& a, const bf16* b, std::int64_t steps, const char* ahead, std::int64_t ahead_row,
                     std::int64_t ahead_rows) {
    _tile_zero(0);
    if (two_columns) _tile_zero(1);
    if (two_rows) _tile_zero(2);
    if (two_rows && two_columns) _tile_zero(3);
    const char *upper = a.upper, *lower = a.lower;
    for (std::int64_t i = 0; i < steps; ++i) {
        _tile_loadd(4, upper, a.stride);
        _tile_loadd(6, b, 64);
        _tile_dpbf16ps(0, 4, 6);
        for (std::int64_t r = 0; r < ahead_rows; ++r) __builtin_prefetch(ahead + r * ahead_row, 0, 2);
        if (two_columns) {
            _tile_loadd(7, b + tile_elements, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (two_rows) {
            _tile_loadd(5, lower, a.stride);
            _tile_dpbf16ps(2, 5, 6);
            if (two_columns) _tile_dpbf16ps(3, 5, 7);
        }
        upper += a.step, lower += a.step, b += step_elements, ahead += 64;
    }
}

// 32 x 32 floats, rows `stride` bytes apart; what lies beyond rows or columns is not touched by the tiles.
inline void amx_store(float* out, std::int64_t stride, bool two_rows, bool two_columns) {
    _tile_stored(0, out, stride);
    if (two_columns) _tile_stored(1, out + 16, stride);
    if (two_rows) _tile_stored(2, reinterpret_cast<char*>(out) + 16 * stride, stride);
    if (two_rows && two_columns) _tile_stored(3, reinterpret_cast<char*>(out + 16) + 16 * stride, stride);
}

inline void amx_block(const AmxRows& a, const bf16* b, std::int64_t steps, bool two_rows, bool two_columns,
                      const char* ahead, std::int64_t ahead_row, std::int64_t ahead_rows) {
    if (two_rows && two_columns)
        amx_sums<true, true>(a, b, steps, ahead, ahead_row, ahead_rows);
    else if (two_rows)
        amx_sums<true, false>(a, b, steps, ahead, ahead_row, ahead_rows);
    else if (two_columns)
        amx_sums<false, true>(a, b, steps, ahead, ahead_row, ahead_rows);
    else
        amx_sums<false, false>(a, b, steps, ahead, ahead_row, ahead_rows);
}

// A block of sums joins C. Where C is bf16 and k has several blocks, they meet in `sums` first.
template <class C>
struct AmxResult {
    C* c;
    std::int64_t c_stride;
    float* sums;  // [32][32] of this place in C, kept between blocks of k
    bool first, last, accumulate;
    const bf16* bias;

    void take(const float* block, std::int64_t rows, std::int64_t columns) const {
        for (std::int64_t r = 0; r < rows; ++r)
            for (std::int64_t i = 0; i < columns; i += 16) {
                const std::int64_t here = std::min<std::int64_t>(16, columns - i);
                simd::Float x = simd::load(block + r * 32 + i);
                C* const to = c + r * c_stride + i;
                if constexpr (std::is_same_v<C, float>) {
                    if (!first || accumulate) x = simd::load_part(to, here) + x;
                } else {
                    if (!first)
                        x = simd::load(sums + r * 32 + i) + x;
                    else if (accumulate)
                        x = simd::load_part(to, here) + x;
                    if (!last) {
                        simd::store(sums + r * 32 + i, x);
                        continue;
                    }
                }
                if (last && bias) x += simd::load_part(bias + i, here);
                if (here == 16)
                    simd::store(to, x);
                else
                    simd::store_part(to, x, here);
            }
    }
};

template <class C>
void amx_work(const Matmul<bf16, C>& p, const Area& area, const Packed<bf16>* packed, std::byte* workspace) {
    const amx::Tiles tiles;
    bf16* const a = reinterpret_cast<bf16*>(workspace);
    bf16* const b = reinterpret_cast<bf16*>(workspace + amx_a_bytes);
    float* const block_sums = reinterpret_cast<float*>(workspace + amx_a_bytes + amx_b_bytes);
    float* const sums = block_sums + 1024;
    const Blocks blocks(p.k, amx_limits);
    const std::int64_t slivers = ceil_div(area.rows, 32), panels = ceil_div(area.columns, 32);
    const bool rows_lie = p.a.col_stride == 1 && p.a.row_stride * 2 % 2048 != 0;
    for (std::int64_t at = area.block; at < area.block + area.blocks; ++at) {
        const std::int64_t k0 = blocks.begin(at), k = blocks.size(at), steps = ceil_div(k, 32);
        const auto rows_of = [&](std::int64_t s) { return std::min<std::int64_t>(32, area.rows - 32 * s); };
        const auto in_place = [&](std::int64_t s) { return rows_lie && k % 32 == 0 && rows_of(s) == 32; };
        const auto place_a = [&](std::int64_t s, bf16* copy) -> AmxRows {
            if (in_place(s)) {
                const bf16* const row = p.a.data + (area.row + 32 * s) * p.a.row_stride + k0;
                return {reinterpret_cast<const char*>(row), reinterpret_cast<const char*>(row + 16 * p.a.row_stride),
                        p.a.row_stride * 2, 64};
            }
            return {reinterpret_cast<const char*>(copy), reinterpret_cast<const char*>(copy + tile_elements), 64,
                    step_elements * 2};
        };
        const auto multiply = [&](std::int64_t s, std::int64_t i, const AmxRows& rows, const bf16* panel,
                                  const char* ahead, std::int64_t ahead_row, std::int64_t ahead_rows) {
            const std::int64_t height = rows_of(s), column = 32 * i,
                               width = std::min<std::int64_t>(32, area.columns - column);
            amx_block(rows, panel, steps, height > 16, width > 16, ahead, ahead_row, ahead_rows);
            const AmxResult<C> result{p.c + (area.row + 32 * s) * p.c_stride + area.column + column,
                                      p.c_stride,
                                      sums + (s * panels + i) * 1024,
                                      at == 0,
                                      at + 1 == blocks.count(),
                                      p.accumulate,
                                      p.bias ? p.bias + area.column + column : nullptr};
            if constexpr (std::is_same_v<C, float>)
                if (result.first && !p.accumulate && !p.bias && height == 32 && width == 32)
                    return amx_store(result.c, p.c_stride * 4, true, true);
            amx_store(block_sums, 128, height > 16, width > 16);
            result.take(block_sums, height, width);
        };
        if (packed) {
            for (std::int64_t s = 0; s < slivers; ++s) {
                if (!in_place(s)) amx_pack::sliver_of_a(p.a, area.row + 32 * s, rows_of(s), k0, k, a);
                const AmxRows rows = place_a(s, a);
                // The next sliver's rows come nearer, shared among the panels.
                const std::int64_t next = s + 1 < slivers ? area.row + 32 * (s + 1) : area.next_row,
                                   share = ceil_div(32, panels);
                const char* const ahead =
                    reinterpret_cast<const char*>(p.a.data + next * p.a.row_stride + k0 * p.a.col_stride);
                for (std::int64_t i = 0; i < panels; ++i)
                    multiply(s, i, rows,
                             packed->data + (area.column + 32 * i - packed->first) * packed->k + (k0 - packed->k0) * 32,
                             ahead + i * share * p.a.row_stride * 2, p.a.row_stride * 2,
                             p.a.col_stride == 1 ? share : 0);
            }
        } else {
            for (std::int64_t s = 0; s < slivers; ++s)
                if (!in_place(s))
                    amx_pack::sliver_of_a(p.a, area.row + 32 * s, rows_of(s), k0, k, a + s * steps * step_elements);
            for (std::int64_t i = 0; i < panels; ++i) {
                amx_pack::panel_of_b(p.b, k0, k, area.column + 32 * i,
                                     std::min<std::int64_t>(32, area.columns - 32 * i), b);
                for (std::int64_t s = 0; s < slivers; ++s)
                    multiply(s, i, place_a(s, a + s * steps * step_elements), b, nullptr, 0, 0);
            }
        }
    }
}

// The tile kernel, as the driver in matmul.cpp sees it.
struct AmxPath {
    using Element = bf16;
    static constexpr Limits limits = amx_limits;
    static void pack_b(const MatmulOperand<bf16>& b, std::int64_t k0, std::int64_t k, std::int64_t column,
                       std::int64_t columns, bf16* out) {
        amx_pack::panel_of_b(b, k0, k, column, columns, out);
    }
    static void pack_a(const MatmulOperand<bf16>&, std::int64_t, std::int64_t, std::int64_t, bf16*) {
    }  // limits.packs_a is false
    template <class C>
    static void on_packed_b(const Matmul<bf16, C>& p, const Area& area, const Packed<bf16>& b, std::byte* workspace) {
        amx_work(p, area, &b, workspace);
    }
    template <class C>
    static void on_own_b(const Matmul<bf16, C>& p, const Area& area, const Packed<bf16>*, std::byte* workspace) {
        amx_work(p, area, nullptr, workspace);
    }
};

}  // namespace keel::gemm
#endif
