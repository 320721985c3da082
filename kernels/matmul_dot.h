// kernels/matmul_dot.h: 32 x 32 sums of a bf16 product by dot products of pairs (AVX-512 BF16), for processors without
// tiles.
//
// Eight rows by two vectors of columns are summed at a time: sixteen chains, more than the instruction's latency needs,
// and ten loads for sixteen instructions. Operands are packed as for tiles (matmul_pairs_pack.h): a row of B's tile is one
// vector, 16 columns by a pair of k, and a row of A gives its pairs one by one. The processor takes subnormal operands
// and results for zero, and adds an element's products one after the other.
#pragma once

#include "kernels/bf16_unit.h"

#if KEEL_BF16_PAIRS
#include <immintrin.h>

#include <cstring>

#include "kernels/matmul_pairs_pack.h"
#include "kernels/simd.h"

namespace keel::gemm {

// `rows` <= 8 rows of A from `a` on, by 16 or 32 columns of B. beside(i) is called at every step.
template <int rows, int vectors, class Beside>
inline void dot_rows(const char* a, std::int64_t stride, std::int64_t step, const bf16* b, std::int64_t steps,
                     const BlockSums& sums, std::int64_t first, Beside& beside) {
    __m512 sum[rows][vectors];
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; ++v)
            sum[r][v] = sums.from ? _mm512_loadu_ps(sums.from + (first + r) * sums.from_stride + 16 * v) : _mm512_setzero_ps();
    for (std::int64_t i = 0; i < steps; ++i, a += step, b += step_elements) {
        beside(i);
#pragma GCC unroll 2
        for (int pair = 0; pair < 16; ++pair) {
            __m512bh columns[vectors];
#pragma GCC unroll 2
            for (int v = 0; v < vectors; ++v) std::memcpy(&columns[v], b + v * tile_elements + pair * 32, 64);
#pragma GCC unroll 8
            for (int r = 0; r < rows; ++r) {
                int two;
                std::memcpy(&two, a + r * stride + pair * 4, 4);
                const __m512i everywhere = _mm512_set1_epi32(two);
                __m512bh x;
                std::memcpy(&x, &everywhere, 64);
#pragma GCC unroll 2
                for (int v = 0; v < vectors; ++v) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], x, columns[v]);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; ++v) _mm512_storeu_ps(sums.to + (first + r) * sums.to_stride + 16 * v, sum[r][v]);
}

struct DotUnit {
    struct Scope {};  // nothing to configure
    template <class Beside>
    static void block(const PairRows& a, const bf16* b, std::int64_t steps, std::int64_t rows, std::int64_t columns,
                      const BlockSums& sums, Beside beside) {
        const auto nothing = [](std::int64_t) {};
        for (std::int64_t first = 0; first < rows; first += 8) {
            const char* const from = (first < 16 ? a.upper : a.lower) + first % 16 * a.stride;
            const auto work = [&](auto& other) {
                columns > 16 ? dot_rows<8, 2>(from, a.stride, a.step, b, steps, sums, first, other)
                             : dot_rows<8, 1>(from, a.stride, a.step, b, steps, sums, first, other);
            };
            first == 0 ? work(beside) : work(nothing);
        }
    }
};

}  // namespace keel::gemm
#endif
