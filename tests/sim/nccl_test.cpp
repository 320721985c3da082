// NCCL's collectives with ranks as threads, against their definitions; ranks that disagree are told so and do not hang.
#include <nccl.h>

#include <thread>

#include "tests/sim/sweep_kernel.h"

namespace keel::on_cudasim {
namespace {

using sim::Kind;

// body(rank, comm, stream, in, out) on `ranks` threads, each with a device, a stream and two buffers of 64 floats;
// in[i] is 100 rank + i. Returns out of every rank.
using Body = std::function<void(int rank, ncclComm_t comm, cudaStream_t stream, float* in, float* out)>;
std::vector<std::vector<float>> on_ranks(int ranks, const Body& body) {
    std::vector<std::vector<float>> results(static_cast<std::size_t>(ranks), std::vector<float>(64, -1));
    ncclUniqueId id;
    ncclGetUniqueId(&id);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank)
        threads.emplace_back([&, rank] {
            cudaSetDevice(rank);
            ncclComm_t comm = nullptr;
            cudaStream_t stream = nullptr;
            float *in = nullptr, *out = nullptr;
            std::vector<float> host(64);
            for (int i = 0; i < 64; ++i) host[static_cast<std::size_t>(i)] = static_cast<float>(100 * rank + i);
            ncclCommInitRank(&comm, ranks, id, rank);
            cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
            cudaMalloc(&in, 256);
            cudaMalloc(&out, 256);
            cudaMemcpyAsync(in, host.data(), 256, cudaMemcpyHostToDevice, stream);
            cudaMemsetAsync(out, 0, 256, stream);
            body(rank, comm, stream, in, out);
            cudaMemcpyAsync(results[static_cast<std::size_t>(rank)].data(), out, 256, cudaMemcpyDeviceToHost, stream);
            cudaStreamSynchronize(stream);
            cudaFree(in);
            cudaFree(out);
            cudaStreamDestroy(stream);
            ncclCommDestroy(comm);
        });
    for (auto& thread : threads) thread.join();
    return results;
}
template <class Check>
void expect_on_ranks(int ranks, const Body& body, Check check) {
    for (const sim::Streams streams : {sim::Streams::immediate, sim::Streams::deferred}) {
        sim::Config config;
        config.streams = streams;
        config.patience_ms = 5000;
        sim::configure(config);
        const auto results = on_ranks(ranks, body);
        sim::configure({});
        for (const auto& finding : sim::take_findings()) ADD_FAILURE() << finding.text;
        for (int rank = 0; rank < ranks; ++rank)
            for (int i = 0; i < 64; ++i) {
                const float got = results[static_cast<std::size_t>(rank)][static_cast<std::size_t>(i)];
                EXPECT_EQ(got, check(rank, i)) << "rank " << rank << " element " << i;
            }
    }
}

TEST(Nccl, CollectivesAreTheirDefinitions) {
    const int n = 4;
    expect_on_ranks(
        n,
        [](int, ncclComm_t c, cudaStream_t s, float* in, float* out) {
            ncclAllReduce(in, out, 64, ncclFloat, ncclSum, c, s);
        },
        [](int, int i) { return static_cast<float>(600 + 4 * i); });
    expect_on_ranks(
        n,
        [](int, ncclComm_t c, cudaStream_t s, float* in, float* out) {
            ncclAllReduce(in, out, 64, ncclFloat, ncclMax, c, s);
        },
        [](int, int i) { return static_cast<float>(300 + i); });
    expect_on_ranks(
        n,
        [](int, ncclComm_t c, cudaStream_t s, float* in, float* out) {
            ncclBroadcast(in, out, 64, ncclFloat, 2, c, s);
        },
        [](int, int i) { return static_cast<float>(200 + i); });
    expect_on_ranks(
        n,
        [](int, ncclComm_t c, cudaStream_t s, float* in, float* out) {
            ncclReduce(in, out, 64, ncclFloat, ncclSum, 1, c, s);
        },
        [](int rank, int i) { return rank == 1 ? static_cast<float>(600 + 4 * i) : 0.0f; });
    expect_on_ranks(
        n,
        [](int, ncclComm_t c, cudaStream_t s, float* in, float* out) { ncclAllGather(in, out, 16, ncclFloat, c, s); },
        [](int, int i) { return static_cast<float>(i / 16 * 100 + i % 16); });
    expect_on_ranks(
        n,
        [](int, ncclComm_t c, cudaStream_t s, float* in, float* out) {
            ncclReduceScatter(in, out, 16, ncclFloat, ncclSum, c, s);
        },
        [](int rank, int i) { return i < 16 ? static_cast<float>(600 + 4 * (16 * rank + i)) : 0.0f; });
}
TEST(Nccl, ARingOfSendsAndReceivesInAGroupGoesRound) {
    expect_on_ranks(
        3,
        [](int rank, ncclComm_t c, cudaStream_t s, float* in, float* out) {
            ncclGroupStart();
            ncclSend(in, 64, ncclFloat, (rank + 1) % 3, c, s);
            ncclRecv(out, 64, ncclFloat, (rank + 2) % 3, c, s);
            ncclGroupEnd();
        },
        [](int rank, int i) { return static_cast<float>((rank + 2) % 3 * 100 + i); });
}
TEST(Nccl, OneThreadDrivesSeveralRanksInAGroup) {
    ncclComm_t comms[2];
    cudaStream_t streams[2];
    float* x[2];
    ASSERT_EQ(ncclCommInitAll(comms, 2, nullptr), ncclSuccess);
    for (int r = 0; r < 2; ++r) {
        cudaStreamCreate(&streams[r]);
        cudaMalloc(&x[r], 4);
        const float value = static_cast<float>(r + 1);
        cudaMemcpy(x[r], &value, 4, cudaMemcpyHostToDevice);
    }
    ncclGroupStart();
    for (int r = 0; r < 2; ++r)
        EXPECT_EQ(ncclAllReduce(x[r], x[r], 1, ncclFloat, ncclSum, comms[r], streams[r]), ncclSuccess);
    ncclGroupEnd();
    for (int r = 0; r < 2; ++r) {
        EXPECT_EQ(*x[r], 3);
        cudaStreamDestroy(streams[r]);
        cudaFree(x[r]);
        ncclCommDestroy(comms[r]);
    }
    EXPECT_TRUE(sim::take_findings().empty());
}

TEST(Nccl, AGraphWithACollectiveCanBeReplayed) {
    expect_on_ranks(
        2,
        [](int, ncclComm_t c, cudaStream_t s, float* in, float* out) {
            cudaGraph_t graph = nullptr;
            cudaGraphExec_t exec = nullptr;
            cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
            ncclAllReduce(in, out, 64, ncclFloat, ncclSum, c, s);
            ncclAllReduce(out, in, 64, ncclFloat, ncclSum, c, s);
            cudaStreamEndCapture(s, &graph);
            cudaGraphInstantiate(&exec, graph, 0);
            for (int i = 0; i < 2; ++i) cudaGraphLaunch(exec, s);
            cudaStreamSynchronize(s);
            cudaGraphDestroy(graph);
            cudaGraphExecDestroy(exec);
        },
        [](int, int i) { return 4 * static_cast<float>(100 + 2 * i); });
}

// ---- mistakes
// -------------------------------------------------------------------------------------------------------------------

std::string findings_of(int ranks, const Body& body, int patience_ms = 5000) {
    sim::Config config;
    config.patience_ms = patience_ms;
    sim::configure(config);
    on_ranks(ranks, body);
    sim::configure({});
    std::string text;
    for (const auto& f : sim::take_findings()) text.append(name(f.kind)).append(": ").append(f.text).append("\n");
    return text;
}
TEST(Nccl, RanksThatDisagreeAreToldAndDoNotHang) {
    const std::string count = findings_of(2, [](int rank, ncclComm_t c, cudaStream_t s, float* in, float* out) {
        ncclAllReduce(in, out, rank == 0 ? 64 : 63, ncclFloat, ncclSum, c, s);
    });
    EXPECT_NE(count.find("disagreement: rank "), std::string::npos) << count;
    EXPECT_NE(count.find("of 63 elements"), std::string::npos) << count;
    EXPECT_NE(count.find("of 64 elements"), std::string::npos) << count;
    EXPECT_NE(count.find("nccl_test.cpp"), std::string::npos) << count;
    const std::string kind = findings_of(2, [](int rank, ncclComm_t c, cudaStream_t s, float* in, float* out) {
        if (rank == 0)
            ncclAllReduce(in, out, 32, ncclFloat, ncclSum, c, s);
        else
            ncclAllGather(in, out, 32, ncclFloat, c, s);
    });
    EXPECT_NE(kind.find("ncclAllReduce"), std::string::npos) << kind;
    EXPECT_NE(kind.find("ncclAllGather"), std::string::npos) << kind;
    const std::string bytes = findings_of(2, [](int rank, ncclComm_t c, cudaStream_t s, float* in, float* out) {
        if (rank == 0)
            ncclSend(in, 8, ncclFloat, 1, c, s);
        else
            ncclRecv(out, 9, ncclFloat, 0, c, s);
    });
    EXPECT_NE(bytes.find("rank 0 sends 32 bytes"), std::string::npos) << bytes;
    EXPECT_NE(bytes.find("rank 1 receives 36"), std::string::npos) << bytes;
}
TEST(Nccl, ARankThatDoesNotComeIsADeadlockAndNotAHang) {
    const std::string text = findings_of(
        2,
        [](int rank, ncclComm_t c, cudaStream_t s, float* in, float* out) {
            if (rank == 0) ncclAllReduce(in, out, 64, ncclFloat, ncclSum, c, s);
        },
        200);
    EXPECT_NE(text.find("deadlock: a stream of device 0"), std::string::npos) << text;
}
// One thread that drives two ranks, with deferred streams: nothing happens but when it asks.
struct TwoRanks {
    ncclComm_t comms[2];
    cudaStream_t streams[2];
    float* x[2];
    TwoRanks() {
        sim::Config config;
        config.streams = sim::Streams::deferred;
        sim::configure(config);
        ncclCommInitAll(comms, 2, nullptr);
        for (int r = 0; r < 2; ++r) {
            cudaSetDevice(r);
            cudaStreamCreate(&streams[r]);
            cudaMalloc(&x[r], 4);
            cudaMemsetAsync(x[r], r, 4, streams[r]);
        }
        ncclAllReduce(x[0], x[0], 1, ncclInt32, ncclSum, comms[0], streams[0]);
        for (int i = 0; i < 2; ++i) EXPECT_EQ(cudaStreamQuery(streams[0]), cudaErrorNotReady);  // and it waits for rank 1
    }
    ~TwoRanks() {
        for (int r = 0; r < 2; ++r) {
            cudaSetDevice(r);
            cudaStreamDestroy(streams[r]);
            cudaFree(x[r]);
        }
        cudaSetDevice(0);
        sim::configure({});
    }
};
// As with NCCL, whose kernels end without an error of CUDA's where their own rank aborts, and wait where it does not.
TEST(Nccl, AnAbortEndsWhatItsOwnRankWaitsForAndBreaksNoDevice) {
    TwoRanks two;
    ncclResult_t state = ncclSuccess;
    EXPECT_EQ(ncclCommAbort(two.comms[1]), ncclSuccess);
    EXPECT_EQ(cudaStreamQuery(two.streams[0]), cudaErrorNotReady);
    EXPECT_EQ(ncclCommGetAsyncError(two.comms[0], &state), ncclSuccess);
    EXPECT_EQ(state, ncclRemoteError);
    EXPECT_EQ(ncclCommAbort(two.comms[0]), ncclSuccess);
    EXPECT_EQ(cudaStreamSynchronize(two.streams[0]), cudaSuccess);
    EXPECT_TRUE(sim::take_findings().empty());
}
// It ends at the patience of the simulator, and with NCCL never.
TEST(Nccl, AnAbortWaitsForAGraphThatHoldsACollective) {
    sim::Config config;
    config.patience_ms = 100;
    sim::configure(config);
    ncclUniqueId id;
    ncclGetUniqueId(&id);
    ncclComm_t comm = nullptr;
    cudaStream_t stream = nullptr;
    float* x = nullptr;
    for (const bool graph_first : {true, false}) {
        ncclCommInitRank(&comm, 1, id, 0);
        cudaStreamCreate(&stream);
        cudaMalloc(&x, 4);
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t exec = nullptr;
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
        ncclAllReduce(x, x, 1, ncclFloat, ncclSum, comm, stream);
        cudaStreamEndCapture(stream, &graph);
        cudaGraphInstantiate(&exec, graph, 0);
        cudaGraphDestroy(graph);
        if (graph_first) cudaGraphExecDestroy(exec);
        EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
        if (!graph_first) cudaGraphExecDestroy(exec);
        cudaStreamDestroy(stream);
        cudaFree(x);
        const auto findings = sim::take_findings();
        ASSERT_EQ(findings.size(), graph_first ? 0u : 1u);
        if (!graph_first) {
            EXPECT_EQ(findings[0].text, "ncclCommAbort of rank 0 waits for a graph that holds collectives of its communicator");
        }
    }
    sim::configure({});
}
TEST(Nccl, ACommunicatorIsNotDestroyedAmidACollective) {
    TwoRanks two;
    EXPECT_EQ(ncclCommDestroy(two.comms[1]), ncclSuccess);
    EXPECT_EQ(ncclCommAbort(two.comms[0]), ncclSuccess);
    const auto findings = sim::take_findings();
    ASSERT_EQ(findings.size(), 1u);
    EXPECT_EQ(findings[0].text, "NCCL: rank 1 destroys its communicator amid a collective; it has to abort it");
}
TEST(Nccl, BuffersThatAreTooSmallAreRefused) {
    const std::string text = findings_of(2, [](int, ncclComm_t c, cudaStream_t s, float* in, float* out) {
        EXPECT_EQ(ncclAllGather(in, out, 33, ncclFloat, c, s), ncclInvalidArgument);
        EXPECT_EQ(ncclAllReduce(in, out, 8, ncclHalf, ncclSum, c, s), ncclInvalidArgument);
    });
    EXPECT_NE(text.find("a buffer is not as large"), std::string::npos) << text;
}

}  // namespace
}  // namespace keel::on_cudasim
