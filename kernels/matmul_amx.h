// kernels/matmul_amx.h: one tile of a bf16 product on one thread, on the processor's tile registers.
//
// C is worked in blocks of 32 x 32: two tiles of A by two of B, four of sums. A is read where it lies if its rows are
// contiguous, whole and not a power of two apart; else it is copied into tiles. B becomes tiles of pairs of k.
// Blocks of k go on with the sums of those before, so that an element of C is one chain over k.
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
        } else if (rows >= 32 && k - i >= 32) {
            transpose_block(in + i * a.col_stride, a.col_stride, out, out + tile_elements);
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

// Lines wanted next: at every step one from each of `rows` rows, `row` bytes apart, `step` bytes on from the last.
struct AmxAhead {
    const char* data;
    std::int64_t row, rows, step;
};

// Where 32 x 32 sums lie: floats, rows `stride` apart.
struct AmxSums {
    float* data;
    std::int64_t stride;
    float* lower() const { return data + 16 * stride; }
};

// sums += A B over `steps` times 32 k, or = A B; one chain either way. Without the second 16 rows or columns, their sums
// are not touched.
template <bool two_rows, bool two_columns>
inline void amx_sums(const AmxRows& a, const bf16* b, std::int64_t steps, const AmxSums& sums, bool add,
                     const AmxAhead& ahead) {
    const std::int64_t row = sums.stride * 4;
    if (add) {
        _tile_loadd(0, sums.data, row);
        if (two_columns) _tile_loadd(1, sums.data + 16, row);
        if (two_rows) _tile_loadd(2, sums.lower(), row);
        if (two_rows && two_columns) _tile_loadd(3, sums.lower() + 16, row);
    } else {
        _tile_zero(0);
        if (two_columns) _tile_zero(1);
        if (two_rows) _tile_zero(2);
        if (two_rows && two_columns) _tile_zero(3);
    }
    const char *upper = a.upper, *lower = a.lower, *line = ahead.data;
    for (std::int64_t i = 0; i < steps; ++i) {
        _tile_loadd(4, upper, a.stride);
        _tile_loadd(6, b, 64);
        _tile_dpbf16ps(0, 4, 6);
        for (std::int64_t r = 0; r < ahead.rows; ++r) __builtin_prefetch(line + r * ahead.row, 0, 2);
        if (two_columns) {
            _tile_loadd(7, b + tile_elements, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (two_rows) {
            _tile_loadd(5, lower, a.stride);
            _tile_dpbf16ps(2, 5, 6);
            if (two_columns) _tile_dpbf16ps(3, 5, 7);
        }
        upper += a.step, lower += a.step, b += step_elements, line += ahead.step;
    }
    _tile_stored(0, sums.data, row);
    if (two_columns) _tile_stored(1, sums.data + 16, row);
    if (two_rows) _tile_stored(2, sums.lower(), row);
    if (two_rows && two_columns) _tile_stored(3, sums.lower() + 16, row);
}

inline void amx_block(const AmxRows& a, const bf16* b, std::int64_t steps, bool two_rows, bool two_columns,
                      const AmxSums& sums, bool add, const AmxAhead& ahead) {
    if (two_rows && two_columns)
        amx_sums<true, true>(a, b, steps, sums, add, ahead);
    else if (two_rows)
        amx_sums<true, false>(a, b, steps, sums, add, ahead);
    else if (two_columns)
        amx_sums<false, true>(a, b, steps, sums, add, ahead);
    else
        amx_sums<false, false>(a, b, steps, sums, add, ahead);
}

// At most 32 x 32 of C and its sums. They lie in C itself where they can; else beside it, between blocks of k too.
template <class C>
struct AmxResult {
    C* c;
    std::int64_t c_stride, rows, columns;
    float* beside;  // [32][32]
    const bf16* bias;

    static constexpr bool is_float = std::is_same_v<C, float>;
    bool in_c() const { return is_float && rows == 32 && columns == 32; }
    AmxSums sums() const {
        if constexpr (is_float)
            if (in_c()) return {c, c_stride};
        return {beside, 32};
    }
    // What is in C is what comes first.
    void begin() const {
        if (in_c()) return;
        for (std::int64_t r = 0; r < rows; ++r)
            for (std::int64_t i = 0; i < columns; i += 16)
                simd::store(beside + r * 32 + i, simd::load_part(c + r * c_stride + i, std::min<std::int64_t>(16, columns - i)));
    }
    void finish() const {
        if (in_c() && !bias) return;
        const AmxSums from = sums();
        for (std::int64_t r = 0; r < rows; ++r)
            for (std::int64_t i = 0; i < columns; i += 16) {
                const std::int64_t here = std::min<std::int64_t>(16, columns - i);
                simd::Float x = simd::load(from.data + r * from.stride + i);
                if (bias) x += simd::load_part(bias + i, here);
                C* const to = c + r * c_stride + i;
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
                                  const AmxAhead& ahead) {
            const std::int64_t height = rows_of(s), column = 32 * i,
                               width = std::min<std::int64_t>(32, area.columns - column);
            // A float result's edges meet in C between blocks of k, a bf16 result of several blocks beside it.
            constexpr bool is_float = std::is_same_v<C, float>;
            const AmxResult<C> result{p.c + (area.row + 32 * s) * p.c_stride + area.column + column, p.c_stride, height, width,
                                      is_float || blocks.count() == 1 ? block_sums : sums + (s * panels + i) * 1024,
                                      p.bias && at + 1 == blocks.count() ? p.bias + area.column + column : nullptr};
            const bool add = at > 0 || p.accumulate;
            if (is_float ? add : at == 0 && p.accumulate) result.begin();
            amx_block(rows, panel, steps, height > 16, width > 16, result.sums(), add, ahead);
            if (is_float || at + 1 == blocks.count()) result.finish();
        };
        if (packed) {
            for (std::int64_t s = 0; s < slivers; ++s) {
                if (!in_place(s)) amx_pack::sliver_of_a(p.a, area.row + 32 * s, rows_of(s), k0, k, a);
                const AmxRows rows = place_a(s, a);
                // The next sliver comes nearer, shared among the panels: lines of its 32 rows, or one of each of k.
                const std::int64_t next = s + 1 < slivers ? area.row + 32 * (s + 1) : area.next_row,
                                   share = ceil_div(32, panels);
                const bool by_rows = p.a.col_stride == 1;
                const std::int64_t row = (by_rows ? p.a.row_stride : p.a.col_stride) * 2;
                AmxAhead ahead{reinterpret_cast<const char*>(p.a.data + next * p.a.row_stride + k0 * p.a.col_stride),
                               row, share, by_rows ? 64 : share * row};
                for (std::int64_t i = 0; i < panels; ++i, ahead.data += share * row * (by_rows ? 1 : steps))
                    multiply(s, i, rows,
                             packed->data + (area.column + 32 * i - packed->first) * packed->k + (k0 - packed->k0) * 32,
                             ahead);
            }
        } else {
            for (std::int64_t s = 0; s < slivers; ++s)
                if (!in_place(s))
                    amx_pack::sliver_of_a(p.a, area.row + 32 * s, rows_of(s), k0, k, a + s * steps * step_elements);
            for (std::int64_t i = 0; i < panels; ++i) {
                amx_pack::panel_of_b(p.b, k0, k, area.column + 32 * i,
                                     std::min<std::int64_t>(32, area.columns - 32 * i), b);
                for (std::int64_t s = 0; s < slivers; ++s)
                    multiply(s, i, place_a(s, a + s * steps * step_elements), b, {nullptr, 0, 0, 0});
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
