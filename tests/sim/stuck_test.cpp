// Seeded mistakes in waiting: barriers reached in different places or not by all, deadlocks, warp functions whose lanes
// disagree. Findings name the kind, the lines and the threads; the fixed twins are silent.
#include "tests/sim/sweep_kernel.h"

namespace keel::on_cudasim {
namespace {

using sim::Kind;

// ---- barriers
// ---------------------------------------------------------------------------------------------------------------

std::string then_line, else_line;
template <bool fixed>
__global__ void two_barriers(float* x) {
    const unsigned i = threadIdx.x;
    if (!fixed && i < 16) {
        then_line = next_line();
        __syncthreads();
    } else {
        else_line = next_line();
        __syncthreads();
    }
    x[i] = 1;
}
TEST(Stuck, OneBarrierReachedFromTwoLinesIsDivergence) {
    EXPECT_EQ(sweep_kernel({}, counting(32), two_barriers<true>).text(), "");
    const auto result = sweep_kernel({}, counting(32), two_barriers<false>);
    EXPECT_TRUE(result.says(Kind::divergence, {"block 0", "threads 0-15", then_line, "threads 16-31", else_line}))
        << result.text();
}

std::string barrier_line;
template <bool fixed>
__global__ void not_by_all(float* x) {
    const unsigned i = threadIdx.x;
    barrier_line = next_line();
    if (fixed || i >= 40) __syncthreads();
    x[i] = 1;
}
TEST(Stuck, ABarrierThatSomeThreadsDoNotPassIsCounted) {
    EXPECT_EQ(sweep_kernel({.threads = 64}, counting(64), not_by_all<true>).text(), "");
    const auto result = sweep_kernel({.threads = 64}, counting(64), not_by_all<false>);
    EXPECT_TRUE(result.says(Kind::barrier_count, {"threads 0-39", "0 times", "others 1 times", barrier_line}))
        << result.text();
}

// A guard that lets threads leave early is legal since Volta, and can be allowed.
TEST(Stuck, ThreadsMayLeaveEarlyWhereThatIsAllowed) {
    sim::Config config;
    config.early_exit = true;
    sim::configure(config);
    EXPECT_EQ(sweep_kernel({.threads = 64}, counting(64), not_by_all<false>).text(), "");
    sim::configure({});
}

template <bool fixed>
__global__ void named(float* x) {
    const unsigned i = threadIdx.x;
    barrier_line = next_line();
    if (i < 64) barrier_sync(1, fixed ? 64 : 96);
    x[i] = 1;
}
TEST(Stuck, ANamedBarrierThatNeverFillsIsADeadlock) {
    EXPECT_EQ(sweep_kernel({.threads = 96}, counting(96), named<true>).text(), "");
    const auto result = sweep_kernel({.threads = 96}, counting(96), named<false>);
    EXPECT_TRUE(
        result.says(Kind::deadlock, {"threads 0-63 wait at barrier 1", barrier_line, "threads 64-95 have left"}))
        << result.text();
}

// Half of the block makes, the other takes: arrive counts without waiting.
template <bool fixed>
__global__ void produce(float* x) {
    KEEL_SHARED(float, tile, [32]);
    const unsigned i = threadIdx.x;
    if (i < 32) {
        tile[i] = x[i];
        if (fixed) barrier_arrive(2, 64);
    } else {
        barrier_sync(2, 64);
        x[i] = tile[63 - i];
    }
}
TEST(Stuck, AConsumerWhoseProducerNeverArrivesIsADeadlock) {
    EXPECT_EQ(sweep_kernel({.threads = 64}, counting(64), produce<true>).text(), "");
    EXPECT_TRUE(sweep_kernel({.threads = 64}, counting(64), produce<false>)
                    .says(Kind::deadlock, {"threads 32-63 wait at barrier 2"}));
}

// A thread waits in a shuffle for one that waits at the barrier.
template <bool fixed>
__global__ void crossed(float* x) {
    const unsigned i = threadIdx.x;
    float v = x[i];
    if (!fixed && i == 5) __syncthreads();
    v = warp_sum(v);
    if (fixed || i != 5) __syncthreads();
    x[i] = v;
}
TEST(Stuck, LanesThatWaitForEachOtherInDifferentThingsAreADeadlock) {
    EXPECT_EQ(sweep_kernel({}, counting(32), crossed<true>).text(), "");
    const auto result = sweep_kernel({}, counting(32), crossed<false>);
    EXPECT_TRUE(
        result.says(Kind::deadlock, {"threads 0-4, 6-31 wait in __shfl_xor_sync", "threads 5 wait at barrier 0"}))
        << result.text();
}

__global__ void spin(float* x) {
    while (x[0] == 0) __nanosleep(10);
}
TEST(Stuck, AThreadThatSpinsForNobodyIsADeadlock) {
    EXPECT_TRUE(sweep_kernel({}, {0.0f}, spin).says(Kind::deadlock, {"spins at", "stuck_test.cpp"}));
}
template <bool>
__global__ void wait_for_flag(float* x) {
    if (threadIdx.x == 0)
        x[0] = 1;
    else
        while (x[0] == 0) __nanosleep(10);
}
TEST(Stuck, AThreadThatSpinsForAnotherGoesOn) { EXPECT_EQ(sweep_kernel({}, {0.0f}, wait_for_flag<true>).text(), ""); }

// ---- warp functions
// ---------------------------------------------------------------------------------------------------------

std::string one_line, other_line;
template <bool fixed>
__global__ void masks(float* x) {
    const unsigned i = threadIdx.x;
    float v = x[i];
    if (i < 16) {
        one_line = next_line();
        v += __shfl_xor_sync(fixed ? 0x0000ffffu : 0xffffffffu, v, 1);
    } else {
        other_line = next_line();
        v -= __shfl_xor_sync(fixed ? 0xffff0000u : 0xfffffff0u, v, 1);
    }
    x[i] = v;
}
TEST(Stuck, MasksThatDisagreeAreNamedWithBothLines) {
    EXPECT_EQ(sweep_kernel({}, counting(32), masks<true>).text(), "");
    const auto result = sweep_kernel({}, counting(32), masks<false>);
    EXPECT_TRUE(result.says(Kind::warp_mismatch, {one_line, other_line, "0xffffffff", "0xfffffff0"})) << result.text();
}

template <bool fixed>
__global__ void different_functions(float* x) {
    const unsigned i = threadIdx.x;
    const bool vote = !fixed && i % 2 == 0;
    x[i] = vote ? static_cast<float>(__ballot_sync(all_lanes, 1)) : __shfl_sync(all_lanes, x[i], 0);
}
TEST(Stuck, LanesInDifferentWarpFunctionsAreNamed) {
    EXPECT_EQ(sweep_kernel({}, counting(32), different_functions<true>).text(), "");
    EXPECT_TRUE(sweep_kernel({}, counting(32), different_functions<false>)
                    .says(Kind::warp_mismatch, {"a vote", "__shfl_sync"}));
}

template <bool fixed>
__global__ void outside_of_mask(float* x) {
    const unsigned i = threadIdx.x;
    if (fixed ? i < 8 : i < 9) x[i] = __shfl_sync(0x000000ffu, x[i], 3);
}
TEST(Stuck, ALaneOutsideOfItsOwnMaskIsNamed) {
    EXPECT_EQ(sweep_kernel({}, counting(32), outside_of_mask<true>).text(), "");
    EXPECT_TRUE(
        sweep_kernel({}, counting(32), outside_of_mask<false>).says(Kind::warp_mismatch, {"thread 8", "its own lane"}));
}

template <bool fixed>
__global__ void leave_early(float* x, unsigned n) {
    const unsigned i = threadIdx.x;
    if (!fixed && i >= n) return;
    float v = i < n ? x[i] : 0;
    for (int lanes = 16; lanes > 0; lanes /= 2) v += __shfl_xor_sync(all_lanes, v, lanes);
    if (i < n) x[i] = v;
}
TEST(Stuck, AValueAskedOfALaneThatHasLeftIsNamed) {
    EXPECT_EQ(sweep_kernel({}, counting(20), leave_early<true>, 20u).text(), "");
    const auto result = sweep_kernel({}, counting(20), leave_early<false>, 20u);
    EXPECT_TRUE(result.says(Kind::inactive_lane, {"lane 4", "reads lane 20", "__shfl_xor_sync", "stuck_test.cpp"}))
        << result.text();
}

// A loop whose length depends on the lane, with a shuffle of the whole warp inside.
template <bool fixed>
__global__ void uneven_loop(float* x) {
    const unsigned i = threadIdx.x;
    float v = 0;
    for (unsigned k = 0; k < (fixed ? 3 : 2 + i % 2); ++k) v += __shfl_xor_sync(all_lanes, x[i], 1);
    __syncwarp();
    x[i] = v;
}
TEST(Stuck, AShuffleInALoopOfUnevenLengthIsNamed) {
    EXPECT_EQ(sweep_kernel({}, counting(32), uneven_loop<true>).text(), "");
    EXPECT_TRUE(sweep_kernel({}, counting(32), uneven_loop<false>)
                    .says(Kind::warp_mismatch, {"__syncwarp", "__shfl_xor_sync"}));
}

template <bool fixed>
__global__ void half_a_mma(float* x) {
    float d[4] = {};
    const std::uint32_t a[4] = {};
    if (fixed || threadIdx.x < 16) mma_bf16(d, a, 0, 0);
    x[threadIdx.x] = d[0];
}
TEST(Stuck, AnMmaWithoutItsWholeWarpIsNamed) {
    EXPECT_EQ(sweep_kernel({}, counting(32), half_a_mma<true>).text(), "");
    const auto result = sweep_kernel({}, counting(32), half_a_mma<false>);
    EXPECT_TRUE(result.says(Kind::inactive_lane, {"mma.m16n8k16", "all 32 lanes", "0xffff0000"})) << result.text();
}

}  // namespace
}  // namespace keel::on_cudasim
