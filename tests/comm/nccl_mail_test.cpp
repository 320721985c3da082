// Messages over NCCL, beyond the suite: their turn on a stream, the memory they lie in, and what is left of them.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "kernels/cudasim/counters.h"
#include "kernels/cudasim/streams.h"
#include "tests/comm/on_gpus.h"

namespace keel {
namespace {

using comm_suite::Numbers;
using comm_suite::require;
using comm_suite::Worker;
using nccl_test::deferred;
using nccl_test::error_of;
using nccl_test::immediate;
using nccl_test::OnGpus;
using nccl_test::staged;
using nccl_test::Way;

template <class T>
View<T> view(Numbers<T>& x) {
    return View<T>(x.data(), {static_cast<std::int64_t>(x.size())});
}

class NcclMail : public testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(, NcclMail, testing::Values(deferred, staged), [](const auto& of) { return of.param.name; });

// Work that is queued before a collective or a message comes before it, and what is queued behind comes behind: the next
// message, too.
TEST_P(NcclMail, TakesItsTurnOnTheStream) {
    const OnGpus gpus(GetParam());
    gpus.run(3, 30, [](World& world) {
        const auto g = world.everyone();
        const Worker worker(1);
        Stream& stream = worker;
        const auto queue = static_cast<sim::cuda::cudaStream_t>(stream.native());
        Numbers<std::int64_t> x(600), own(600), from_last(600), from_next(600);
        const int self = g->rank(), next = (self + 1) % 3, last = (self + 2) % 3;
        constexpr std::int64_t every_byte = 0x0101010101010101;
        for (int round = 0; round < 4; ++round) {
            sim::cuda::cudaMemsetAsync(x.data(), self + round, 600 * 8, queue);
            sim::cuda::cudaMemsetAsync(own.data(), self, 600 * 8, queue);
            g->all_reduce(stream, view(x));
            Ticket sum = g->send(stream, view(x), next, 0), mine = g->send(stream, view(own), last, 0);
            g->receive(stream, view(from_last), last, 0);
            g->receive(stream, view(from_next), next, 0);
            g->wait(stream, sum);
            g->wait(stream, mine);
            for (auto* sent : {&x, &own}) sim::cuda::cudaMemsetAsync(sent->data(), 9, 600 * 8, queue);  // once they are away
            worker.synchronize();
            const std::int64_t bytes = 3 + 3 * round;  // 0 + 1 + 2 and the round thrice
            for (const std::int64_t v : from_last) require(v == bytes * every_byte, "sum is ", v);
            for (const std::int64_t v : from_next) require(v == next * every_byte, "message of rank ", next, " is ", v);
        }
    });
}

TEST_P(NcclMail, OfTheHostGoesToTheHost) {
    const OnGpus gpus(GetParam());
    gpus.run(2, 30, [](World& world) {
        const auto g = world.everyone();
        const Worker stream(1);
        const int self = g->rank();
        std::int64_t x[3] = {self, self + 10, self + 20}, y[3] = {-1, -1, -1};
        Ticket ticket = g->send(stream, View<std::int64_t>(x, {3}), 1 - self, 0);
        g->receive(stream, View<std::int64_t>(y, {3}), 1 - self, 0);
        for (int i = 0; i < 3; ++i) require(y[i] == 1 - self + 10 * i, "number ", i, " is ", y[i]);  // nobody waited for a GPU
        g->wait(stream, ticket);
    });
}

TEST_P(NcclMail, IsWaitedForUntilItIsReceived) {
    const OnGpus gpus(GetParam());
    std::atomic<bool> waited{false};
    gpus.run(2, 30, [&](World& world) {
        const auto g = world.everyone();
        const Worker stream(1);
        Numbers<float> x(1000, 1.0f);
        if (g->rank() == 0) {
            Ticket ticket = g->send(stream, view(x), 1, 0);
            g->wait(stream, ticket);
            waited = true;
        } else {
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
            require(!waited, "the wait for a message is over before anybody has received it");
            g->receive(stream, view(x), 0, 0);
        }
        stream.synchronize();
    });
}

TEST_P(NcclMail, LeavesNoEventBehindAndTakesNoMemoryTwice) {
    const OnGpus gpus(GetParam());
    const int events = sim::events();
    gpus.run(2, 30, [](World& world) {
        const auto g = world.everyone();
        const Worker stream(1);
        Numbers<float> x(1000, 1.0f), y(1000);
        for (int round = 0; round < 3; ++round) {
            if (round == 1) {
                g->barrier();
                (void)sim::take_counters();
                g->barrier();
            }
            Ticket ticket = g->send(stream, view(x), 1 - g->rank(), 0);
            g->receive(stream, view(y), 1 - g->rank(), 0);
            g->wait(stream, ticket);
            stream.synchronize();
        }
        g->barrier();
        require(sim::take_counters().allocations == 0, "memory was taken for a message of the size of the one before");
    });
    EXPECT_EQ(sim::events(), events);
}

// The receiver finds out, and its memory is as it was.
TEST(NcclMailDirect, OfOneKindOfMemoryIsNotReceivedInTheOther) {
    const OnGpus gpus(deferred);
    for (const int on_gpu : {0, 1}) {  // the rank that has it there
        const std::string error = error_of(deferred.options, 30, [&](World&, World& world) {
            const auto g = world.everyone("pp");
            const Worker stream(1);
            Numbers<float> there(4, static_cast<float>(g->rank()));
            float here[4] = {};
            std::fill_n(here, 4, static_cast<float>(g->rank()));
            const View<float> x(g->rank() == on_gpu ? there.data() : here, {4});
            if (g->rank() == 0) {
                Ticket ticket = g->send(stream, x, 1, 0);
                g->wait(stream, ticket);
                g->barrier();
            }
            try {
                g->receive(stream, x, 0, 0);
            } catch (const Error&) {
                stream.synchronize();
                require(x[0] == 1 && x[3] == 1, "memory that was refused has ", x[0]);
                throw;
            }
        });
        EXPECT_NE(error.find("receive of 16 bytes from rank 0 on channel 0: one side has it in the memory of a GPU"), std::string::npos)
            << error;
    }
}

// Rank 0 waits for something else, and never reads that its message arrived.
TEST(NcclMailDirect, ARankThatThrowsDoesNotWaitForItsReceiptsToBeRead) {
    const OnGpus gpus(immediate);  // deferred, rank 0's GPU would do nothing meanwhile
    std::string said;
    const std::string error = error_of(immediate.options, 5, [&](World&, World& world) {
        const auto g = world.everyone("pp");
        const Worker stream(1);
        Numbers<float> x(4, 1.0f);
        if (g->rank() == 1) {
            g->receive(stream, view(x), 0, 0);
            stream.synchronize();
            fail("killed");
        }
        Ticket ticket = g->send(stream, view(x), 1, 0);
        try {
            g->barrier();
        } catch (const Error& e) {
            said = e.what();
            throw;
        }
    });
    EXPECT_EQ(error, "rank 1: killed");
    EXPECT_NE(said.find("pp group of ranks 0,1: barrier (#1): rank 1 left: killed"), std::string::npos) << said;
}

}  // namespace
}  // namespace keel
