// Products of a warpgroup: every arrangement of the matrices in shared memory against plain loops, brought there by
// boxes of tensors with the same swizzle; seeded mistakes with their silent twins.
#include "kernels/cudasim/counters.h"
#include "tests/sim/product_kernel.cuh"
#include "tests/sim/sweep_kernel.h"

namespace keel::on_cudasim {
namespace {

using sim::Kind;

using Bug = ProductBug;

int a_value(int i, int k) { return (i * 5 + k * 3) % 17 - 8; }
int b_value(int k, int j) { return (k * 7 + j * 11) % 13 - 6; }

// A of 64 x depth and B of depth x n, each as they are (what is summed over lies together) or transposed.
template <int n, unsigned span, bool a_transposed, bool b_transposed, bool a_in_registers = false, Bug bug = Bug::none>
sim::SweepResult run(std::vector<float>* d = nullptr) {
    std::vector<__nv_bfloat16> a(64 * depth), b(static_cast<std::size_t>(n * depth));
    for (int i = 0; i < 64; ++i)
        for (int k = 0; k < depth; ++k)
            a[static_cast<std::size_t>(a_transposed ? k * 64 + i : i * depth + k)] =
                __nv_bfloat16(static_cast<float>(a_value(i, k)));
    for (int j = 0; j < n; ++j)
        for (int k = 0; k < depth; ++k)
            b[static_cast<std::size_t>(b_transposed ? k * n + j : j * depth + k)] =
                __nv_bfloat16(static_cast<float>(b_value(k, j)));
    return sim::sweep({}, [&](sim::Outputs& outputs) {
        __nv_bfloat16 *on_a = nullptr, *on_b = nullptr;
        float* out = nullptr;
        cudaMalloc(&on_a, a.size() * 2), cudaMalloc(&on_b, b.size() * 2), cudaMalloc(&out, 64 * n * 4);
        cudaMemcpy(on_a, a.data(), a.size() * 2, cudaMemcpyHostToDevice);
        cudaMemcpy(on_b, b.data(), b.size() * 2, cudaMemcpyHostToDevice);
        cudaLaunchConfig_t config{};
        config.blockDim = 128;
        config.dynamicSmemBytes = (64 + n) * depth * 2;
        cudaLaunchKernelEx(&config, product<n, span, a_transposed, b_transposed, a_in_registers, bug>, out,
                           product_map<span>(on_a, 64, a_transposed), product_map<span>(on_b, n, b_transposed));
        std::vector<float> got(64 * n);
        cudaMemcpy(got.data(), out, got.size() * 4, cudaMemcpyDeviceToHost);
        cudaFree(on_a), cudaFree(on_b), cudaFree(out);
        outputs.add("d", got.data(), got.size() * 4);
        if (d) *d = got;
    });
}

template <int n, unsigned span, bool a_transposed, bool b_transposed, bool a_in_registers = false>
void is_the_product() {
    SCOPED_TRACE(concat("n ", n, ", span ", span, a_transposed, b_transposed, a_in_registers));
    std::vector<float> d;
    sim::take_counters();
    EXPECT_EQ((run<n, span, a_transposed, b_transposed, a_in_registers>(&d).text()), "");
    EXPECT_EQ(sim::take_counters().wgmma, 4u * 24);  // on each schedule
    for (int t = 0; t < 128; ++t)
        for (int i = 0; i < n / 2; ++i) {
            // The ISA's map of D: warp, then as in m16n8k16, eight columns after the other.
            const int row = t / 32 * 16 + t % 32 / 4 + i % 4 / 2 * 8, column = i / 4 * 8 + t % 4 * 2 + i % 2;
            int want = 0;
            for (int k = 0; k < depth; ++k) want += a_value(row, k) * b_value(k, column);
            ASSERT_EQ(d[static_cast<std::size_t>(t * n / 2 + i)], static_cast<float>(want)) << row << " " << column;
        }
}

TEST(Wgmma, MultipliesTheMatricesThatItsDescriptorsDescribe) {
    is_the_product<64, 128, false, false>();
    is_the_product<128, 128, false, false>();
    is_the_product<128, 64, false, false>();
    is_the_product<64, 32, false, false>();
    is_the_product<64, 0, false, false>();
}
TEST(Wgmma, MultipliesTransposedMatrices) {
    is_the_product<128, 128, false, true>();
    is_the_product<64, 128, true, true>();
    is_the_product<128, 64, true, true>();
    is_the_product<64, 32, true, false>();
    is_the_product<64, 0, true, true>();
}
TEST(Wgmma, TakesAFromRegisters) {
    is_the_product<64, 128, false, false, true>();
    is_the_product<128, 128, false, true, true>();
}

template <Bug bug>
sim::SweepResult with() {
    return run<64, 128, false, true, true, bug>();
}
TEST(Wgmma, ProductsMustBeWaitedFor) {
    const auto result = with<Bug::no_wait>();
    EXPECT_TRUE(result.has(Kind::nondeterminism)) << result.text();
    EXPECT_TRUE(result.says(Kind::missing_wait, {"warp 0 of block 0", "4 products of wgmma", "wgmma_test.cpp"}))
        << result.text();
    EXPECT_TRUE(with<Bug::waits_for_one_too_few>().has(Kind::nondeterminism));
}
TEST(Wgmma, ProductsOfNoGroupAreNotWaitedFor) {
    const auto result = with<Bug::no_commit>();
    EXPECT_TRUE(result.has(Kind::nondeterminism) && result.has(Kind::missing_wait)) << result.text();
}
TEST(Wgmma, AccumulatorsHoldNothingBeforeTheWait) { EXPECT_TRUE(with<Bug::reads_early>().has(Kind::nondeterminism)); }
TEST(Wgmma, RegistersOfAMayNotChangeBeforeTheWait) { EXPECT_TRUE(with<Bug::changes_a>().has(Kind::nondeterminism)); }
TEST(Wgmma, RegistersAreSeenAfterAFenceOnly) {
    EXPECT_TRUE(with<Bug::no_fence>().says(Kind::missing_fence, {"wgmma.fence", "product_kernel.cuh"}));
}
TEST(Wgmma, AWarpThatIssuesFewerThanItsWarpgroupIsNamed) {
    const auto result = with<Bug::one_warp_less>();
    EXPECT_TRUE(result.says(Kind::divergence, {"warp 2 issued 3 wgmma", "warp 0 of its warpgroup 4"})) << result.text();
}

// ---- operands that threads wrote -----------------------------------------------------------------------------------

template <bool fixed>
__global__ void written_by_threads(float* x) {
    KEEL_DYNAMIC_SHARED(__nv_bfloat16, a);
    for (unsigned i = threadIdx.x; i < 2 * 64 * 64; i += 128) a[i] = __nv_bfloat16(static_cast<float>(i % 7));
    if (fixed) fence_async();
    __syncthreads();
    float d[8][4];
    wgmma_fence();
    wgmma<false, false>(d, shared_matrix(a, 0, 1024, Swizzle::bytes_128),
                        shared_matrix(a + 64 * 64, 0, 1024, Swizzle::bytes_128), false);
    wgmma_commit();
    wgmma_wait<0>();
    x[threadIdx.x] = d[0][0];
}
TEST(Wgmma, WhatThreadsWroteIsSeenAfterAFenceOfTheProxyOnly) {
    const Grid grid{.threads = 128, .shared_bytes = 2 * 64 * 64 * 2};
    EXPECT_EQ(sweep_kernel(grid, counting(128), written_by_threads<true>).text(), "");
    EXPECT_TRUE(sweep_kernel(grid, counting(128), written_by_threads<false>)
                    .says(Kind::missing_fence, {"fence.proxy.async", "wgmma_test.cpp"}));
}

// A stage that is given back before its product is over: the next box may land in it.
template <bool fixed>
__global__ void released_early(float* x, CUtensorMap map) {
    KEEL_DYNAMIC_SHARED(__nv_bfloat16, tile);
    KEEL_SHARED(std::uint64_t, full, [2]);
    KEEL_SHARED(std::uint64_t, empty, [1]);
    if (threadIdx.x == 0) {
        mbarrier_init(&full[0], 1), mbarrier_init(&full[1], 1), mbarrier_init(empty, 128);
        fence_mbarrier_init();
    }
    __syncthreads();
    if (threadIdx.x == 128) {
        mbarrier_arrive_expect(&full[0], 64 * 64 * 2);
        load_box(tile, map, &full[0], 0, 0);
        mbarrier_wait(empty, 0);
        mbarrier_arrive_expect(&full[1], 64 * 64 * 2);
        load_box(tile, map, &full[1], 0, 64);
        mbarrier_wait(&full[1], 0);
    } else if (threadIdx.x < 128) {
        mbarrier_wait(&full[0], 0);
        float d[8][4];
        const std::uint64_t both = shared_matrix(tile, 0, 1024, Swizzle::bytes_128);
        wgmma_fence();
        wgmma<false, false>(d, both, both, false);
        wgmma_commit();
        if (!fixed) mbarrier_arrive(empty);
        __nanosleep(10);
        wgmma_wait<0>();
        if (fixed) mbarrier_arrive(empty);
        x[threadIdx.x] = d[0][0];
    }
}
TEST(Wgmma, AStageMayBeGivenBackOnlyAfterTheWait) {
    const auto go = [](void (*kernel)(float*, CUtensorMap)) {
        return sim::sweep({}, [&](sim::Outputs& outputs) {
            std::vector<__nv_bfloat16> values(128 * 64);
            for (std::size_t i = 0; i < values.size(); ++i) values[i] = __nv_bfloat16(static_cast<float>(i / 4096 + 1));
            __nv_bfloat16* from = nullptr;
            float *x = nullptr, host[128];
            cudaMalloc(&from, values.size() * 2), cudaMalloc(&x, sizeof host);
            cudaMemcpy(from, values.data(), values.size() * 2, cudaMemcpyHostToDevice);
            cudaLaunchConfig_t config{};
            config.blockDim = 160;
            config.dynamicSmemBytes = 64 * 64 * 2;
            cudaLaunchKernelEx(&config, kernel, x,
                               tensor_map(from, {64, 128}, {64}, {64u, 64u}, CU_TENSOR_MAP_SWIZZLE_128B));
            cudaMemcpy(host, x, sizeof host, cudaMemcpyDeviceToHost);
            cudaFree(from), cudaFree(x);
            outputs.add("x", host, sizeof host);
        });
    };
    EXPECT_EQ(go(released_early<true>).text(), "");
    EXPECT_TRUE(go(released_early<false>).has(Kind::nondeterminism));
}

// ---- descriptors and registers that a GPU has not ------------------------------------------------------------------

enum class Odd { between_rows, outside, lanes_differ };
template <Odd odd>
__global__ void odd_matrix(float* x) {
    KEEL_DYNAMIC_SHARED(__nv_bfloat16, a);
    float d[8][4];
    const unsigned skip = odd == Odd::between_rows ? 64 : odd == Odd::outside ? 64 * 64 : threadIdx.x % 2 * 16;
    wgmma_fence();
    wgmma<false, false>(d, shared_matrix(a + skip, 0, 1024, Swizzle::bytes_128),
                        shared_matrix(a, 0, 1024, Swizzle::bytes_128), false);
    wgmma_commit();
    wgmma_wait<0>();
    x[threadIdx.x] = d[0][0];
}
TEST(Wgmma, MatricesThatAreNoneAreNamed) {
    const Grid grid{.threads = 128, .shared_bytes = 64 * 64 * 2};
    const auto go = [&](void (*kernel)(float*)) { return sweep_kernel(grid, counting(128), kernel); };
    EXPECT_TRUE(go(odd_matrix<Odd::between_rows>).says(Kind::misaligned, {"within a group of rows"}));
    EXPECT_TRUE(go(odd_matrix<Odd::outside>).says(Kind::out_of_bounds, {"reads outside of shared memory"}));
    EXPECT_TRUE(go(odd_matrix<Odd::lanes_differ>).says(Kind::warp_mismatch, {"bring different matrices"}));
}

template <int producer, int consumer>
__global__ void hand_over(float* x) {
    if (threadIdx.x < 128)
        give_up_registers<producer>();
    else
        take_registers<consumer>();
    x[threadIdx.x] = 1;
}
TEST(Wgmma, RegistersThatAMultiprocessorHasNotAreNamed) {
    const auto go = [](void (*kernel)(float*)) { return sweep_kernel({.threads = 512}, counting(512), kernel); };
    EXPECT_EQ(go(hand_over<32, 160>).text(), "");
    EXPECT_TRUE(go(hand_over<24, 240>).says(Kind::bad_launch, {"95232 registers", "65536"}))
        << go(hand_over<24, 240>).text();
    EXPECT_TRUE(go(hand_over<20, 160>).says(Kind::bad_launch, {"20 registers", "multiple of 8"}));
}

}  // namespace
}  // namespace keel::on_cudasim
