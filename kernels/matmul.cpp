#include "kernels/matmul.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "kernels/matmul_float.h"

namespace keel {
namespace {

template <class T> void check_operand(const char* name, const MatmulOperand<T>& x) {
    if (x.row_stride != 1 && x.col_stride != 1)
        fail("matmul: ", name, " has strides ", x.row_stride, " and ", x.col_stride, "; one of them must be 1");
}

template <class T, class C> void check(const Matmul<T, C>& p) {
    if (p.m < 0 || p.n < 0 || p.k < 0) fail("matmul: m, n, k are ", p.m, ", ", p.n, ", ", p.k, "; none may be negative");
    check_operand("a", p.a);
    check_operand("b", p.b);
    if (p.c_stride < p.n) fail("matmul: rows of c are ", p.c_stride, " elements apart, but hold ", p.n);
}

// What is left of the product when there is nothing to sum.
template <class T, class C> void without_k(const Matmul<T, C>& p) {
    for (std::int64_t r = 0; r < p.m; ++r)
        for (std::int64_t i = 0; i < p.n; ++i) {
            const float c = p.accumulate ? static_cast<float>(p.c[r * p.c_stride + i]) : 0.0f;
            p.c[r * p.c_stride + i] = C(p.bias ? c + static_cast<float>(p.bias[i]) : c);
        }
}

}  // namespace

template <class T, class C> void matmul_serial(const Matmul<T, C>& p, std::byte* workspace) {
    check(p);
    if (p.k == 0) return without_k(p);
    for (std::int64_t column = 0; column < p.n; column += gemm::tile_columns)
        for (std::int64_t row = 0; row < p.m; row += gemm::tile_rows)
            gemm::work(p, {row, std::min(p.m - row, gemm::tile_rows), column, std::min(p.n - column, gemm::tile_columns)},
                       nullptr, workspace);
}

template <class T, class C> void matmul(Stream& stream, const Matmul<T, C>& p) {
    check(p);
    if (p.k == 0) return without_k(p);
    if (stream.workspace_bytes() < matmul_workspace_bytes)
        fail("matmul: the stream has ", stream.workspace_bytes(), " bytes of workspace a thread; give it ", matmul_workspace_bytes);
    const tile::Cut rows(p.m, 112);
    const std::int64_t columns = std::min(gemm::tile_columns, std::max<std::int64_t>(tile::panel, p.n * rows.pieces / 16 / tile::panel * tile::panel));
    const std::int64_t across = ceil_div(p.n, columns);
    stream.parallel(rows.pieces * across, [&](std::int64_t i, int thread) {
        const std::int64_t r = i % rows.pieces, column = i / rows.pieces * columns;
        gemm::work(p, {rows.begin(r), rows.size(r), column, std::min(columns, p.n - column)}, nullptr, stream.workspace(thread));
    });
}

template <class T> const char* matmul_isa() {
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
template void matmul(Stream&, const Matmul<bf16, bf16>&);
template void matmul_serial(const Matmul<float, float>&, std::byte*);
template void matmul_serial(const Matmul<bf16, float>&, std::byte*);
template void matmul_serial(const Matmul<bf16, bf16>&, std::byte*);
template const char* matmul_isa<float>();
template const char* matmul_isa<bf16>();

}  // namespace keel
