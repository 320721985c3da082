// kernels/matmul_pairs_pack.h: operands of a bf16 product in pairs of k, as tile registers (kernels/amx.h) and dot products
// want them.
//
// A tile is 16 rows by 32 elements. Of A it holds 16 rows and 32 k; of B 32 k and 16 columns, k in pairs. Tiles stand side
// by side in twos: 32 rows, or 32 columns, by 32 k. What a matrix does not have is zero.
#pragma once

#include "kernels/bf16_unit.h"

#if KEEL_BF16_PAIRS
#include <immintrin.h>

#include <cstring>

#include "kernels/matmul.h"
#include "kernels/matmul_pack.h"
#include "kernels/matmul_plan.h"

namespace keel::gemm {

constexpr std::int64_t tile_elements = 512, step_elements = 2 * tile_elements;  // a tile; two side by side, for 32 k
constexpr std::int64_t near_steps = 20;  // of a sliver, 2 KB each: so much of it stays in the nearest cache

// Rows of A as the tiles are loaded: the upper and lower 16 rows, `stride` bytes from row to row, `step` bytes for 32
// k.
struct PairRows {
    const char* upper;
    const char* lower;
    std::int64_t stride, step;
};

// 32 x 32 sums: what they begin from, if not from zero, and where they are left. Floats, rows so many elements apart.
struct BlockSums {
    const float* from;
    std::int64_t from_stride;
    float* to;
    std::int64_t to_stride;
};

// 32 floats as bf16. The processor's own conversion takes subnormals for zero, as tile products do.
inline void store_row_of_32(bf16* to, simd::Float low, simd::Float high) {
    const __m512bh both = _mm512_cvtne2ps_pbh(static_cast<__m512>(high), static_cast<__m512>(low));
    std::memcpy(to, &both, sizeof both);
}

inline void store_row_of_32(float* to, simd::Float low, simd::Float high) {
    simd::store(to, low);
    simd::store(to + 16, high);
}

namespace pairs_pack {

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

// 32 rows of 32 elements as 32 columns, in two tiles. A register is loaded from the same quarter of rows i, 8 + i,
// 16 + i and 24 + i, which the shuffle unit takes no part in; three rounds inside of quarters are then the transposition.
inline void transpose_block(const bf16* in, std::int64_t stride, bf16* upper, bf16* lower) {
    constexpr __mmask16 all = 0xffff;  // masked forms: GCC 12 says of the plain ones that an operand is uninitialised
    for (std::int64_t quarter = 0; quarter < 4; ++quarter) {
        __m512i x[8], y[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) {
            const auto part = [&](std::int64_t row) {
                return _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + (row + i) * stride + 8 * quarter));
            };
            const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(part(0)), part(8), 1);
            x[i] = _mm512_maskz_inserti32x4(all, _mm512_castsi256_si512(low), part(16), 2);
            x[i] = _mm512_maskz_inserti32x4(all, x[i], part(24), 3);
        }
#pragma GCC unroll 4
        for (int i = 0; i < 8; i += 2) {
            y[i] = _mm512_unpacklo_epi16(x[i], x[i + 1]);
            y[i + 1] = _mm512_unpackhi_epi16(x[i], x[i + 1]);
        }
#pragma GCC unroll 2
        for (int i = 0; i < 8; i += 4)
#pragma GCC unroll 2
            for (int j = 0; j < 2; ++j) {
                x[i + 2 * j] = _mm512_maskz_unpacklo_epi32(all, y[i + j], y[i + j + 2]);
                x[i + 2 * j + 1] = _mm512_maskz_unpackhi_epi32(all, y[i + j], y[i + j + 2]);
            }
        bf16* const out = (quarter < 2 ? upper : lower) + quarter % 2 * 256;
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            _mm512_storeu_si512(out + 64 * i, _mm512_maskz_unpacklo_epi64(0xff, x[i], x[i + 4]));
            _mm512_storeu_si512(out + 64 * i + 32, _mm512_maskz_unpackhi_epi64(0xff, x[i], x[i + 4]));
        }
    }
}

// Asks for rows that will be read next, a line at a time and in the order of their addresses, which the processor's own
// prefetcher then runs ahead of. Packing of weights from memory: 4.4 GB/s without, 9.7 GB/s with it.
class Ahead {
public:
    Ahead(const bf16* first, std::int64_t stride, std::int64_t elements)
        : row_(reinterpret_cast<const char*>(first)), stride_(stride * 2), lines_(ceil_div(elements, 32)) {}
    void ask(std::int64_t lines) {
        for (; lines > 0; --lines) {
            __builtin_prefetch(row_ + 64 * line_, 0, 2);
            if (++line_ == lines_) line_ = 0, row_ += stride_;
        }
    }

private:
    const char* row_;
    std::int64_t stride_, lines_, line_ = 0;
};

// Panels of B, k0 … k0 + k by `columns`, each [k / 32][2] tiles and panel_stride elements from the last. In the order in which
// the rows of memory lie: all panels of 32 k before the next, or all k of a panel.
inline void panels_of_b(const MatmulOperand<bf16>& b, std::int64_t k0, std::int64_t k, std::int64_t column,
                        std::int64_t columns, bf16* out, std::int64_t panel_stride) {
    const bf16* const in = b.data + k0 * b.row_stride + column * b.col_stride;
    if (b.col_stride == 1) {
        for (std::int64_t i = 0; i < k; i += 32, out += step_elements)
            for (std::int64_t c = 0; c < columns; c += 32) {
                bf16* const to = out + c / 32 * panel_stride;
                interleave_rows(in + i * b.row_stride + c, b.row_stride, k - i, columns - c, to, to + tile_elements);
            }
        return;
    }
    for (std::int64_t c = 0; c < columns; c += 32) {
        const bf16* const from = in + c * b.col_stride;
        Ahead next(from + 32 * b.col_stride, b.col_stride, k);
        for (std::int64_t i = 0; i < k; i += 32) {
            bf16* const to = out + c / 32 * panel_stride + i * 32;
            if (c + 32 < columns) next.ask(32);
            transpose_pairs(from + i, b.col_stride, columns - c, k - i, to);
            transpose_pairs(from + 16 * b.col_stride + i, b.col_stride, columns - c - 16, k - i, to + tile_elements);
        }
    }
}

// One sliver of A, `rows` rows by `k`, of each 32 at most, as two tiles.
inline void step_of_a(const bf16* in, std::int64_t row_stride, std::int64_t col_stride, std::int64_t rows, std::int64_t k,
                      bf16* out) {
    if (col_stride == 1) {
        copy(in, row_stride, rows, k, out);
        copy(in + 16 * row_stride, row_stride, rows - 16, k, out + tile_elements);
    } else if (rows >= 32 && k >= 32) {
        transpose_block(in, col_stride, out, out + tile_elements);
    } else {
        interleave_rows(in, col_stride, k, rows, out, out + tile_elements);
        transpose_tile(out);
        transpose_tile(out + tile_elements);
    }
}
// Slivers of A, `rows` rows by k0 … k0 + k, each [k / 32][2] tiles and sliver_stride elements from the last; in the order of memory too.
inline void slivers_of_a(const MatmulOperand<bf16>& a, std::int64_t row, std::int64_t rows, std::int64_t k0, std::int64_t k,
                         bf16* out, std::int64_t sliver_stride) {
    const bf16* const in = a.data + row * a.row_stride + k0 * a.col_stride;
    if (a.col_stride == 1) {
        for (std::int64_t r = 0; r < rows; r += 32)
            for (std::int64_t i = 0; i < k; i += 32)
                step_of_a(in + r * a.row_stride + i, a.row_stride, 1, rows - r, k - i, out + r / 32 * sliver_stride + i * 32);
        return;
    }
    for (std::int64_t i = 0; i < k; i += 32, out += step_elements) {
        const bf16* const from = in + i * a.col_stride;
        Ahead next(from + 32 * a.col_stride, a.col_stride, rows);
        for (std::int64_t r = 0; r < rows; r += 32) {
            if (i + 32 < k) next.ask(32);
            step_of_a(from + r, 1, a.col_stride, rows - r, k - i, out + r / 32 * sliver_stride);
        }
    }
}

}  // namespace pairs_pack

}  // namespace keel::gemm
#endif
