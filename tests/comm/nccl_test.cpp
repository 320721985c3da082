// The suite on simulated GPUs, and what is NCCL's own. Messages are in nccl_mail_test.cpp.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>

#include "kernels/cudasim/counters.h"
#include "kernels/cudasim/nccl.h"
#include "tests/comm/expect_failure.h"
#include "tests/comm/on_gpus.h"

namespace keel {
namespace {

using comm_suite::Case;
using comm_suite::FailureCase;
using nccl_test::error_of;
using nccl_test::OnGpus;
using nccl_test::Way;
using nccl_test::ways;

template <class Of>
std::string name_of(const testing::TestParamInfo<std::tuple<Of, Way>>& info) {
    return std::string(std::get<0>(info.param).name) + "_" + std::get<1>(info.param).name;
}

class Nccl : public testing::TestWithParam<std::tuple<Case, Way>> {};
TEST_P(Nccl, SeveralGpus) {
    const OnGpus gpus(std::get<1>(GetParam()));
    for (const int ranks : std::get<1>(GetParam()).ranks) gpus.run(ranks, 30, std::get<0>(GetParam()).body);
}
INSTANTIATE_TEST_SUITE_P(Suite, Nccl, testing::Combine(testing::ValuesIn(comm_suite::cases()), testing::ValuesIn(ways)),
                         name_of<Case>);
class NcclFails : public testing::TestWithParam<std::tuple<FailureCase, Way>> {};
TEST_P(NcclFails, EveryRankSaysWhyAndNobodyHangs) {
    const OnGpus gpus(std::get<1>(GetParam()));
    const FailureCase& failure = std::get<0>(GetParam());
    comm_suite::expect_failure(failure, [&](const std::function<void(World&)>& body) {
        gpus.run(comm_suite::failure_ranks, failure.deadline_s, body);
    });
}
INSTANTIATE_TEST_SUITE_P(Suite, NcclFails,
                         testing::Combine(testing::ValuesIn(comm_suite::failure_cases()), testing::ValuesIn(ways)),
                         name_of<FailureCase>);

TEST(NcclWorld, RefusesMemoryOfBothKindsInOneCollective) {
    const OnGpus gpus(nccl_test::immediate);
    try {
        gpus.run(2, 30, [](World& world) {
            const auto g = world.everyone("tp");
            const comm_suite::Worker stream(1);
            comm_suite::Numbers<float> there(4);
            float here[4] = {};
            g->all_reduce(stream, View<float>(world.rank() ? here : there.data(), {4}));
        });
        ADD_FAILURE() << "it went well";
    } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find("all_reduce of 4 float32 (#1): some ranks bring memory of a GPU"),
                  std::string::npos)
            << e.what();
    }
}

// Where nothing is brought it lies nowhere: not on a GPU, and not on the host.
TEST(NcclWorld, NothingIsOfBothKindsOfMemory) {
    const OnGpus gpus(nccl_test::immediate);
    gpus.run(2, 30, [](World& world) {
        const auto g = world.everyone("tp");
        const comm_suite::Worker stream(1);
        comm_suite::Numbers<float> there(4);
        g->all_reduce(stream, View<float>(world.rank() ? nullptr : there.data(), {0}));
        stream.synchronize();
    });
}

TEST(NcclWorld, AGroupOfOneHasNoCommunicatorAndNoBuffer) {
    const OnGpus gpus(nccl_test::immediate);
    gpus.run(1, 30, [](World& world) {
        (void)sim::take_counters();
        const auto g = world.everyone("tp");
        EXPECT_EQ(sim::take_counters().allocations, 0u);
        g->lend(View<std::byte>(nullptr, {0}));  // needs none
    });
}

// Rank 1 makes its part of the group on the host, and never comes to NCCL: there rank 0 waits no longer than it may.
TEST(NcclWorld, ConnectingRanksEndsAtTheDeadlineAndWhenOneLeaves) {
    const auto try_to_connect = [](double deadline_s, bool leaves) {
        return error_of({.buffer_bytes = 1, .deadline_s = deadline_s}, 30, [&](World& control, World& gpus) {
            if (control.rank() == 0) return void(gpus.everyone("tp"));
            const std::vector<int> all = {0, 1};
            const auto group = control.group("tp", all), receipts = control.group("tp receipts", all);
            Stream stream(1, 64, 64);
            char id[sim::cuda::NCCL_UNIQUE_ID_BYTES];
            group->broadcast(stream, View<char>(id, {sizeof id}), 0);
            if (leaves) fail("killed");
            group->barrier();  // which rank 0 never comes to
        });
    };
    EXPECT_NE(try_to_connect(0.05, false).find("tp group of ranks 0,1: making its communicator: not every rank came to NCCL within 0.05 s"),
              std::string::npos);
    EXPECT_EQ(try_to_connect(30, true), "rank 1: killed");
}

TEST(NcclWorld, AGroupWorksInTheMemoryItIsLentAndSaysWhatIsMissing) {
    const OnGpus gpus(nccl_test::immediate);
    const auto sum = [](World& world, std::int64_t lent, bool lend) {
        const auto group = world.everyone("tp");
        const comm_suite::Worker stream(1);
        comm_suite::Numbers<std::byte> memory(static_cast<std::size_t>(lent));
        comm_suite::Numbers<std::int64_t> x(3000, world.rank() + 1);
        if (lend) group->lend(View<std::byte>(memory.data(), {lent}));
        group->all_reduce(stream, View<std::int64_t>(x.data(), {3000}));
        stream.synchronize();
        comm_suite::require(x.front() == 3 && x.back() == 3, "a sum is ", x.front(), " and ", x.back());
    };
    const std::int64_t least = nccl_buffer_bytes(0, 2);
    EXPECT_EQ(error_of({.buffer_bytes = 0}, 30, [&](World&, World& world) { sum(world, least, true); }), "");
    const std::string none = error_of({.buffer_bytes = 0}, 30, [&](World&, World& world) { sum(world, 1, false); });
    EXPECT_NE(none.find("all_reduce of 3000 int64 (#1): this group was lent no memory of its GPU"), std::string::npos) << none;
    const std::string little = error_of({.buffer_bytes = 0}, 30, [&](World&, World& world) { sum(world, least - 1, true); });
    EXPECT_NE(little.find(concat("tp group of ranks 0,1: it is lent ", least - 1, " bytes of a GPU, and needs ", least)), std::string::npos) << little;
}

// Only the first time do the ranks have to meet.
TEST(NcclWorld, OtherMemoryIsLentByARankAlone) {
    const OnGpus gpus(nccl_test::immediate);
    const std::int64_t least = nccl_buffer_bytes(0, 2);
    const std::string error = error_of({.buffer_bytes = 0}, 5, [&](World&, World& world) {
        const auto group = world.everyone("tp");
        const comm_suite::Worker stream(1);
        comm_suite::Numbers<std::byte> memory(static_cast<std::size_t>(2 * least));
        comm_suite::Numbers<std::int64_t> x(30000, world.rank() + 1);
        group->lend(View<std::byte>(memory.data(), {least}));
        if (world.rank() == 0) group->lend(View<std::byte>(memory.data() + least, {least}));
        group->all_reduce(stream, View<std::int64_t>(x.data(), {30000}));
        stream.synchronize();
        comm_suite::require(x.front() == 3 && x.back() == 3, "a sum is ", x.front(), " and ", x.back());
    });
    EXPECT_EQ(error, "");
}

// A send that is refused amid others leaves nothing open behind which later calls would pile up.
TEST(NcclWorld, ASendThatIsRefusedClosesItsGroup) {
    const OnGpus gpus(nccl_test::immediate);
    const std::string error = error_of({.buffer_bytes = 1}, 30, [](World&, World& world) {
        const auto group = world.everyone();
        const comm_suite::Worker stream(1);
        comm_suite::Numbers<float> x(8);
        const View<float> far(x.data(), {40000});  // larger than what lies there
        try {
            group->reduce_scatter(stream, far.rows(world.rank() * 20000, 20000), View<const float>(far));
        } catch (const Error&) {
            comm_suite::require(sim::cuda::ncclGroupEnd() != sim::cuda::ncclSuccess, "a group of calls is still open");
            throw;
        }
    });
    EXPECT_NE(error.find("nccl: invalid argument"), std::string::npos) << error;
    EXPECT_FALSE(sim::take_findings().empty());
}

// A rank that throws while others wait for it on their GPUs aborts NCCL, whether it tells the world before its groups go or not;
// destroying a communicator would wait for the others. They learn why.
TEST(NcclWorld, ARankThatThrowsDoesNotWaitForThoseWhoWaitForIt) {
    const OnGpus gpus(nccl_test::immediate);
    for (const bool tells : {true, false}) {
        std::string said;
        const std::string error = error_of({.buffer_bytes = 1}, 30, [&](World&, World& world) {
            const auto group = world.everyone("tp");
            const comm_suite::Worker stream(1);
            comm_suite::Numbers<float> in(world.rank() == 0 ? 4000 : 8), out(8000);
            try {
                group->all_gather(stream, View<float>(out.data(), {8000}), View<const float>(in.data(), {4000}));
                stream.synchronize();
                group->barrier();
            } catch (const Error& e) {
                if (world.rank() == 0) said = e.what();
                if (tells) world.abort(e.what());
                throw;
            }
        });
        EXPECT_NE(error.find("rank 1: nccl: invalid argument"), std::string::npos) << error;
        EXPECT_TRUE(said.starts_with("tp group of ranks 0,1: ")) << said;  // all_gather (#1), or the barrier behind it
        EXPECT_NE(said.find("): rank 1 left: nccl: invalid argument"), std::string::npos) << said;
        EXPECT_EQ(sim::take_findings().size(), 1u);  // that rank 1's buffer is too small
    }
}

// A group of one is in nobody's way: that it goes where an exception is caught ends nothing of the others.
TEST(NcclWorld, AGroupOfOneThatAnExceptionUnwindsLeavesTheOthersAlone) {
    const OnGpus gpus(nccl_test::immediate);
    const std::string error = error_of({.buffer_bytes = 1}, 30, [](World&, World& world) {
        const auto group = world.everyone("dp");
        try {
            const std::vector<int> alone{world.rank()};
            const auto one = world.group("tp", alone);
            fail("met and mended");
        } catch (const Error&) {
        }
        const comm_suite::Worker stream(1);
        comm_suite::Numbers<float> x(8);
        group->all_reduce(stream, View<float>(x.data(), {8}));
        stream.synchronize();
    });
    EXPECT_EQ(error, "");
}

// As a run does whose step is a graph: who leaves tells the world while its graph lives, and destroys the graph before its groups.
TEST(NcclWorld, ARankLeavesWhileAGraphHoldsItsCollectives) {
    using namespace sim::cuda;
    const OnGpus gpus(nccl_test::deferred);
    const std::string error = error_of({.buffer_bytes = 1}, 30, [](World&, World& world) {
        const auto group = world.everyone("tp");
        const comm_suite::Worker stream(1);
        comm_suite::Numbers<float> x(8);
        const auto sum = [&] { group->all_reduce(stream, View<float>(x.data(), {8})); };
        const auto native = static_cast<cudaStream_t>(static_cast<Stream&>(stream).native());
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t exec = nullptr;
        cudaStreamBeginCapture(native, cudaStreamCaptureModeThreadLocal);
        sum();
        cudaStreamEndCapture(native, &graph);
        cudaGraphInstantiate(&exec, graph, 0);
        cudaGraphDestroy(graph);
        const std::unique_ptr<void, void (*)(void*)> owner(exec, [](void* e) { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(e)); });
        cudaGraphLaunch(exec, native);
        stream.synchronize();
        try {
            if (world.rank() == 1) fail("killed");
            sum();
            stream.synchronize();
            group->barrier();
        } catch (const Error& e) {
            world.abort(e.what());
            throw;
        }
    });
    EXPECT_EQ(error, "rank 1: killed");
}

// NCCL may tell a rank that another is gone before the world does; it then waits, but not for ever, for the world to say who
// left and why. Rank 1 aborts NCCL while the others are being connected, for which rank 2 never comes.
TEST(NcclWorld, ARankThatIsGoneForNcclIsNamedWithItsReason) {
    const auto said_by_rank_0 = [](double deadline_s, bool leaves) {
        std::string said;
        try {
            run_threads(3, {.deadline_s = 30}, [&](World& control) {
                if (control.rank() == 0) {
                    try {
                        const auto gpus = nccl_world(control, Device::cudasim, 0, {.buffer_bytes = 1, .deadline_s = deadline_s});
                        (void)gpus->everyone("tp");
                    } catch (const Error& e) {
                        said = e.what();
                        throw;
                    }
                }
                const std::vector<int> all = {0, 1, 2};
                const auto group = control.group("tp", all), receipts = control.group("tp receipts", all);
                Stream stream(1, 64, 64);
                sim::cuda::ncclUniqueId id{};
                group->broadcast(stream, View<char>(id.internal, {sizeof id.internal}), 0);
                if (control.rank() == 1) {
                    sim::cuda::ncclComm_t comm = nullptr;
                    sim::cuda::ncclCommInitRank(&comm, 3, id, 1);
                    sim::cuda::ncclCommAbort(comm);
                    std::this_thread::sleep_for(std::chrono::milliseconds(leaves ? 50 : 0));  // until rank 0 has seen that
                    if (leaves) fail("killed");
                }
                group->barrier();  // which rank 0 never comes to
            });
        } catch (const Error&) {
        }
        return said;
    };
    EXPECT_EQ(said_by_rank_0(30, true), "tp group of ranks 0,1,2: making its communicator: rank 1 left: killed");
    EXPECT_NE(said_by_rank_0(0.05, false).find("tp group of ranks 0,1,2: making its communicator: "), std::string::npos);
}

TEST(NcclWorld, SaysWhatItIsAndWhyItIsNot) {
    EXPECT_FALSE(why_no_nccl(Device::cudasim));
    EXPECT_EQ(why_no_nccl(Device::cpu), "NCCL moves the memory of GPUs");
    run_threads(2, {}, [](World& world) {
        const auto gpus = nccl_world(world, Device::cudasim, world.rank());
        EXPECT_STREQ(gpus->transport(), "nccl");
        EXPECT_EQ(gpus->rank(), world.rank());
        EXPECT_EQ(gpus->size(), 2);
        EXPECT_FALSE(gpus->aborted());
    });
}

}  // namespace
}  // namespace keel
