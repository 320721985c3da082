// Seeded mistakes with mbarriers: each is named, or shows as outputs that depend on the schedule; the fixed twin of
// each is silent.
#include "kernels/hopper.cuh"
#include "tests/sim/sweep_kernel.h"

namespace keel::on_cudasim {
namespace {

using sim::Kind;

// ---- a ring of two stages between a warp that makes and a warp that takes ------------------------------------------

enum class Ring {
    right,
    no_full_wait,
    no_empty_wait,
    wrong_parity,
    no_release,
    half_of_the_arrivals,
    no_init,
    made_twice
};
std::string wait_line, init_line;

template <Ring bug>
__global__ void ring(float* x) {
    constexpr unsigned stages = 2, rounds = 6;
    KEEL_SHARED(float, tile, [stages][32]);
    KEEL_SHARED(std::uint64_t, full, [stages]);
    KEEL_SHARED(std::uint64_t, empty, [stages]);
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0 && bug != Ring::no_init) {
        for (unsigned s = 0; s < stages; ++s) {
            init_line = next_line();
            mbarrier_init(&full[s], bug == Ring::half_of_the_arrivals ? 64 : 32);
            mbarrier_init(&empty[s], 32);
        }
        if (bug == Ring::made_twice) mbarrier_init(&full[0], 32);
    }
    __syncthreads();
    if (warp == 0) {
        for (unsigned r = 0; r < rounds; ++r) {
            const unsigned s = r % stages;
            if (r >= stages && bug != Ring::no_empty_wait) mbarrier_wait(&empty[s], (r / stages - 1) % 2);
            tile[s][lane] = x[r * 32 + lane];
            mbarrier_arrive(&full[s]);
        }
    } else {
        float sum = 0;
        for (unsigned r = 0; r < rounds; ++r) {
            const unsigned s = r % stages;
            wait_line = next_line();
            if (bug != Ring::no_full_wait) mbarrier_wait(&full[s], bug == Ring::wrong_parity ? 1 : r / stages % 2);
            sum += tile[s][31 - lane] * static_cast<float>(r + 1);
            if (bug != Ring::no_release) mbarrier_arrive(&empty[s]);
        }
        x[lane] = sum;
    }
}
sim::SweepResult run(void (*kernel)(float*)) { return sweep_kernel({.threads = 64}, counting(192), kernel); }

TEST(Mbarrier, ARingThatWaitsForFullAndEmptyStagesIsRight) { EXPECT_EQ(run(ring<Ring::right>).text(), ""); }
TEST(Mbarrier, ATakerThatDoesNotWaitReadsWhatIsNotThereYet) {
    EXPECT_TRUE(run(ring<Ring::no_full_wait>).has(Kind::nondeterminism));
}
TEST(Mbarrier, AMakerThatDoesNotWaitOverwritesWhatIsStillRead) {
    EXPECT_TRUE(run(ring<Ring::no_empty_wait>).has(Kind::nondeterminism));
}
// Parity 1 of a new mbarrier is that of the phase before its first: the wait passes at once; two phases on it is for a
// phase that nobody completes.
TEST(Mbarrier, AWaitForTheWrongParityIsSeen) {
    const auto result = run(ring<Ring::wrong_parity>);
    EXPECT_TRUE(result.has(Kind::nondeterminism) || result.has(Kind::deadlock)) << result.text();
    EXPECT_FALSE(result.clean());
}
TEST(Mbarrier, AStageThatIsNeverReleasedIsADeadlockWithBothPlaces) {
    const auto result = run(ring<Ring::no_release>);
    EXPECT_TRUE(
        result.says(Kind::deadlock, {"threads 0-31 wait for the phase of parity 0 of the mbarrier initialised at",
                                     "mbarrier_test.cpp", "0 of 32 arrivals"}))
        << result.text();
}
TEST(Mbarrier, APhaseForMoreArrivalsThanComeIsADeadlock) {
    const auto result = run(ring<Ring::half_of_the_arrivals>);
    EXPECT_TRUE(result.says(
        Kind::deadlock, {"threads 32-63 wait for the phase of parity 0", init_line, wait_line, "32 of 64 arrivals"}))
        << result.text();
}
TEST(Mbarrier, OneThatWasNeverMadeIsNamed) {
    EXPECT_TRUE(run(ring<Ring::no_init>).says(Kind::mbarrier, {"what is no mbarrier", "mbarrier_test.cpp"}));
}
TEST(Mbarrier, OneThatIsMadeTwiceIsNamedWithBothPlaces) {
    const auto result = run(ring<Ring::made_twice>);
    EXPECT_TRUE(result.says(Kind::mbarrier, {"thread 0", "where one is already", init_line})) << result.text();
}

// ---- lanes of the warp that makes, of which one is slow -------------------------------------------------------------

template <bool every_lane_waits>
__global__ void lanes_of_a_maker(float* x) {
    constexpr unsigned stages = 2, rounds = 6;
    KEEL_SHARED(float, tile, [stages]);
    KEEL_SHARED(std::uint64_t, full, [stages]);
    KEEL_SHARED(std::uint64_t, empty, [stages]);
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0)
        for (unsigned s = 0; s < stages; ++s) mbarrier_init(&full[s], 1), mbarrier_init(&empty[s], 1);
    __syncthreads();
    float sum = 0;
    for (unsigned r = 0; r < rounds; ++r) {
        const unsigned s = r % stages;
        if (warp == 0) {
            if (every_lane_waits || lane == 0) mbarrier_wait(&empty[s], (r / stages + 1) % 2);
            if (lane == 0) tile[s] = x[r], mbarrier_arrive(&full[s]);
        } else if (lane == 0) {
            mbarrier_wait(&full[s], r / stages % 2);
            sum += tile[s] * static_cast<float>(r + 1);
            mbarrier_arrive(&empty[s]);
        }
    }
    if (warp == 1 && lane == 0) x[0] = sum;
}
TEST(Mbarrier, ALaneThatComesToAWaitWhenThePhaseAfterIsUnderWayIsADeadlock) {
    EXPECT_EQ(run(lanes_of_a_maker<false>).text(), "");
    EXPECT_TRUE(run(lanes_of_a_maker<true>).says(Kind::deadlock, {"wait for the phase of parity", "mbarrier_test.cpp"}));
}

// ---- what one thread can do wrong alone ----------------------------------------------------------------------------

enum class Alone { right, overwritten, too_many, too_many_bytes, not_invalidated, made_for_nobody, odd_address };
template <Alone bug>
__global__ void alone(float* x) {
    KEEL_SHARED(std::uint64_t, barrier, [3]);
    auto* const second =
        reinterpret_cast<std::uint64_t*>(reinterpret_cast<char*>(&barrier[1]) + (bug == Alone::odd_address ? 4 : 0));
    mbarrier_init(second, bug == Alone::made_for_nobody ? 0 : 2);
    mbarrier_arrive(second);
    if (bug == Alone::overwritten) barrier[1] = 0;
    if (bug == Alone::too_many_bytes) {
        mbarrier_expect(second, 1 << 19);
        mbarrier_expect(second, 1 << 19);
    }
    if (bug == Alone::too_many) {
        mbarrier_expect(second, 64);
        mbarrier_arrive(second);
        mbarrier_arrive(second);
    }
    mbarrier_arrive(second);
    mbarrier_wait(second, 0);
    if (bug != Alone::not_invalidated) mbarrier_invalidate(second);
    mbarrier_init(second, 1);
    mbarrier_arrive(second);
    mbarrier_wait(second, 0);
    x[0] = 1;
}
TEST(Mbarrier, MistakesOfOneThreadAreNamed) {
    const auto one = [](void (*kernel)(float*)) { return sweep_kernel({.threads = 1}, {0.0f}, kernel); };
    EXPECT_EQ(one(alone<Alone::right>).text(), "");
    EXPECT_TRUE(one(alone<Alone::overwritten>)
                    .says(Kind::mbarrier, {"8 bytes were overwritten", "thread 0 of block 0 arrives"}));
    EXPECT_TRUE(one(alone<Alone::too_many>).says(Kind::mbarrier, {"all 2 arrivals of the phase have been"}));
    EXPECT_TRUE(one(alone<Alone::too_many_bytes>).says(Kind::mbarrier, {"524288 more bytes", "more than 1048575"}));
    EXPECT_TRUE(one(alone<Alone::not_invalidated>).says(Kind::mbarrier, {"where one is already", "never invalidated"}));
    EXPECT_TRUE(one(alone<Alone::made_for_nobody>).says(Kind::mbarrier, {"for 0 arrivals"}));
    EXPECT_TRUE(one(alone<Alone::odd_address>).says(Kind::misaligned, {"no multiple of 8"}));
}

}  // namespace
}  // namespace keel::on_cudasim
