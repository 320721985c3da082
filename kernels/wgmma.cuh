// kernels/wgmma.cuh: products of a warpgroup (wgmma, sm_90a), one function per instruction.
//
// Four warps, the first of them a multiple of four, compute d (64 x n, float) = a (64 x 16) b (16 x n), or d + a b, in
// bf16. Warp w has rows 16 w … 16 w + 15, each lane of it what mma.cuh's fragments say: d[i] are d of columns 8 i … 8 i
// + 7, and `a` in registers is that of 16 x 16.
//
// Products are asynchronous. wgmma_fence(), then products, then wgmma_commit() closes a group; wgmma_wait<n>() waits
// until at most the last n groups are not over. Between, nobody may read or write their accumulators or their `a`, but
// further products of the same shape may add to them.
#pragma once

#include <cstdint>

#include "kernels/hopper.cuh"

namespace keel::KEEL_DEVICE {

enum class Swizzle : unsigned { none = 0, bytes_128 = 1, bytes_64 = 2, bytes_32 = 3 };

// Describes a matrix in shared memory: rows of A, or columns of B, are its lines, and 16 elements of each are summed
// over.
//   plain       elements of a line lie together, lines a span of the swizzle apart; `stride` is from a line to the
//               eighth after it, `leading` is not looked at
//   transposed  as many lines as fill a span lie together; `leading` is from such a span to the next, `stride` from
//               element k to k + 8 of a line
// Both in bytes. Without a swizzle eight elements lie together, plain or transposed: `leading` is from element k to
// k + 8, `stride` from a line to the eighth after it. `first` is the beginning of a span, where the swizzle's pattern
// begins, or a multiple of 16 elements further along the span.
KEEL_INLINE std::uint64_t shared_matrix(const void* first, unsigned leading, unsigned stride, Swizzle swizzle) {
    return static_cast<std::uint64_t>((address_in_shared(first) & 0x3ffffu) >> 4) |
           static_cast<std::uint64_t>(leading >> 4 & 0x3fffu) << 16 |
           static_cast<std::uint64_t>(stride >> 4 & 0x3fffu) << 32 | static_cast<std::uint64_t>(swizzle) << 62;
}

#if defined(__CUDACC__)
#define KEEL_D4(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define KEEL_D32(i)                                                                                             \
    KEEL_D4(i), KEEL_D4(i + 1), KEEL_D4(i + 2), KEEL_D4(i + 3), KEEL_D4(i + 4), KEEL_D4(i + 5), KEEL_D4(i + 6), \
        KEEL_D4(i + 7)
#define KEEL_TEXT32                                                          \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define KEEL_TEXT64                                                                    \
    KEEL_TEXT32                                                                        \
    ", "                                                                               \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#endif

// a in shared memory. All lanes bring the same matrices.
template <bool a_transposed, bool b_transposed, int n8>
KEEL_INLINE void wgmma(float (&d)[n8][4], std::uint64_t a, std::uint64_t b, bool add KEEL_SITE) {
    static_assert(n8 == 8 || n8 == 16, "n is 64 or 128");
#if defined(__CUDACC__)
    if constexpr (n8 == 8)
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" KEEL_TEXT32 "}, %32, %33, p, 1, 1, %35, %36;\n}"
            : KEEL_D32(0)
            : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(a_transposed), "n"(b_transposed));
    else
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" KEEL_TEXT64 "}, %64, %65, p, 1, 1, %67, %68;\n}"
            : KEEL_D32(0), KEEL_D32(8)
            : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(a_transposed), "n"(b_transposed));
#else
    ::sim::wgmma({d[0], 8 * n8, nullptr, a, b, add, a_transposed, b_transposed}, site);
#endif
}
// a in registers.
template <bool b_transposed, int n8>
KEEL_INLINE void wgmma(float (&d)[n8][4], const std::uint32_t (&a)[4], std::uint64_t b, bool add KEEL_SITE) {
    static_assert(n8 == 8 || n8 == 16, "n is 64 or 128");
#if defined(__CUDACC__)
    if constexpr (n8 == 8)
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" KEEL_TEXT32
            "}, {%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}"
            : KEEL_D32(0)
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)), "n"(b_transposed));
    else
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" KEEL_TEXT64
            "}, {%64, %65, %66, %67}, %68, p, 1, 1, %70;\n}"
            : KEEL_D32(0), KEEL_D32(8)
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)), "n"(b_transposed));
#else
    ::sim::wgmma({d[0], 8 * n8, a, 0, b, add, false, b_transposed}, site);
#endif
}
#if defined(__CUDACC__)
#undef KEEL_D4
#undef KEEL_D32
#undef KEEL_TEXT32
#undef KEEL_TEXT64
#endif

// Products see the registers that this warp has written.
KEEL_INLINE void wgmma_fence(KEEL_ONLY_SITE) {
#if defined(__CUDACC__)
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#else
    ::sim::wgmma_fence(site);
#endif
}
KEEL_INLINE void wgmma_commit(KEEL_ONLY_SITE) {
#if defined(__CUDACC__)
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
    ::sim::wgmma_commit(site);
#endif
}
template <int groups_left>
KEEL_INLINE void wgmma_wait(KEEL_ONLY_SITE) {
#if defined(__CUDACC__)
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(groups_left) : "memory");
#else
    ::sim::wgmma_wait(groups_left, site);
#endif
}
// To the compiler these registers change here: what it computes from them it does before, or after.
template <int n>
KEEL_INLINE void pin(float (&d)[n][4]) {
#if defined(__CUDACC__)
#pragma unroll
    for (int i = 0; i < n; ++i) asm volatile("" : "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])::"memory");
#else
    (void)d;
#endif
}

}  // namespace keel::KEEL_DEVICE
