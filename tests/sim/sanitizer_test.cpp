// What the sanitizers add, in the builds that have one (docs/cudasim.md): the address sanitizer names the line of every
// access out of bounds, the thread sanitizer that of a race, on any schedule. The fixed twins are silent.
#include <type_traits>

#include "tests/sim/sweep_kernel.h"

namespace keel::on_cudasim {
namespace {

#if SIM_ASAN

template <int by>
__global__ void global_access(float* x) {
    x[threadIdx.x + by] = 1;
}
template <int by>
__global__ void static_shared(float* x) {
    KEEL_SHARED(float, tile, [32]);
    float* const t = tile;
    t[threadIdx.x + by] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = t[threadIdx.x];
}
template <int by>
__global__ void dynamic_shared(float* x) {
    KEEL_DYNAMIC_SHARED(float, tile);
    tile[threadIdx.x + by] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = tile[threadIdx.x];
}
TEST(AddressSanitizer, NamesTheLineOfAnAccessOutOfBounds) {
    EXPECT_EQ(run_once({}, counting(32), global_access<0>)[31], 1);
    EXPECT_DEATH(run_once({}, counting(32), global_access<1>),
                 "use-after-poison(.|\n)*global_access(.|\n)*sanitizer_test.cpp:[0-9]");
    EXPECT_EQ(run_once({}, counting(32), static_shared<0>)[31], 31);
    EXPECT_DEATH(run_once({}, counting(32), static_shared<1>),
                 "use-after-poison(.|\n)*static_shared(.|\n)*sanitizer_test.cpp:[0-9]");
    EXPECT_EQ(run_once({.shared_bytes = 128}, counting(32), dynamic_shared<0>)[31], 31);
    EXPECT_DEATH(run_once({.shared_bytes = 128}, counting(32), dynamic_shared<1>),
                 "use-after-poison(.|\n)*dynamic_shared(.|\n)*sanitizer_test.cpp:[0-9]");
}
template <int by>
__global__ void fixed_array(float* x) {
    KEEL_SHARED(float, tile, [4][8]);
    tile[threadIdx.x / 8][threadIdx.x % 8 + by] = 1;  // inside of the array, past its row
    x[threadIdx.x] = 1;
}
TEST(UndefinedBehaviourSanitizer, NamesAnIndexPastARowOfASharedArray) {
    EXPECT_EQ(run_once({}, counting(32), fixed_array<0>)[31], 1);
    EXPECT_DEATH(run_once({}, counting(32), fixed_array<1>),
                 "sanitizer_test.cpp:[0-9]+:[0-9]+: runtime error: index 8 out of bounds");
}

struct alignas(16) Vector {
    float at[4];
};
template <int by>
__global__ void plain_vector(float* x) {  // not by load, which looks itself
    Vector* const vectors = reinterpret_cast<Vector*>(x + by);
    vectors[threadIdx.x % 4].at[0] = 1;
}
TEST(UndefinedBehaviourSanitizer, NamesAMisalignedVector) {
    EXPECT_EQ(run_once({}, counting(32), plain_vector<0>)[0], 1);
    EXPECT_DEATH(run_once({}, counting(32), plain_vector<1>), "sanitizer_test.cpp:[0-9]+:[0-9]+: runtime error: .*misaligned address");
}

#endif
#if SIM_TSAN

// A report does not end the program; it ends with exit code 66 instead of 0.
template <class Work>
void expect_race(Work work) {
    testing::FLAGS_gtest_death_test_style = "threadsafe";
    EXPECT_EXIT(
        {
            work();
            std::exit(0);
        },
        testing::ExitedWithCode(66), "data race(.|\n)*sanitizer_test.cpp");
}

// 0 plain, 1 atomic
template <int how>
__global__ void count(float* x) {
    if (how == 0)
        x[0] += 1;
    else
        atomicAdd(x, 1.0f);
}
TEST(ThreadSanitizer, SeesAnUpdateWithoutAtomicsThatNoScheduleShows) {
    EXPECT_EQ(run_once({.threads = 64}, {0.0f}, count<1>)[0], 64);
    EXPECT_EQ(run_once({.blocks = 4, .threads = 1}, {0.0f}, count<1>)[0], 4);
    expect_race([] { run_once({.threads = 64}, {0.0f}, count<0>); });
    expect_race([] { run_once({.blocks = 4, .threads = 1}, {0.0f}, count<0>); });
}

enum class Bug { none, no_barrier, no_barrier_in_loop, no_syncwarp };
template <Bug bug>
__global__ void through_shared(float* x) {
    KEEL_SHARED(float, tile, [64]);
    const unsigned i = threadIdx.x;
    for (int round = 0; round < 2; ++round) {
        tile[i] = x[i];
        if (bug != Bug::no_barrier) __syncthreads();
        x[i] = tile[63 - i];
        if (bug != Bug::no_barrier_in_loop) __syncthreads();
    }
    const float sum = warp_sum(x[i]);  // a shuffle is no race, and orders nothing
    tile[i] = sum;
    if (bug != Bug::no_syncwarp) __syncwarp();
    x[i] = tile[i ^ 1u];
}
TEST(ThreadSanitizer, SeesMissingBarriersOnAnySchedule) {
    for (int again = 0; again < 2; ++again)
        EXPECT_EQ(run_once({.blocks = 3, .threads = 64}, counting(64), count<1>).size(), 64u);
    run_once({.threads = 64}, counting(64), through_shared<Bug::none>);
    expect_race([] { run_once({.threads = 64}, counting(64), through_shared<Bug::no_barrier>); });
    expect_race([] { run_once({.threads = 64}, counting(64), through_shared<Bug::no_barrier_in_loop>); });
    expect_race([] { run_once({.threads = 64}, counting(64), through_shared<Bug::no_syncwarp>); });
}

// The two halves of a warp each wait for themselves.
template <bool fixed>
__global__ void halves(float* x) {
    const unsigned i = threadIdx.x, half = i / 16;
    x[i] = 1;
    __syncwarp(fixed ? all_lanes : half ? 0xffff0000u : 0x0000ffffu);
    x[32 + i] = x[(i + 16) % 32];
}
TEST(ThreadSanitizer, SeesWhatTheWaitOfAHalfWarpDoesNotOrder) {
    run_once({}, counting(64), halves<true>);
    expect_race([] { run_once({}, counting(64), halves<false>); });
}

// A lane that is at the next __syncwarp already has ordered nothing of what it did since for lanes that leave the last one.
template <bool fixed>
__global__ void ahead(float* x) {
    const unsigned i = threadIdx.x;
    __syncwarp();
    if (i == 0) x[0] = 1;
    if (fixed) __syncwarp();
    if (i == 31) x[1] = x[0];
    __syncwarp();
}
TEST(ThreadSanitizer, SeesARaceWithALaneThatIsAtTheNextWaitAlready) {
    run_once({}, counting(32), ahead<true>);
    expect_race([] { run_once({}, counting(32), ahead<false>); });
}

// Behind a barrier of each, too: of neighbours, and of the first and the last of three.
enum class Meet { nobody, neighbours, ends };
template <Meet who>
__global__ void blocks_behind_a_barrier(float* x) {
    __syncthreads();
    const bool writes = who == Meet::neighbours ? blockIdx.x < 2 : blockIdx.x % 2 == 0;
    if (threadIdx.x == 0 && writes) x[who == Meet::nobody ? blockIdx.x : 0] += 1;
    __syncthreads();
}
TEST(ThreadSanitizer, SeesARaceOfTwoBlocksBehindTheirBarriers) {
    run_once({.blocks = 3, .threads = 64}, counting(64), blocks_behind_a_barrier<Meet::nobody>);
    expect_race([] { run_once({.blocks = 3, .threads = 64}, counting(64), blocks_behind_a_barrier<Meet::neighbours>); });
    expect_race([] { run_once({.blocks = 3, .threads = 64}, counting(64), blocks_behind_a_barrier<Meet::ends>); });
}

// Blocks have shared memory of their own, one after the other in the same place: no race.
__global__ void shared_per_block(float* x) {
    KEEL_SHARED(float, tile, [32]);
    tile[threadIdx.x] = x[blockIdx.x * 32 + threadIdx.x];
    __syncthreads();
    x[blockIdx.x * 32 + threadIdx.x] = tile[31 - threadIdx.x];
}
TEST(ThreadSanitizer, IsSilentOnBlocksThatShareNothing) {
    EXPECT_EQ(run_once({.blocks = 5}, counting(160), shared_per_block)[128], 159);
}

#endif

}  // namespace
}  // namespace keel::on_cudasim
