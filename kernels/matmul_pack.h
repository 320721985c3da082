// kernels/matmul_pack.h: operands of a CPU product copied into the order the register tile reads them, converted to
// float.
//
// B becomes panels of `tile::panel` columns, k after k, the missing columns of the last one zero. A becomes slivers of
// at most tile::max_rows rows: k-contiguous where A's rows are contiguous, row-contiguous where its columns are, so
// that neither needs a transposition. Only a k-contiguous B does (a forward's weight), and that one goes through
// registers.
#pragma once

#include <algorithm>

#include "kernels/matmul.h"
#include "kernels/matmul_tile.h"

namespace keel::pack {

// Rows become columns, in registers.
inline void transpose(simd::Float (&x)[simd::width]) {
    using simd::Float;
    constexpr int width = simd::width;
    // A perfect shuffle of the registers, log2(width) times over, is the transposition.
#pragma GCC unroll 4
    for (int round = 1; round < width; round *= 2) {
        Float y[width];
#pragma GCC unroll 8
        for (int i = 0; i < width / 2; ++i) {
            const Float a = x[i], b = x[i + width / 2];
#if defined(__AVX512F__)
            y[2 * i] = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            y[2 * i + 1] = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#elif defined(__AVX__)
            y[2 * i] = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
            y[2 * i + 1] = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#else
            y[2 * i] = __builtin_shufflevector(a, b, 0, 4, 1, 5);
            y[2 * i + 1] = __builtin_shufflevector(a, b, 2, 6, 3, 7);
#endif
        }
#pragma GCC unroll 16
        for (int i = 0; i < width; ++i) x[i] = y[i];
    }
}

// out[column][row] for a `rows` x `columns` block of in[row][column], rows <= simd::width; lanes beyond rows are zero.
template <class T>
void transposed(const T* in, std::int64_t in_stride, std::int64_t rows, std::int64_t columns, float* out,
                std::int64_t out_stride) {
    using simd::Float;
    std::int64_t c = 0;
    Float x[simd::width];
    if (rows >= simd::width)
        for (; c + simd::width <= columns; c += simd::width) {
#pragma GCC unroll 16
            for (int r = 0; r < simd::width; ++r) x[r] = simd::load(in + r * in_stride + c);
            transpose(x);
#pragma GCC unroll 16
            for (int i = 0; i < simd::width; ++i) simd::store(out + (c + i) * out_stride, x[i]);
        }
    for (; c < columns; c += simd::width) {
        const std::int64_t here = columns - c < simd::width ? columns - c : simd::width;
        for (int r = 0; r < simd::width; ++r) x[r] = r < rows ? simd::load_part(in + r * in_stride + c, here) : Float{};
        transpose(x);
        for (std::int64_t i = 0; i < here; ++i) simd::store(out + (c + i) * out_stride, x[i]);
    }
}

// One panel of B: rows [k0, k0 + k), columns [column, column + columns), columns <= tile::panel.
template <class T>
void panel_of_b(const MatmulOperand<T>& b, std::int64_t k0, std::int64_t k, std::int64_t column, std::int64_t columns,
                float* out) {
    const T* in = b.data + k0 * b.row_stride + column * b.col_stride;
    if (b.col_stride == 1) {
        for (std::int64_t i = 0; i < k; ++i, in += b.row_stride, out += tile::panel) {
            if (columns == tile::panel) {
                simd::store(out, simd::load(in));
                simd::store(out + tile::lanes, simd::load(in + tile::lanes));
            } else {
                for (int v = 0; v < tile::panel; v += tile::lanes)
                    simd::store(out + v, columns > v ? simd::load_part(in + v, columns - v) : simd::Float{});
            }
        }
    } else {
        for (int v = 0; v < tile::panel; v += tile::lanes)
            transposed(in + v * b.col_stride, b.col_stride, columns - v, k, out + v, tile::panel);
    }
}

// Row-contiguous slivers lie this many floats apart from k to k: whole vectors, none of them across a cache line.
constexpr std::int64_t sliver_rows = (tile::max_rows + simd::width - 1) / simd::width * simd::width;
constexpr std::int64_t sliver_floats(std::int64_t k) { return sliver_rows * k; }

// `cut.total` rows of A from `row` on, k columns from k0 on, in slivers. `m` is A's own number of rows: up to there a
// whole vector may be read.
template <class T>
void slivers_of_a(const MatmulOperand<T>& a, std::int64_t m, std::int64_t row, const tile::Cut& cut, std::int64_t k0,
                  std::int64_t k, float* out) {
    const T* in = a.data + row * a.row_stride + k0 * a.col_stride;
    if (a.col_stride == 1) {
        for (std::int64_t s = 0; s < cut.pieces; ++s, out += sliver_floats(k)) {
            float* to = out;
            for (std::int64_t r = cut.begin(s); r < cut.begin(s + 1); ++r, in += a.row_stride, to += k) {
                std::int64_t i = 0;
                for (; i + simd::width <= k; i += simd::width) simd::store(to + i, simd::load(in + i));
                if (i < k) simd::store_part(to + i, simd::load_part(in + i, k - i), k - i);
            }
        }
        return;
    }
    // Some k at a time, so that A's memory is read in long rows and a sliver is written in long runs.
    constexpr std::int64_t together = 16;
    for (std::int64_t i = 0; i < k; i += together)
        for (std::int64_t s = 0; s < cut.pieces; ++s) {
            const std::int64_t first = cut.begin(s), left = m - row - first;
            const T* from = in + i * a.col_stride + first;
            float* to = out + s * sliver_floats(k) + i * sliver_rows;
            for (std::int64_t j = 0; j < std::min(together, k - i); ++j, from += a.col_stride, to += sliver_rows)
                for (std::int64_t r = 0; r < sliver_rows; r += simd::width)
                    simd::store(to + r, r + simd::width <= left ? simd::load(from + r)
                                        : r < left              ? simd::load_part(from + r, left - r)
                                                                : simd::Float{});
        }
}

}  // namespace keel::pack
