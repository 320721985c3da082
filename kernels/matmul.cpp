#include "kernels/matmul.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "kernels/matmul_amx.h"
#include "kernels/matmul_dot.h"
#include "kernels/matmul_float.h"
#include "kernels/matmul_pairs.h"

namespace keel {
namespace {

template <class T>
void check_operand(const char* name, const MatmulOperand<T>& x) {
    if (x.row_stride != 1 && x.col_stride != 1)
        fail("matmul: ", name, " has strides ", x.row_stride, " and ", x.col_stride, "; one of them must be 1");
}

template <class T, class C>
void check(const Matmul<T, C>& p) {
    if (p.m < 0 || p.n < 0 || p.k < 0)
        fail("matmul: m, n, k are ", p.m, ", ", p.n, ", ", p.k, "; none may be negative");
    check_operand("a", p.a);
    check_operand("b", p.b);
    if (p.c_stride < p.n) fail("matmul: rows of c are ", p.c_stride, " elements apart, but hold ", p.n);
}

// What is left of the product when there is nothing to sum.
template <class T, class C>
void without_k(const Matmul<T, C>& p) {
    for (std::int64_t r = 0; r < p.m; ++r)
        for (std::int64_t i = 0; i < p.n; ++i) {
            const float c = p.accumulate ? static_cast<float>(p.c[r * p.c_stride + i]) : 0.0f;
            p.c[r * p.c_stride + i] = C(p.bias ? c + static_cast<float>(p.bias[i]) : c);
        }
}

// Tasks that pack `across` rows or columns by k, in pieces of at most `piece`: body(first row or column, how many, first
// k, how much of it).
template <class Body>
void in_pieces(Stream& stream, std::int64_t across, std::int64_t k, const gemm::Piece& piece, Body&& body) {
    const std::int64_t wide = ceil_div(across, piece.across), deep = ceil_div(k, piece.k);
    stream.parallel(wide * deep, [&](std::int64_t i, int) {
        const std::int64_t at = i / deep * piece.across, k0 = i % deep * piece.k;
        body(at, std::min(piece.across, across - at), k0, std::min(piece.k, k - k0));
    });
}

// Elements of the shared workspace that B may fill: where A is packed too, it gets what it needs, up to a half.
template <class Path, class T, class C>
std::int64_t room_of_b(const Matmul<T, C>& p, std::int64_t room) {
    if (Path::reads_a(p)) return room;
    const std::int64_t a = gemm::round_up(p.m, Path::limits.row_unit) * gemm::round_up(p.k, Path::limits.k_unit);
    return room - std::min(a, room / 2);
}

// Each task packs its part of both operands. Not with more threads than such tiles, which are large: bits do not depend
// on it.
template <class Path, class T, class C>
bool multiply_own(Stream& stream, const Matmul<T, C>& p) {
    constexpr gemm::Limits limits = Path::limits;
    const gemm::OwnTiles tiles(p.m, p.n, limits);
    if (tiles.count() < stream.threads()) return false;
    const std::int64_t blocks = gemm::Blocks(p.k, limits).count();
    stream.parallel(tiles.count(), [&](std::int64_t i, int thread) {
        const std::int64_t r = i % tiles.rows.pieces, c = i / tiles.rows.pieces;
        const std::int64_t row = tiles.rows.begin(r) * limits.row_unit, column = tiles.columns.begin(c) * limits.panel;
        Path::on_own_b(p,
                       {row, std::min(p.m - row, tiles.rows.size(r) * limits.row_unit), column,
                        std::min(p.n - column, tiles.columns.size(c) * limits.panel), 0, blocks, 0},
                       nullptr, stream.workspace(thread));
    });
    return true;
}

// `shared`: where operands are packed, `room` elements of it.
template <class Path, class T, class C>
void multiply(Stream& stream, const Matmul<T, C>& p, typename Path::Element* shared, std::int64_t room) {
    using Packed = gemm::Packed<typename Path::Element>;
    constexpr gemm::Limits limits = Path::limits;
    const gemm::Blocks blocks(p.k, limits);
    if constexpr (limits.own_rows > 0)
        if (Path::packs_both(p) && multiply_own<Path>(stream, p)) return;
    const gemm::Plan plan(p.m, p.n, p.k, room_of_b<Path>(p, room), limits);
    const tile::Cut slivers(p.m, limits.row_unit);
    const std::int64_t tall = plan.rows / limits.row_unit;  // slivers of a tile at most
    // An even number of tiles, which two threads finish together: with 19, one waits for a twentieth of the product.
    const auto tiles_of = [&](std::int64_t pieces) {
        const std::int64_t even = gemm::round_up(ceil_div(pieces, tall), 2);
        return tile::Cut(pieces, tall, plan.packing == gemm::Packing::b ? std::min(pieces, even) : 1);
    };
    const auto row = [&](std::int64_t sliver) { return std::min(p.m, sliver * limits.row_unit); };
    if (plan.packing != gemm::Packing::b) {
        const tile::Cut rows = tiles_of(slivers.pieces);
        const Packed a{shared, 0, 0, p.k};
        if (plan.packing == gemm::Packing::a)
            stream.parallel(blocks.count(), [&](std::int64_t i, int) {
                Path::pack_a(p.a, p.m, blocks.begin(i), blocks.size(i), shared);
            });
        stream.parallel(rows.pieces * ceil_div(p.n, plan.columns), [&](std::int64_t i, int thread) {
            const std::int64_t r = i % rows.pieces, column = i / rows.pieces * plan.columns;
            const std::int64_t begin = row(rows.begin(r)), end = row(rows.begin(r + 1));
            Path::on_own_b(p, {begin, end - begin, column, std::min(plan.columns, p.n - column), 0, blocks.count(), 0},
                           plan.packing == gemm::Packing::a ? &a : nullptr, stream.workspace(thread));
        });
        return;
    }
    for (std::int64_t first = 0; first < p.n; first += plan.packed_columns)
        for (std::int64_t block = 0; block < blocks.count(); block += plan.packed_blocks) {
            const std::int64_t width = std::min(plan.packed_columns, p.n - first),
                               here = std::min(plan.packed_blocks, blocks.count() - block);
            const std::int64_t k0 = blocks.begin(block),
                               k = gemm::round_up(blocks.begin(block + here) - k0, limits.k_unit);
            const Packed b{shared, first, k0, k};
            const std::int64_t k_here = std::min(p.k - k0, k);
            in_pieces(stream, width, k_here, Path::piece_of_b(p.b),
                      [&](std::int64_t column, std::int64_t columns, std::int64_t at, std::int64_t deep) {
                          Path::pack_b(p.b, k0 + at, deep, first + column, columns,
                                       shared + column * k + at * limits.panel, limits.panel * k);
                      });
            // Rows of A: all of them, or as many as can be packed at once.
            typename Path::Element* const rest = shared + gemm::round_up(width, limits.panel) * k;
            const bool lies = Path::reads_a(p);
            const tile::Cut pieces(slivers.pieces,
                                   lies ? slivers.pieces : std::max<std::int64_t>(1, (shared + room - rest) / k / limits.row_unit));
            for (std::int64_t piece = 0; piece < pieces.pieces; ++piece) {
                const Packed a{lies ? nullptr : rest, row(pieces.begin(piece)), k0, k};
                if (!lies)
                    in_pieces(stream, row(pieces.begin(piece + 1)) - a.first, k_here, Path::piece_of_a(p.a),
                              [&](std::int64_t at, std::int64_t rows, std::int64_t at_k, std::int64_t deep) {
                                  Path::pack_rows_of_a(p.a, a.first + at, rows, k0 + at_k, deep,
                                                       rest + at * k + at_k * limits.row_unit, limits.row_unit * k);
                              });
                const tile::Cut rows = tiles_of(pieces.size(piece));
                const auto begin_of = [&](std::int64_t r) { return row(pieces.begin(piece) + rows.begin(r)); };
                stream.parallel(rows.pieces * ceil_div(width, plan.columns), [&](std::int64_t i, int thread) {
                    const std::int64_t r = i % rows.pieces, column = i / rows.pieces * plan.columns;
                    Path::on_packed_b(p,
                                      {begin_of(r), begin_of(r + 1) - begin_of(r), first + column,
                                       std::min(plan.columns, width - column), block, here,
                                       begin_of((r + stream.threads()) % rows.pieces)},
                                      b, a, stream.workspace(thread));
                });
            }
        }
}

// A result of two bytes whose k is worked in pieces: the pieces meet in float, and are rounded once.
template <class Path, class T, class C>
void multiply_in_pieces(Stream& stream, const Matmul<T, C>& p) {
    float* const sums = reinterpret_cast<float*>(stream.shared_workspace());
    const std::int64_t half = stream.shared_bytes() / 128 * 64, columns = std::min<std::int64_t>(p.n, 1024);
    const std::int64_t most_rows = std::min(p.m, half / 4 / columns);
    for (std::int64_t column = 0; column < p.n; column += columns)
        for (std::int64_t row = 0; row < p.m; row += most_rows) {
            const std::int64_t rows = std::min(most_rows, p.m - row), width = std::min(columns, p.n - column);
            C* const out = p.c + row * p.c_stride + column;
            const auto each_row = [&](auto body) {
                stream.parallel(rows, [&](std::int64_t r, int) { body(sums + r * width, out + r * p.c_stride); });
            };
            if (p.accumulate)
                each_row([&](float* sum, const C* c) {
                    for (std::int64_t i = 0; i < width; ++i) sum[i] = static_cast<float>(c[i]);
                });
            MatmulOperand<T> a = p.a, b = p.b;
            a.data += row * a.row_stride, b.data += column * b.col_stride;
            multiply<Path, T, float>(stream,
                                     {.c = sums,
                                      .c_stride = width,
                                      .a = a,
                                      .b = b,
                                      .m = rows,
                                      .n = width,
                                      .k = p.k,
                                      .accumulate = p.accumulate,
                                      .bias = p.bias ? p.bias + column : nullptr},
                                     reinterpret_cast<typename Path::Element*>(stream.shared_workspace() + half),
                                     half / static_cast<std::int64_t>(sizeof(typename Path::Element)));
            each_row([&](const float* sum, C* c) {
                for (std::int64_t i = 0; i < width; ++i) c[i] = C(sum[i]);
            });
        }
}

template <class Path, class T, class C>
void multiply(Stream& stream, const Matmul<T, C>& p) {
    using Element = typename Path::Element;
    const std::int64_t room = stream.shared_bytes() / static_cast<std::int64_t>(sizeof(Element));
    if constexpr (!std::is_same_v<C, float>)
        if (gemm::Plan(p.m, p.n, p.k, room_of_b<Path>(p, room), Path::limits).splits_k({p.k, Path::limits}))
            return multiply_in_pieces<Path>(stream, p);
    multiply<Path>(stream, p, reinterpret_cast<Element*>(stream.shared_workspace()), room);
}

template <class Path, class T, class C>
void multiply_alone(const Matmul<T, C>& p, std::byte* workspace) {
    constexpr gemm::Limits limits = Path::limits;
    const std::int64_t blocks = gemm::Blocks(p.k, limits).count();
    for (std::int64_t column = 0; column < p.n; column += limits.tile_columns)
        for (std::int64_t row = 0; row < p.m; row += limits.tile_rows)
            Path::on_own_b(p,
                           {row, std::min(p.m - row, limits.tile_rows), column,
                            std::min(p.n - column, limits.tile_columns), 0, blocks, row},
                           nullptr, workspace);
}

}  // namespace

template <class T, class C>
void matmul(Stream& stream, const Matmul<T, C>& p) {
    check(p);
    if (p.m == 0 || p.n == 0) return;
    if (p.k == 0) return without_k(p);
    if (stream.workspace_bytes() < matmul_workspace_bytes)
        fail("matmul: the stream has ", stream.workspace_bytes(), " bytes of workspace a thread; give it ",
             matmul_workspace_bytes);
    if (stream.shared_bytes() < matmul_workspace_bytes)
        fail("matmul: the stream has ", stream.shared_bytes(), " bytes of shared workspace; give it ",
             matmul_workspace_bytes);
#if KEEL_AMX
    if constexpr (std::is_same_v<T, bf16>)
        if (bf16_unit() == Bf16Unit::tiles) return multiply<gemm::PairsPath<gemm::TileUnit>>(stream, p);
#endif
#if KEEL_BF16_PAIRS
    if constexpr (std::is_same_v<T, bf16>)
        if (bf16_unit() == Bf16Unit::dots) return multiply<gemm::PairsPath<gemm::DotUnit>>(stream, p);
#endif
    multiply<gemm::FloatPath>(stream, p);
}

template <class T, class C>
void matmul_serial(const Matmul<T, C>& p, std::byte* workspace) {
    check(p);
    if (p.k == 0) return without_k(p);
#if KEEL_AMX
    if constexpr (std::is_same_v<T, bf16>)
        if (bf16_unit() == Bf16Unit::tiles) return multiply_alone<gemm::PairsPath<gemm::TileUnit>>(p, workspace);
#endif
#if KEEL_BF16_PAIRS
    if constexpr (std::is_same_v<T, bf16>)
        if (bf16_unit() == Bf16Unit::dots) return multiply_alone<gemm::PairsPath<gemm::DotUnit>>(p, workspace);
#endif
    multiply_alone<gemm::FloatPath>(p, workspace);
}

template <class T>
const char* matmul_isa() {
    if (std::is_same_v<T, bf16> && bf16_unit() == Bf16Unit::tiles) return "amx-bf16";
    if (std::is_same_v<T, bf16> && bf16_unit() == Bf16Unit::dots) return "avx512-bf16";
#if defined(__AVX512F__)
    return "avx512";
#elif defined(__AVX2__) && defined(__FMA__)
    return "avx2";
#else
    return "scalar";
#endif
}

template void matmul(Stream&, const Matmul<float, float>&);
template void matmul(Stream&, const Matmul<bf16, float>&);
template void matmul(Stream&, const Matmul<f16, float>&);
template void matmul(Stream&, const Matmul<bf16, bf16>&);
template void matmul(Stream&, const Matmul<f16, f16>&);
template void matmul_serial(const Matmul<float, float>&, std::byte*);
template void matmul_serial(const Matmul<bf16, float>&, std::byte*);
template void matmul_serial(const Matmul<f16, float>&, std::byte*);
template void matmul_serial(const Matmul<bf16, bf16>&, std::byte*);
template void matmul_serial(const Matmul<f16, f16>&, std::byte*);
template const char* matmul_isa<float>();
template const char* matmul_isa<bf16>();
template const char* matmul_isa<f16>();

}  // namespace keel
