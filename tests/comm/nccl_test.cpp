// The suite on simulated GPUs: ranks are threads with a GPU each, what they bring lies in its memory, and NCCL is cudasim's.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>

#include "comm/nccl.h"
#include "comm/threads.h"
#include "kernels/cudasim/counters.h"
#include "kernels/cudasim/findings.h"
#include "kernels/cudasim/memory.h"
#include "kernels/cudasim/nccl.h"
#include "kernels/cudasim/runtime.h"
#include "tests/comm/expect_failure.h"

namespace keel {
namespace {

using comm_suite::Case;
using comm_suite::FailureCase;

class GpuMemory final : public std::pmr::memory_resource {
    void* do_allocate(std::size_t bytes, std::size_t) override { return sim::allocate_device(bytes); }
    void do_deallocate(void* data, std::size_t, std::size_t) override { EXPECT_TRUE(sim::release_device(data)); }
    bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
};

std::shared_ptr<Stream> gpu_stream(int) {
    sim::cuda::cudaStream_t native = nullptr;
    sim::cuda::cudaStreamCreateWithFlags(&native, sim::cuda::cudaStreamNonBlocking);
    const auto wait = [](void* s) { sim::cuda::cudaStreamSynchronize(static_cast<sim::cuda::cudaStream_t>(s)); };
    return {new Stream(Device::cudasim, native, wait), [native](Stream* stream) {
                delete stream;
                sim::cuda::cudaStreamDestroy(native);
            }};
}

struct Way {
    const char* name;
    sim::Streams streams;
    NcclOptions options;
    std::vector<int> ranks;
};
// Buffers of the least size: sums go round after round. Deferred: nothing happens before somebody waits.
const Way ways[] = {{"Immediate", sim::Streams::immediate, {}, {1, 5}},
                    {"Deferred", sim::Streams::deferred, {.buffer_bytes = 1}, {3}},
                    {"Staged", sim::Streams::immediate, {.buffer_bytes = 1, .direct = false}, {2}}};

// GPUs behave in that way, and hold what the suite's ranks bring, while it lives.
class OnGpus {
public:
    explicit OnGpus(const Way& way) : options_(way.options), before_(sim::config()) {
        sim::Config config = before_;
        config.streams = way.streams;
        sim::configure(config);
        (void)sim::take_findings();
        std::pmr::set_default_resource(&memory_);
        comm_suite::make_stream = gpu_stream;
        comm_suite::begin_thread = [](int rank) { sim::cuda::cudaSetDevice(rank); };
    }
    ~OnGpus() {
        std::pmr::set_default_resource(nullptr);
        comm_suite::make_stream = [](int threads) { return std::make_shared<Stream>(threads, 64, 64); };
        comm_suite::begin_thread = [](int) {};
        sim::configure(before_);
        for (const sim::Finding& finding : sim::take_findings()) ADD_FAILURE() << finding.text;
    }
    void run(int ranks, double deadline_s, const std::function<void(World&)>& body) const {
        run_threads(ranks, {.deadline_s = deadline_s}, [&](World& world) {
            const auto gpus = nccl_world(world, Device::cudasim, world.rank(), options_);
            body(*gpus);
        });
    }

private:
    NcclOptions options_;
    sim::Config before_;
    GpuMemory memory_;
};

template <class Of>
std::string name_of(const testing::TestParamInfo<std::tuple<Of, Way>>& info) {
    return std::string(std::get<0>(info.param).name) + "_" + std::get<1>(info.param).name;
}
void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

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

// Work that is queued before a collective or a message comes before it, and what is queued behind comes behind.
TEST(NcclOrder, CollectivesAndMessagesTakeTheirTurnOnTheStream) {
    const OnGpus gpus(ways[1]);
    gpus.run(3, 30, [](World& world) {
        const auto g = world.everyone();
        const comm_suite::Worker worker(1);
        Stream& stream = worker;
        const auto queue = static_cast<sim::cuda::cudaStream_t>(stream.native());
        comm_suite::Numbers<std::int64_t> x(600), from_last(600);
        const View<std::int64_t> all(x.data(), {600}), arriving(from_last.data(), {600});
        for (int round = 0; round < 4; ++round) {
            sim::cuda::cudaMemsetAsync(x.data(), world.rank() + round, 600 * 8, queue);
            g->all_reduce(stream, all);
            Ticket ticket = g->send(stream, all, (g->rank() + 1) % 3, 0);
            g->receive(stream, arriving, (g->rank() + 2) % 3, 0);
            g->wait(stream, ticket);
            sim::cuda::cudaMemsetAsync(x.data(), 0, 600 * 8, queue);  // only once the message is away
            worker.synchronize();
            const std::int64_t byte = 3 + 3 * round;  // 0 + 1 + 2 and the round thrice, in each of eight bytes
            for (const std::int64_t v : from_last) comm_suite::require(v == byte * 0x0101010101010101, "sum is ", v);
        }
    });
}

TEST(NcclWorld, RefusesMemoryOfBothKindsInOneCollective) {
    const OnGpus gpus(ways[0]);
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

TEST(NcclWorld, AGroupOfOneHasNoCommunicatorAndNoBuffer) {
    const OnGpus gpus(ways[0]);
    gpus.run(1, 30, [](World& world) {
        (void)sim::take_counters();
        const auto g = world.everyone("tp");
        EXPECT_EQ(sim::take_counters().allocations, 0u);
    });
}

// What body throws on any rank of two, each on a GPU; `options` of their world.
std::string error_of(const NcclOptions& options, double deadline_s, const std::function<void(World& control, World& gpus)>& body) {
    try {
        run_threads(2, {.deadline_s = deadline_s}, [&](World& control) {
            const auto gpus = nccl_world(control, Device::cudasim, control.rank(), options);
            body(control, *gpus);
        });
    } catch (const Error& e) {
        return e.what();
    }
    return "";
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
    const OnGpus gpus(ways[0]);
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

// A send that is refused amid others leaves nothing open behind which later calls would pile up.
TEST(NcclWorld, ASendThatIsRefusedClosesItsGroup) {
    const OnGpus gpus(ways[0]);
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
