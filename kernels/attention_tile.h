// kernels/attention_tile.h: what the CPU's forward and backward share: which rows a tile holds, how they are gathered,
// 2^x.
//
// Heads of a group read the same keys, so the queries of a kv head are one list of rows: row r is query r / group of
// head r % group of the group. A tile is 32 rows, and a query is a lane: scores stand transposed, [key][row], so that
// softmax works down the lanes and neither keys nor values are ever packed to be multiplied.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/base/view.h"
#include "kernels/matmul_pack.h"
#include "kernels/matmul_tile.h"
#include "kernels/simd.h"

namespace keel::attention {

using simd::Float;
using simd::Int;
constexpr int lanes = simd::width;
constexpr std::int64_t tile_rows = 32;
constexpr std::int64_t key_block = 128;
constexpr float log2_e = 1.44269504088896341f, ln_2 = 0.693147180559945309f;

constexpr std::int64_t round_up(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; }

// The query rows of one kv head.
struct Rows {
    std::int64_t group, tokens, query_offset, kv_head, head_dim;
    std::int64_t count() const { return group * tokens; }
    std::int64_t tiles() const { return (count() + tile_rows - 1) / tile_rows; }
    std::int64_t token(std::int64_t row) const { return group == 1 ? row : row / group; }
    std::int64_t head(std::int64_t row) const { return group == 1 ? kv_head : kv_head * group + row % group; }
    std::int64_t last_key(std::int64_t row) const { return query_offset + token(row); }
    template <class T>
    T* at(const View<T>& x, std::int64_t row) const {
        return x.row(token(row)) + head(row) * head_dim;
    }
};

// The rows of a tile and the keys they see. Lanes without a row see nothing.
struct Tile {
    std::int64_t first, rows, columns;            // columns: rows rounded up to whole vectors
    std::int64_t begin, end, all_begin, all_end;  // keys that some row sees, keys that every row sees
    alignas(64) std::int32_t lo[tile_rows], hi[tile_rows];

    Tile(const Rows& list, const View<const std::int32_t>& lo_of, std::int64_t index) {
        first = index * tile_rows;
        rows = std::min(tile_rows, list.count() - first);
        columns = round_up(rows, lanes);
        begin = std::numeric_limits<std::int64_t>::max();
        all_begin = 0;
        for (std::int64_t i = 0; i < tile_rows; ++i) {
            const bool used = i < rows;
            lo[i] = used ? lo_of[list.token(first + i)] : std::numeric_limits<std::int32_t>::max();
            hi[i] = used ? static_cast<std::int32_t>(list.last_key(first + i)) : -1;
            if (used) begin = std::min<std::int64_t>(begin, lo[i]);
            if (used) all_begin = std::max<std::int64_t>(all_begin, lo[i]);
        }
        end = hi[rows - 1] + 1;
        all_end = hi[0] + 1;
        if (rows < columns) all_begin = all_end = 0;
    }
    bool all_see(std::int64_t from, std::int64_t to) const { return from >= all_begin && to <= all_end; }
    // Lanes of vector v that see this key.
    Int sees(std::int64_t key, int v) const {
        Int low, high;
        std::memcpy(&low, lo + v * lanes, sizeof low);
        std::memcpy(&high, hi + v * lanes, sizeof high);
        const Int at = static_cast<std::int32_t>(key) - Int{};
        return (at >= low) & (at <= high);
    }
};

// out[d][row] = x[row][d] * scale; lanes without a row are zero.
template <class T>
void columns_of(const Rows& list, const View<const T>& x, const Tile& tile, float scale, float* out) {
    const std::int64_t whole = list.head_dim / lanes * lanes;
    for (std::int64_t v = 0; v < tile.columns; v += lanes) {
        const T* row[lanes];
        for (int i = 0; i < lanes; ++i) row[i] = list.at(x, tile.first + std::min(v + i, tile.rows - 1));
        Float block[lanes], keep[lanes];
        for (int i = 0; i < lanes; ++i) keep[i] = simd::set(v + i < tile.rows ? scale : 0.0f);
        for (std::int64_t d = 0; d < whole; d += lanes) {
#pragma GCC unroll 16
            for (int i = 0; i < lanes; ++i) block[i] = simd::load(row[i] + d) * keep[i];
            pack::transpose(block);
#pragma GCC unroll 16
            for (int i = 0; i < lanes; ++i) simd::store(out + (d + i) * tile_rows + v, block[i]);
        }
        if (whole == list.head_dim) continue;
        for (int i = 0; i < lanes; ++i) block[i] = simd::load_part(row[i] + whole, list.head_dim - whole) * keep[i];
        pack::transpose(block);
        for (std::int64_t i = 0; i < list.head_dim - whole; ++i)
            simd::store(out + (whole + i) * tile_rows + v, block[i]);
    }
}

// out[i] = float(row i of x), `count` rows of `width` elements, zero from there to the next whole vector.
template <class T, class Row>
void rows_of(std::int64_t count, std::int64_t width, Row row, float* out) {
    const std::int64_t stride = round_up(width, lanes);
    for (std::int64_t i = 0; i < count; ++i) {
        const T* in = row(i);
        for (std::int64_t d = 0; d < stride; d += lanes)
            simd::store(out + i * stride + d,
                        d + lanes <= width ? simd::load(in + d) : simd::load_part(in + d, width - d));
    }
}

template <class T>
void store_row(T* out, const float* in, std::int64_t count) {
    for (std::int64_t d = 0; d < count; d += lanes) {
        if (d + lanes <= count)
            simd::store(out + d, simd::load(in + d));
        else
            simd::store_part(out + d, simd::load(in + d), count - d);
    }
}

// 2^x for x up to about 1, to within 1.5 ulp; 0 below -125, NaN stays NaN.
// x = n + r, |r| <= 1/2: 2^r by a polynomial fitted for least maximum relative error (2^-25.9), n by exponent.
inline Float exp2(Float x) {
    const Float low = simd::set(-125.0f), c = simd::max(low, x);
    const Float t = c + 12582912.0f, r = c - (t - 12582912.0f);  // 1.5 * 2^23: n is in the low bits of t
    Float p = simd::set(1.5353362e-4f);
    p = p * r + 1.3398875e-3f;
    p = p * r + 9.61843692e-3f;
    p = p * r + 5.55033237e-2f;
    p = p * r + 2.40226477e-1f;
    p = p * r + 6.93147182e-1f;
    p = p * r + 1.0f;
    const Float y = reinterpret_cast<Float>(reinterpret_cast<simd::Uint>(p) + (reinterpret_cast<simd::Uint>(t) << 23));
    return x < low ? Float{} : y;
}

}  // namespace keel::attention
