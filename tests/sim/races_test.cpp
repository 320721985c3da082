// Seeded races: each shows as outputs that depend on the schedule, its fixed twin gives one output and no finding.
#include "tests/sim/sweep_kernel.h"

namespace keel::on_cudasim {
namespace {

using sim::Kind;

// ---- a missing __syncthreads, between a write and another thread's read
// ------------------------------------------------

template <bool fixed>
__global__ void reverse(float* x) {
    KEEL_SHARED(float, tile, [128]);
    const unsigned i = threadIdx.x;
    tile[i] = x[i];
    if (fixed) __syncthreads();
    x[i] = tile[127 - i];
}
TEST(Races, AMissingBarrierBeforeAReadIsSeen) {
    EXPECT_EQ(sweep_kernel({.threads = 128}, counting(128), reverse<true>).text(), "");
    const auto result = sweep_kernel({.threads = 128}, counting(128), reverse<false>);
    EXPECT_TRUE(result.has(Kind::nondeterminism));
    EXPECT_GE(result.distinct, 4);  // two directions times two poisons, at least
}

// ---- a missing __syncthreads at the end of a loop: the next round overwrites what a slow thread has not read
// ------------

template <bool fixed>
__global__ void rotate(float* x) {
    KEEL_SHARED(float, tile, [64]);
    const unsigned i = threadIdx.x;
    float v = x[i];
    for (unsigned round = 0; round < 3; ++round) {
        tile[i] = v;
        __syncthreads();
        v = tile[(i + 1) % 64] + 1;
        if (fixed) __syncthreads();
    }
    x[i] = v;
}
TEST(Races, AMissingBarrierBeforeTheNextWriteIsSeen) {
    EXPECT_EQ(sweep_kernel({.threads = 64}, counting(64), rotate<true>).text(), "");
    EXPECT_TRUE(sweep_kernel({.threads = 64}, counting(64), rotate<false>).has(Kind::nondeterminism));
}

// ---- a missing __syncwarp, which lockstep used to hide
// -------------------------------------------------------------------

template <bool fixed>
__global__ void swap_neighbours(float* x) {
    KEEL_SHARED(float, tile, [32]);
    const unsigned i = threadIdx.x;
    tile[i] = x[i];
    if (fixed) __syncwarp();
    x[i] = tile[i ^ 1u];
}
TEST(Races, AMissingSyncwarpIsSeen) {
    EXPECT_EQ(sweep_kernel({}, counting(32), swap_neighbours<true>).text(), "");
    EXPECT_TRUE(sweep_kernel({}, counting(32), swap_neighbours<false>).has(Kind::nondeterminism));
}

// ---- blocks that depend on each other's order
// -----------------------------------------------------------------------------

template <bool fixed>
__global__ void pass_on(float* x) {
    const unsigned i = blockIdx.x;
    if (threadIdx.x == 0) x[i] = fixed ? static_cast<float>(i) : (i == 0 ? 1 : x[i - 1] + 1);
}
TEST(Races, ABlockThatReadsWhatAnotherWritesIsSeen) {
    EXPECT_EQ(sweep_kernel({.blocks = 8}, counting(8), pass_on<true>).text(), "");
    EXPECT_TRUE(sweep_kernel({.blocks = 8}, counting(8), pass_on<false>).has(Kind::nondeterminism));
}

// ---- sums in no fixed order
// -------------------------------------------------------------------------------------------------

template <bool fixed>
__global__ void sum_up(float* x) {
    const unsigned i = threadIdx.x;
    const float v = 1.0f / static_cast<float>(i * i + 1);
    if (fixed) {
        const float total = warp_sum(v);
        if (i == 0) x[0] += total;
    } else {
        atomicAdd(x, v);
    }
}
TEST(Races, AtomicSumsOfFloatsAreNotTheSameBits) {
    EXPECT_EQ(sweep_kernel({}, {0.0f}, sum_up<true>).text(), "");
    EXPECT_TRUE(sweep_kernel({}, {0.0f}, sum_up<false>).has(Kind::nondeterminism));
}

// ---- memory that nobody wrote
// -----------------------------------------------------------------------------------------------

// fmaxf(NaN, x) is x: the NaN alone would not be noticed.
template <bool fixed>
__global__ void largest(float* x) {
    KEEL_SHARED(float, best, [33]);
    const unsigned i = threadIdx.x;
    best[i] = x[i];
    if (fixed && i == 0) best[32] = 0;
    __syncthreads();
    float m = 0;
    for (unsigned k = 0; k < 33; ++k) m = fmaxf(m, best[k]);
    x[i] = m;
}
TEST(Races, SharedMemoryThatNobodyWroteIsSeenThroughAMaximum) {
    EXPECT_EQ(sweep_kernel({}, counting(32), largest<true>).text(), "");
    EXPECT_TRUE(sweep_kernel({}, counting(32), largest<false>).has(Kind::nondeterminism));
}

TEST(Races, GlobalMemoryThatNobodyWroteIsSeen) {
    const auto result = sim::sweep({}, [](sim::Outputs& outputs) {
        float host[4];
        float* x = nullptr;
        cudaMalloc(&x, sizeof host);
        cudaMemcpy(host, x, sizeof host, cudaMemcpyDeviceToHost);
        cudaFree(x);
        outputs.add("x", host, sizeof host);
    });
    EXPECT_TRUE(result.has(Kind::nondeterminism));
    const auto written = sim::sweep({}, [](sim::Outputs& outputs) {
        float host[4];
        float* x = nullptr;
        cudaMalloc(&x, sizeof host);
        cudaMemset(x, 0, sizeof host);
        cudaMemcpy(host, x, sizeof host, cudaMemcpyDeviceToHost);
        cudaFree(x);
        outputs.add("x", host, sizeof host);
    });
    EXPECT_EQ(written.text(), "");
}

// ---- cp.async
// -----------------------------------------------------------------------------------------------------------------

enum class Async { right, no_wait, wait_for_one_too_few, no_barrier, overwrites_too_early };
template <Async bug>
__global__ void through_shared(float* x) {
    KEEL_SHARED(float, tile, [2][128]);
    const unsigned i = threadIdx.x, n = 128;
    cp_async_16(&tile[0][4 * i], x + 4 * i);
    cp_async_commit();
    float sum[4] = {};
    for (unsigned round = 0; round < 3; ++round) {
        const unsigned now = round % 2, next = (round + 1) % 2;
        if (bug == Async::overwrites_too_early)
            cp_async_16(&tile[now][4 * i], x + (round + 1) * n + 4 * i);
        else
            cp_async_16(&tile[next][4 * i], x + (round + 1) * n + 4 * i);
        cp_async_commit();
        if (bug != Async::no_wait) cp_async_wait<bug == Async::wait_for_one_too_few ? 2 : 1>();
        if (bug != Async::no_barrier) __syncthreads();
        for (unsigned k = 0; k < 4; ++k) sum[k] += tile[now][n - 1 - 4 * i - k];
        if (bug != Async::no_barrier) __syncthreads();
    }
    if (bug != Async::no_wait) cp_async_wait<0>();
    __syncthreads();
    for (unsigned k = 0; k < 4; ++k) x[4 * i + k] = sum[k];
}
TEST(Races, AsynchronousCopiesMustBeWaitedFor) {
    const auto run = [](void (*kernel)(float*)) { return sweep_kernel({}, counting(512), kernel); };
    EXPECT_EQ(run(through_shared<Async::right>).text(), "");
    const auto no_wait = run(through_shared<Async::no_wait>);
    EXPECT_TRUE(no_wait.has(Kind::nondeterminism));
    EXPECT_TRUE(no_wait.says(Kind::missing_wait, {"asynchronous copies", "races_test.cpp"})) << no_wait.text();
    EXPECT_TRUE(run(through_shared<Async::wait_for_one_too_few>).has(Kind::nondeterminism));
    EXPECT_TRUE(run(through_shared<Async::no_barrier>).has(Kind::nondeterminism));
    EXPECT_TRUE(run(through_shared<Async::overwrites_too_early>).has(Kind::nondeterminism));
}

// What a race without a wait in between looks like: nothing. The thread sanitizer sees it; this test says that sweep
// does not.
__global__ void count_without_atomics(float* x) { x[0] += 1; }
TEST(Races, AnUpdateWithoutAWaitInsideIsNotSeenBySchedulesAlone) {
    EXPECT_TRUE(sweep_kernel({.threads = 64}, {0.0f}, count_without_atomics).clean());
}

}  // namespace
}  // namespace keel::on_cudasim
