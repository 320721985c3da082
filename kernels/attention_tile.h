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
#include <type_traits>

#include "kernels/base/view.h"
#include "kernels/matmul_pack.h"
#include "kernels/matmul_tile.h"
#include "kernels/simd.h"

namespace keel::attention {

using simd::Float;
using simd::Int;
constexpr int lanes = simd::width;
constexpr std::int64_t tile_rows = 32;
constexpr std::int64_t key_block = 64;  // keys, values, scores and a tile's own rows fill the nearest cache
constexpr float log2_e = 1.44269504088896341f, ln_2 = 0.693147180559945309f;

constexpr std::int64_t round_up(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; }

// Memory wanted soon, asked nearer a few lines at a time while something else is computed. A head's part of a row is
// short and rows lie far apart, which the processor does not foresee.
class Ahead {
public:
    void clear() { count_ = at_ = 0; }
    // `columns` from `column` on of rows [first, end) of x.
    template <class T>
    void add(const View<T>& x, std::int64_t first, std::int64_t end, std::int64_t column, std::int64_t columns) {
        if (first >= end || count_ == most) return;
        pieces_[count_++] = {reinterpret_cast<const char*>(x.row(first) + column), end - first,
                             x.stride() * static_cast<std::int64_t>(sizeof(T)),
                             columns * static_cast<std::int64_t>(sizeof(T)), !std::is_const_v<T>};
    }
    void ask(int lines) {
        while (lines > 0 && at_ < count_) {
            Piece& piece = pieces_[at_];
            const std::int64_t end = std::min(piece.bytes, byte_ + lines * 64);
            if (piece.written)
                for (std::int64_t i = byte_; i < end; i += 64) __builtin_prefetch(piece.row + i, 1, 2);
            else
                for (std::int64_t i = byte_; i < end; i += 64) __builtin_prefetch(piece.row + i, 0, 2);
            lines -= static_cast<int>((end - byte_ + 63) / 64);
            byte_ = end;
            if (end < piece.bytes) continue;
            byte_ = 0;
            piece.row += piece.stride;
            if (--piece.rows == 0) ++at_;
        }
    }

private:
    static constexpr int most = 8;
    struct Piece {
        const char* row;
        std::int64_t rows, stride, bytes;
        bool written;
    };
    Piece pieces_[most];
    int count_ = 0, at_ = 0;
    std::int64_t byte_ = 0;
};

// The query rows of one kv head. Keys are counted from the first one given, so a query may stand before them all.
struct Rows {
    std::int64_t group, tokens, query_offset, kv_head, head_dim, key_begin, keys;
    std::int64_t count() const { return group * tokens; }
    std::int64_t tiles() const { return (count() + tile_rows - 1) / tile_rows; }
    std::int64_t token(std::int64_t row) const { return group == 1 ? row : row / group; }
    std::int64_t head(std::int64_t row) const { return group == 1 ? kv_head : kv_head * group + row % group; }
    // One past the last key that a row of the tile sees, if one sees any.
    std::int64_t end(std::int64_t tile) const { return last_key(std::min((tile + 1) * tile_rows, count()) - 1) + 1; }
    std::int64_t last_key(std::int64_t row) const { return std::min(query_offset + token(row), keys - 1); }
    // The rows of tile `index` of x, which are `group` heads of some tokens, are wanted soon.
    template <class T>
    void ahead(Ahead& ahead, const View<T>& x, std::int64_t index) const {
        const std::int64_t first = index * tile_rows, end = std::min(first + tile_rows, count());
        if (first < end) ahead.add(x, token(first), token(end - 1) + 1, kv_head * group * head_dim, group * head_dim);
    }
    template <class T>
    T* at(const View<T>& x, std::int64_t row) const {
        return x.row(token(row)) + head(row) * head_dim;
    }
};

// Keys copied so far, as they become needed: a causal tile sees few more than the one before.
struct Span {
    std::int64_t begin = 0, end = 0;
    // Calls copy(from, to) for what is missing of [want_begin, want_end).
    template <class Copy>
    void reach(std::int64_t want_begin, std::int64_t want_end, Copy copy) {
        if (begin == end) begin = end = want_begin;
        if (want_begin < begin) copy(want_begin, begin), begin = want_begin;
        if (want_end > end) copy(end, want_end), end = want_end;
    }
};

// The rows of a tile and the keys they see. Lanes without a row see nothing. Keys from begin to end are each seen by
// some row: a row that stands at a given key sees that one, and rows behind them all see the last one or nothing.
struct Tile {
    std::int64_t first, rows, columns;            // columns: rows rounded up to whole vectors
    std::int64_t begin, end, all_begin, all_end;  // keys that some row sees, keys that every row sees
    alignas(64) std::int32_t lo[tile_rows], hi[tile_rows];
    static constexpr std::int32_t nothing = std::numeric_limits<std::int32_t>::max();  // lo of a row that sees no key

    Tile() = default;
    Tile(const Rows& list, const View<const std::int32_t>& lo_of, std::int64_t index) {
        first = index * tile_rows;
        rows = std::min(tile_rows, list.count() - first);
        columns = round_up(rows, lanes);
        for (std::int64_t i = 0; i < tile_rows; ++i) lo[i] = nothing, hi[i] = -1;
        const std::int32_t key_begin = static_cast<std::int32_t>(list.key_begin),
                           last = static_cast<std::int32_t>(list.keys - 1);
        if (list.group == 1) {  // the same, in vectors
            const std::int32_t at = static_cast<std::int32_t>(list.query_offset + first), used = static_cast<int>(rows);
            for (std::int32_t i = 0; i < used; ++i)
                lo[i] = std::max(lo_of.data()[first + i] - key_begin, 0), hi[i] = std::min(at + i, last);
        } else {
            for (std::int64_t i = 0; i < rows; ++i) {
                lo[i] = std::max(lo_of[list.token(first + i)] - key_begin, 0);
                hi[i] = static_cast<std::int32_t>(list.last_key(first + i));
            }
        }
        for (std::int64_t i = 0; i < rows; ++i) lo[i] = lo[i] > hi[i] ? nothing : lo[i];
        std::int32_t least = lo[0], most = lo[0];
        for (std::int64_t i = 0; i < rows; ++i) least = std::min(least, lo[i]), most = std::max(most, lo[i]);
        begin = least;
        all_begin = most;
        end = least == nothing ? 0 : hi[rows - 1] + 1;
        all_end = hi[0] + 1;
        if (rows < columns) all_begin = all_end = 0;
    }
    bool sees_any() const { return begin < end; }
    bool all_see(std::int64_t from, std::int64_t to) const { return from >= all_begin && to <= all_end; }
    // Calls part(masked, from, to) for pieces of `keys` keys from `key` on, counted from there: all rows see all of a
    // piece that is not masked. Whole fours, where `keys` is, as long as there are any.
    template <class Part>
    void parts(std::int64_t key, std::int64_t keys, Part part) const {
        const std::int64_t from = std::clamp<std::int64_t>(round_up(all_begin - key, 4), 0, keys);
        const std::int64_t to = std::max(from, std::min(keys, (all_end - key) & ~std::int64_t(3)));
        if (from > 0) part(std::true_type(), 0, from);
        if (from < to) part(std::false_type(), from, to);
        if (to < keys) part(std::true_type(), to, keys);
    }
    // Lanes of vector v that see this key.
    Int sees(std::int64_t key, int v) const {
        Int low, high;
        std::memcpy(&low, lo + v * lanes, sizeof low);
        std::memcpy(&high, hi + v * lanes, sizeof high);
        const Int at = static_cast<std::int32_t>(key) - Int{};
        return (at >= low) & (at <= high);
    }
};

// out[d][i] = row(i)[d] * scale for the rows of a tile; lanes without a row are zero.
template <class Row>
void columns_of(const Tile& tile, std::int64_t head_dim, Row row, float scale, float* out) {
    for (std::int64_t v = 0; v < tile.columns; v += lanes) {
        decltype(row(0)) at[lanes];
        float keep[lanes];
        for (int i = 0; i < lanes; ++i) {
            at[i] = row(std::min(v + i, tile.rows - 1));
            keep[i] = v + i < tile.rows ? scale : 0.0f;
        }
        const Float factor = simd::load(keep);
        for (std::int64_t d = 0; d < head_dim; d += lanes) {
            const std::int64_t here = std::min<std::int64_t>(lanes, head_dim - d);
            Float block[lanes];
            if (here == lanes) {
#pragma GCC unroll 16
                for (int i = 0; i < lanes; ++i) block[i] = simd::load(at[i] + d);
            } else {
                for (int i = 0; i < lanes; ++i) block[i] = simd::load_part(at[i] + d, here);
            }
            pack::transpose(block);
            float* const to = out + d * tile_rows + v;
            if (here == lanes) {
#pragma GCC unroll 16
                for (int i = 0; i < lanes; ++i) simd::store(to + i * tile_rows, block[i] * factor);
            } else {
                for (std::int64_t i = 0; i < here; ++i) simd::store(to + i * tile_rows, block[i] * factor);
            }
        }
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

// simd::max(low, x), one instruction: GCC 12 makes two of it where `low` is a constant.
inline Float at_least(Float low, Float x) {
#if defined(KEEL_SIMD_AVX512)
    return static_cast<Float>(_mm512_maskz_max_ps(0xffff, static_cast<__m512>(low), static_cast<__m512>(x)));
#elif defined(__AVX__)
    return static_cast<Float>(_mm256_max_ps(static_cast<__m256>(low), static_cast<__m256>(x)));
#else
    return simd::max(low, x);
#endif
}

// 2^r, |r| <= 1/2, by a polynomial fitted for least maximum relative error: 2^-25.9; with `coarse` 2^-18.4, for what is
// rounded to bf16.
template <bool coarse>
inline Float exp2_of_rest(Float r) {
    Float p;
    if constexpr (coarse) {
        p = simd::set(9.58285294e-3f);
        p = p * r + 5.59064262e-2f;
        p = p * r + 2.40240991e-1f;
        p = p * r + 6.93124175e-1f;
    } else {
        p = simd::set(1.5353362e-4f);
        p = p * r + 1.3398875e-3f;
        p = p * r + 9.61843692e-3f;
        p = p * r + 5.55033237e-2f;
        p = p * r + 2.40226477e-1f;
        p = p * r + 6.93147182e-1f;
    }
    return p * r + 1.0f;
}

// 2^x for x up to about 8, to within 1.5 ulp; nothing that matters (less than 2^-126) below -126, 0 below -127, NaN
// stays NaN. x = n + r, |r| <= 1/2.
template <bool coarse = false>
inline Float exp2(Float x) {
#if defined(KEEL_SIMD_AVX512) && defined(__AVX512DQ__)
    // r, and the product with 2^n, are an instruction each. A subnormal takes a hundred cycles: below -126 it is 0.
    const __m512 v = static_cast<__m512>(x);
    const __mmask16 normal = _mm512_cmp_ps_mask(v, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
    const Float r = static_cast<Float>(_mm512_maskz_reduce_ps(0xffff, v, _MM_FROUND_TO_NEAREST_INT));
    const __m512 p = static_cast<__m512>(exp2_of_rest<coarse>(r)), n = static_cast<__m512>(x - r);
    return static_cast<Float>(_mm512_maskz_scalef_ps(normal, p, n));
#else
    const Float c = at_least(simd::set(-127.0f), x);
    const Float t = c + 12582912.0f, r = c - (t - 12582912.0f);  // 1.5 * 2^23: n is in the low bits of t
    const Float p = exp2_of_rest<coarse>(r);                     // at -127 it is 1, whose exponent becomes that of 0
    return reinterpret_cast<Float>(reinterpret_cast<simd::Uint>(p) + (reinterpret_cast<simd::Uint>(t) << 23));
#endif
}

}  // namespace keel::attention
