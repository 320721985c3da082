// The suite on threads of one process.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "comm/threads.h"
#include "tests/comm/expect_failure.h"

namespace keel {
namespace {

using comm_suite::Case;
using comm_suite::FailureCase;

std::string name_of(const testing::TestParamInfo<Case>& info) { return info.param.name; }
std::string name_of_failure(const testing::TestParamInfo<FailureCase>& info) { return info.param.name; }

class Threads : public testing::TestWithParam<Case> {};
TEST_P(Threads, OneToEightRanks) {
    for (int ranks = 1; ranks <= 8; ++ranks) run_threads(ranks, {.deadline_s = 30}, GetParam().body);
}
INSTANTIATE_TEST_SUITE_P(Suite, Threads, testing::ValuesIn(comm_suite::cases()), name_of);

class ThreadsFail : public testing::TestWithParam<FailureCase> {};
TEST_P(ThreadsFail, EveryRankSaysWhyAndNobodyHangs) {
    const FailureCase& failure = GetParam();
    comm_suite::expect_failure(failure, [&](const std::function<void(World&)>& body) {
        run_threads(comm_suite::failure_ranks, {.deadline_s = failure.deadline_s}, body);
    });
}
INSTANTIATE_TEST_SUITE_P(Suite, ThreadsFail, testing::ValuesIn(comm_suite::failure_cases()), name_of_failure);

// Each rank sums into memory of its own that dies with it; under a sanitizer a peer that still read it would be seen.
TEST(ThreadsFail, RanksThatDieAtRandomCollectivesLeaveNobodyHanging) {
    for (int trial = 0; trial < 60; ++trial) {
        const int ranks = 2 + trial % 4, victim = trial % ranks, when = trial * 7 % 23;
        const auto body = [&](World& world) {
            Stream stream(1, 64, 64);
            const auto all = world.everyone();  // dies after the memory: what is under way is taken back by its Ticket
            std::vector<float> x(static_cast<std::size_t>(ranks * 300)), y(x.size()), z(x.size());
            const View<float> whole(x.data(), {ranks * 300}), other(y.data(), {ranks * 300}),
                third(z.data(), {ranks * 300});
            const int next = (world.rank() + 1) % ranks, last = (world.rank() + ranks - 1) % ranks;
            for (int i = 0; i < 1000; ++i) {
                const auto die = [&](int at) {
                    if (world.rank() == victim && i * 4 + at == when) fail("killed at ", when);
                };
                die(0);
                all->all_reduce(stream, whole);
                die(1);
                Ticket ticket = all->send(stream, other, next, 0);
                die(2);
                all->receive(stream, third, last, 0);
                all->wait(stream, ticket);
                die(3);
                all->all_gather(stream, other, whole.rows(0, 300));
            }
        };
        try {
            run_threads(ranks, {.deadline_s = 30}, body);
            ADD_FAILURE() << "it went well";
        } catch (const Error& e) {
            EXPECT_EQ(std::string(e.what()), concat("rank ", victim, ": killed at ", when));
        }
    }
}

// Its memory may be gone by then.
TEST(ThreadsFail, ATicketThatDiesUnwaitedTakesItsMessageBack) {
    try {
        run_threads(2, {.deadline_s = 1}, [](World& world) {
            const auto g = world.everyone("pp");
            Stream stream(1, 64, 64);
            float x[4] = {};
            if (world.rank() == 0) {
                try {
                    const Ticket ticket = g->send(stream, View<float>(x, {4}), 1, 0);
                    fail("before it was waited for");
                } catch (const Error&) {
                }
            }
            g->barrier();
            if (world.rank() == 1) g->receive(stream, View<float>(x, {4}), 0, 0);
        });
        ADD_FAILURE() << "it was received";
    } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find("receive of 16 bytes from rank 0"), std::string::npos) << e.what();
    }
}

// A meeting that one rank has left is broken for all, even if the last ones still come: the first one's memory is gone.
TEST(ThreadsFail, ACollectiveThatOneRankHasLeftCompletesNowhere) {
    std::atomic<int> failed{0};
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_THROW(run_threads(3, {.deadline_s = 30}, [&](World& world) {
        const auto g = world.everyone();
        Stream stream(1, 64, 64);
        std::vector<float> x(1000);
        if (world.rank() == 2) {
            g->abort("for the test");
            while (failed < 2 && std::chrono::steady_clock::now() - begin < std::chrono::seconds(5))
                std::this_thread::yield();
        }
        try {
            g->all_reduce(stream, View<float>(x.data(), {1000}));
        } catch (const Error&) {
            ++failed;
            throw;
        }
    }), Error);
    EXPECT_EQ(failed, 3);
}

TEST(ThreadsWorld, SaysWhereItsRanksAre) {
    std::atomic<int> seen{0};
    run_threads(3, {}, [&](World& world) {
        EXPECT_EQ(world.size(), 3);
        EXPECT_STREQ(world.transport(), "threads");
        EXPECT_EQ(world.local_rank(), world.rank());
        EXPECT_EQ(world.local_size(), 3);
        EXPECT_FALSE(world.host().empty());
        seen += 1 << world.rank();
    });
    EXPECT_EQ(seen, 7);
    run_threads(1, {}, [&](World& world) { EXPECT_STREQ(world.transport(), "solo"); });
}

TEST(ThreadsWorld, RefusesNoRanksAndNoTime) {
    const auto nothing = [](World&) {};
    EXPECT_THROW(run_threads(0, {}, nothing), Error);
    EXPECT_THROW(run_threads(2000, {}, nothing), Error);
    EXPECT_THROW(run_threads(2, {.deadline_s = 0}, nothing), Error);
}

TEST(ThreadsWorld, TheCauseIsToldEvenIfAConsequenceCameFirst) {
    try {
        run_threads(2, {.deadline_s = 30}, [](World& world) {
            const auto g = world.everyone();
            if (world.rank() == 0) throw Error("somebody left", std::source_location::current(), ExitCode::peer);
            try {
                g->barrier();
            } catch (const Error&) {
                fail("the disk is full");
            }
        });
        ADD_FAILURE();
    } catch (const Error& e) {
        EXPECT_STREQ(e.what(), "rank 1: the disk is full");
        EXPECT_EQ(e.code(), ExitCode::failure);
    }
}

// What goes wrong elsewhere once a rank has said that it leaves may come of that, whatever it looks like.
TEST(ThreadsWorld, TheFirstToSayThatItLeavesIsTheCause) {
    std::atomic<bool> other_fell{false};
    try {
        run_threads(2, {.deadline_s = 30}, [&](World& world) {
            const auto g = world.everyone();
            if (world.rank() == 0) {
                const struct Fallen {
                    std::atomic<bool>& fell;
                    ~Fallen() { fell = true; }
                } fallen{other_fell};
                while (!world.aborted()) std::this_thread::yield();
                EXPECT_EQ(world.departure(), "rank 1 left: the disk is full");
                fail("nonsense arrived");
            }
            world.abort("the disk is full");
            while (!other_fell) std::this_thread::yield();
            fail("the disk is full");
        });
        ADD_FAILURE();
    } catch (const Error& e) {
        EXPECT_STREQ(e.what(), "rank 1: the disk is full");
    }
}

TEST(ThreadsWorld, ASingleRanksErrorIsItsOwn) {
    try {
        run_threads(1, {}, [](World&) { fail("just this"); });
        ADD_FAILURE();
    } catch (const Error& e) {
        EXPECT_STREQ(e.what(), "just this");
    }
}

}  // namespace
}  // namespace keel
