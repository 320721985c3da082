// tests/sim/product_kernel.cuh: a product of 64 x 64 by 64 x n in four steps of wgmma, of matrices that bulk copies
// bring in any arrangement; with a seeded mistake, or none. For the tests of the model and for the conformance program.
#pragma once

#include "kernels/tensor_map.cuh"
#include "kernels/wgmma.cuh"

namespace keel::KEEL_DEVICE {

constexpr int depth = 64;  // summed over, in four products of 16

template <unsigned span>
constexpr Swizzle swizzle_of = span == 128  ? Swizzle::bytes_128
                               : span == 64 ? Swizzle::bytes_64
                               : span == 32 ? Swizzle::bytes_32
                                            : Swizzle::none;
template <unsigned span>
constexpr CUtensorMapSwizzle map_swizzle_of = span == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                              : span == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                              : span == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
                                                           : CU_TENSOR_MAP_SWIZZLE_NONE;

// The 16 elements from 16 * step on of `lines` lines, which came in boxes of one span by `lines` (or by depth, if
// transposed).
template <unsigned span>
KEEL_INLINE std::uint64_t operand(const __nv_bfloat16* tile, unsigned lines, bool transposed, unsigned step) {
    constexpr unsigned bytes = span ? span : 16, elements = bytes / 2;
    const auto* const first = reinterpret_cast<const char*>(tile);
    if (transposed) {
        // A box holds `elements` lines; 16 of its rows are a step.
        const unsigned box = depth * bytes, leading = span ? box : 8 * bytes, stride = span ? 8 * bytes : box;
        return shared_matrix(first + step * 16 * bytes, leading, stride, swizzle_of<span>);
    }
    const unsigned box = lines * bytes, at = step * 16 / elements * box + step * 16 % elements * 2;
    return shared_matrix(first + at, box, 8 * bytes, swizzle_of<span>);  // without a swizzle a step is two boxes
}

enum class ProductBug {
    none,
    no_wait,
    no_commit,
    no_fence,
    reads_early,
    changes_a,
    waits_for_one_too_few,
    one_warp_less
};

// d = a b, with what the boxes of the maps bring. Thread t writes its n / 2 elements of d to out[t …].
template <int n, unsigned span, bool a_transposed, bool b_transposed, bool a_in_registers, ProductBug bug>
__global__ void product(float* out, const __grid_constant__ CUtensorMap a_map,
                        const __grid_constant__ CUtensorMap b_map) {
    constexpr unsigned elements = (span ? span : 16) / 2;
    KEEL_DYNAMIC_SHARED(__nv_bfloat16, a);
    __nv_bfloat16* const b = a + 64 * depth;
    KEEL_SHARED(std::uint64_t, full, [1]);
    const unsigned t = threadIdx.x, warp = t / 32, lane = t % 32;
    if (t == 0) {
        mbarrier_init(full, 1);
        fence_mbarrier_init();
        mbarrier_arrive_expect(full, (64 + n) * depth * 2);
        const auto load = [&](__nv_bfloat16* to, const CUtensorMap& map, unsigned lines, bool transposed) {
            const unsigned columns = transposed ? lines : depth, rows = transposed ? depth : lines;
            for (unsigned c = 0; c < columns; c += elements) load_box(to + c * rows, map, full, static_cast<int>(c), 0);
        };
        load(a, a_map, 64, a_transposed);
        load(b, b_map, n, b_transposed);
    }
    __syncthreads();
    mbarrier_wait(full, 0);
    float d[n / 8][4];
#pragma unroll
    for (int i = 0; i < n / 8; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) d[i][e] = 1000;  // never added to
    std::uint32_t registers[depth / 16][4];
    if (a_in_registers) {  // the box is of 128 bytes
#pragma unroll
        for (unsigned k = 0; k < depth / 16; ++k)
#pragma unroll
            for (unsigned r = 0; r < 4; ++r) {
                const unsigned row = warp * 16 + lane / 4 + r % 2 * 8, column = k * 16 + lane % 4 * 2 + r / 2 * 8;
                memcpy(&registers[k][r], a + row * 64 + ((column / 8) ^ (row % 8)) * 8 + column % 8, 4);
            }
    }
    float early = 0;
    if (bug != ProductBug::no_fence) wgmma_fence();
#pragma unroll
    for (unsigned k = 0; k < depth / 16; ++k) {
        if (bug == ProductBug::one_warp_less && warp == 2 && k == 3) break;
        if constexpr (a_in_registers)
            wgmma<b_transposed>(d, registers[k], operand<span>(b, n, b_transposed, k), k > 0);
        else
            wgmma<a_transposed, b_transposed>(d, operand<span>(a, 64, a_transposed, k),
                                              operand<span>(b, n, b_transposed, k), k > 0);
        if (bug == ProductBug::waits_for_one_too_few) wgmma_commit();
    }
    if (bug != ProductBug::no_commit) wgmma_commit();
    if (bug == ProductBug::changes_a) registers[2][1] = 0;
    if (bug == ProductBug::reads_early) early = d[1][1];
    if (bug != ProductBug::no_wait) wgmma_wait<bug == ProductBug::waits_for_one_too_few ? 2 : 0>();
#pragma unroll
    for (unsigned i = 0; i < n / 8; ++i)
#pragma unroll
        for (unsigned e = 0; e < 4; ++e) out[(t * n / 8 + i) * 4 + e] = d[i][e] + early;
}

// The map for `lines` rows of A, or columns of B, of 64 elements, which lie as rows, or transposed as columns.
template <unsigned span>
CUtensorMap product_map(const __nv_bfloat16* data, int lines, bool transposed) {
    const std::int64_t columns = transposed ? lines : depth, rows = transposed ? depth : lines;
    return tensor_map(data, {columns, rows}, {columns}, {(span ? span : 16) / 2, static_cast<unsigned>(rows)},
                      map_swizzle_of<span>);
}

}  // namespace keel::KEEL_DEVICE
