// kernels/mma.cuh: tensor cores of sm_80 and later, one function per instruction: ldmatrix, mma.sync, and ex2.
//
// Fragments (PTX ISA, "Matrix fragments for mma.m16n8k16"), with group = lane / 4 and pair = lane % 4:
//   a[0] row group,     columns 2 pair, +1      a[2] row group,     columns 2 pair + 8, +9
//   a[1] row group + 8, columns 2 pair, +1      a[3] row group + 8, columns 2 pair + 8, +9
//   b[0] column group, rows 2 pair, +1          b[1] column group, rows 2 pair + 8, +9
//   d[0], d[1] row group, columns 2 pair, +1    d[2], d[3] row group + 8, the same columns
// A register holds two bf16, the one with the lower index in the lower half. tests/sim holds the model to these maps;
// the conformance program (tests/sim/conformance.cu) holds a GPU to the same.
#pragma once

#include <cstdint>

#include "kernels/device.cuh"
#if !defined(__CUDACC__)
#include "kernels/cudasim/matrix.h"
#endif

namespace keel::KEEL_DEVICE {

// Two floats as a register of bf16, the first in the lower half.
KEEL_INLINE std::uint32_t pack_bf16(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    std::uint32_t bits;
    memcpy(&bits, &pair, sizeof bits);
    return bits;
}

// 2^x, to 2 ulp; subnormal results become zero.
KEEL_INLINE float fast_exp2(float x) {
#if defined(__CUDACC__)
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return ::sim::exp2_flushed(x);
#endif
}

// x, of which the compiler knows nothing: what is computed from it inside of a loop is not kept in registers around it.
KEEL_INLINE int opaque(int x) {
#if defined(__CUDACC__)
    asm volatile("" : "+r"(x));
#endif
    return x;
}

#if defined(__CUDACC__)
__device__ __forceinline__ std::uint32_t shared_address(const void* p) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}
#endif

// Four 8 x 8 matrices of 16-bit elements. Lanes 8 i … 8 i + 7 bring the addresses of the rows of matrix i (16 bytes
// each, 16-byte aligned, in shared memory); r[i] is row lane / 4, columns 2 (lane % 4), +1 of matrix i. All 32 lanes
// take part.
KEEL_INLINE void ldmatrix_x4(std::uint32_t (&r)[4], const void* row KEEL_SITE) {
#if defined(__CUDACC__)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
#else
    ::sim::ldmatrix<4, false>(r, row, site);
#endif
}
// The same, each matrix transposed: r[i] is column lane / 4, rows 2 (lane % 4), +1.
KEEL_INLINE void ldmatrix_x4_trans(std::uint32_t (&r)[4], const void* row KEEL_SITE) {
#if defined(__CUDACC__)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
#else
    ::sim::ldmatrix<4, true>(r, row, site);
#endif
}
// Two matrices: lanes 0 … 15 bring the addresses, those of the others are not looked at.
KEEL_INLINE void ldmatrix_x2(std::uint32_t (&r)[2], const void* row KEEL_SITE) {
#if defined(__CUDACC__)
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared_address(row))
                 : "memory");
#else
    ::sim::ldmatrix<2, false>(r, row, site);
#endif
}
KEEL_INLINE void ldmatrix_x2_trans(std::uint32_t (&r)[2], const void* row KEEL_SITE) {
#if defined(__CUDACC__)
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared_address(row))
                 : "memory");
#else
    ::sim::ldmatrix<2, true>(r, row, site);
#endif
}

// d (16 x 8, float) += a (16 x 16, bf16, row-major) b (16 x 8, bf16, column-major). All 32 lanes take part.
KEEL_INLINE void mma_bf16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1 KEEL_SITE) {
#if defined(__CUDACC__)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    ::sim::mma_m16n8k16_bf16(d, a, b0, b1, site);
#endif
}

}  // namespace keel::KEEL_DEVICE
