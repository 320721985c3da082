// kernels/matmul.h: the CPU's matrix product, C = A B or C += A B, any operand transposed. linear and attention stand
// on it.
//
// k is cut into blocks, from k alone. An element of C is the blocks' sums added in order (after what was in C, if
// accumulated); a block's sum is one chain of multiply-adds from zero. Neither m, n, the tiles nor the thread changes
// that order, which is why a batch may be cut anywhere and any number of threads gives the same bits. The processor's
// tiles and dot products, where bf16 uses them (kernels/bf16_unit.h), go on from block to block in one chain (from what was
// in C), order its terms by their own fixed rule, and take subnormal numbers as zero. oneDNN was measured beside it (tests/bench): it allocates on
// the heap in every call, and a step may not (docs/memory.md).
//
// Layout  strides in elements; one stride of each operand must be 1. C's columns are contiguous. Huge pages are worth a
//         fifth.
// Alias   C overlaps neither A nor B.
// Errors  throws Error if strides are impossible, or if a workspace of the stream, a thread's or the shared one, is
//         smaller than matmul_workspace_bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/dtype.h"
#include "kernels/base/stream.h"

namespace keel {

template <class T>
struct MatmulOperand {
    const T* data;
    std::int64_t row_stride, col_stride;
};
template <class T, class C>
struct Matmul {
    C* c;  // [m, n]  written, or accumulated
    std::int64_t c_stride;
    MatmulOperand<T> a;  // [m, k]  read
    MatmulOperand<T> b;  // [k, n]  read
    std::int64_t m, n, k;
    bool accumulate;          // c += a b; c is float then, or bf16 rounded once
    const T* bias = nullptr;  // [n]     added to every row
};
// The whole product on every thread of the stream.
template <class T, class C>
void matmul(Stream& stream, const Matmul<T, C>& args);
// The whole product on the calling thread; `workspace` is matmul_workspace_bytes, 64-byte aligned.
template <class T, class C>
void matmul_serial(const Matmul<T, C>& args, std::byte* workspace);
constexpr std::int64_t matmul_workspace_bytes = 2 << 20;

// Instruction set in use for T, for the log: "avx512", "avx2", "amx-bf16", "avx512-bf16", "scalar". Float's is chosen by the
// compiler (KEEL_ARCH); what multiplies bf16 at run time, in a build that has it (kernels/bf16_unit.h).
template <class T>
const char* matmul_isa();

}  // namespace keel
