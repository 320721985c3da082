// Streams, events and graphs: what order they promise is kept, and what they do not promise is not given.
#include <algorithm>
#include <set>

#include "tests/sim/sweep_kernel.h"

namespace keel::on_cudasim {
namespace {

using sim::Kind;

__global__ void set_to(float* x, float value) { x[threadIdx.x] = value; }
__global__ void add_to(float* y, const float* x) { y[threadIdx.x] += x[threadIdx.x]; }
__global__ void double_it(float* x) { x[threadIdx.x] *= 2; }

template <class... Params, class... Arguments>
void go(cudaStream_t stream, void (*kernel)(Params...), Arguments... arguments) {
    cudaLaunchConfig_t config{};
    config.blockDim = 32;
    config.stream = stream;
    ASSERT_EQ(cudaLaunchKernelEx(&config, kernel, arguments...), cudaSuccess);
}

// Two streams, two buffers, an event or none.
struct World {
    cudaStream_t a = nullptr, b = nullptr;
    cudaEvent_t event = nullptr;
    float *x = nullptr, *y = nullptr, *pinned = nullptr;
    World() {
        cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking);
        cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking);
        cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
        cudaMalloc(&x, 128);
        cudaMalloc(&y, 128);
        cudaMallocHost(&pinned, 128);
        cudaMemset(x, 0, 128);
        cudaMemset(y, 0, 128);
    }
    ~World() {
        cudaStreamDestroy(a);
        cudaStreamDestroy(b);
        cudaEventDestroy(event);
        cudaFree(x);
        cudaFree(y);
        cudaFreeHost(pinned);
    }
    float first_of(const float* device) const {
        float host[32];
        cudaDeviceSynchronize();
        cudaMemcpy(host, device, 128, cudaMemcpyDeviceToHost);
        return host[0];
    }
};

sim::SweepResult deferred(const std::function<float()>& work) {
    return sim::sweep({.streams = sim::Streams::deferred}, [&](sim::Outputs& outputs) {
        const float result = work();
        outputs.add("result", &result, sizeof result);
    });
}

// ---- a forgotten event
// ------------------------------------------------------------------------------------------------------

float across_streams(bool fixed) {
    World w;
    go(w.a, set_to, w.x, 3.0f);
    cudaEventRecord(w.event, w.a);
    if (fixed) cudaStreamWaitEvent(w.b, w.event);
    go(w.b, add_to, w.y, static_cast<const float*>(w.x));
    return w.first_of(w.y);
}
TEST(Streams, AForgottenEventIsSeenWhenStreamsAreDeferred) {
    const auto right = deferred([] { return across_streams(true); });
    EXPECT_EQ(right.text(), "");
    EXPECT_EQ(across_streams(false), 3);  // in immediate mode nobody notices
    EXPECT_TRUE(deferred([] { return across_streams(false); }).has(Kind::nondeterminism));
}

// Operations of one stream keep their order.
TEST(Streams, OneStreamIsAQueue) {
    const auto result = deferred([] {
        World w;
        go(w.a, set_to, w.x, 3.0f);
        for (int i = 0; i < 5; ++i) go(w.a, double_it, w.x);
        go(w.a, add_to, w.y, static_cast<const float*>(w.x));
        return w.first_of(w.y);
    });
    EXPECT_EQ(result.text(), "");
}

// A pinned buffer is read when the copy happens, not when it is asked for; a pageable one is staged.
float write_after_copy(bool pinned) {
    World w;
    std::vector<float> pageable(32, 1.0f);
    std::fill_n(w.pinned, 32, 1.0f);
    cudaMemcpyAsync(w.x, pinned ? w.pinned : pageable.data(), 128, cudaMemcpyHostToDevice, w.a);
    w.pinned[0] = 5;
    pageable[0] = 5;
    return w.first_of(w.x);
}
TEST(Streams, APinnedBufferWrittenBeforeItsCopyIsDoneIsSeen) {
    sim::Config config;
    config.streams = sim::Streams::deferred;
    sim::configure(config);
    EXPECT_EQ(write_after_copy(true), 5);
    EXPECT_EQ(write_after_copy(false), 1);
    sim::configure({});
    EXPECT_EQ(write_after_copy(true), 1);
}

TEST(Streams, NothingHappensBeforeSomebodyWaitsAndQueriesLetTimePass) {
    sim::Config config;
    config.streams = sim::Streams::deferred;
    sim::configure(config);
    {
        World w;
        go(w.a, set_to, w.x, 3.0f);
        go(w.a, set_to, w.x, 4.0f);
        EXPECT_EQ(w.x[0], 0);
        EXPECT_EQ(cudaStreamQuery(w.a), cudaErrorNotReady);
        EXPECT_EQ(w.x[0], 3);
        EXPECT_EQ(cudaStreamQuery(w.a), cudaSuccess);
        EXPECT_EQ(w.x[0], 4);
    }
    sim::configure({});
}

// ---- graphs
// ---------------------------------------------------------------------------------------------------------------------

// x = 3 on a; b joins, y += x; a joins b again, x *= 2. With `fixed` false, b is never joined back.
cudaError_t capture(World& w, bool join_back, cudaGraph_t* graph) {
    cudaStreamBeginCapture(w.a, cudaStreamCaptureModeThreadLocal);
    go(w.a, set_to, w.x, 3.0f);
    cudaEventRecord(w.event, w.a);
    cudaStreamWaitEvent(w.b, w.event);
    go(w.b, add_to, w.y, static_cast<const float*>(w.x));
    cudaEventRecord(w.event, w.b);
    if (join_back) cudaStreamWaitEvent(w.a, w.event);
    go(w.a, double_it, w.x);
    return cudaStreamEndCapture(w.a, graph);
}
TEST(Streams, AGraphReplaysWhatWasCaptured) {
    const auto result = deferred([] {
        World w;
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t exec = nullptr;
        EXPECT_EQ(capture(w, true, &graph), cudaSuccess);
        EXPECT_EQ(w.x[0], 0);  // capture runs nothing
        std::size_t nodes = 0;
        cudaGraphGetNodes(graph, nullptr, &nodes);
        EXPECT_EQ(nodes, 3u);
        cudaGraphInstantiate(&exec, graph, 0);
        cudaGraphDestroy(graph);
        for (int i = 0; i < 3; ++i) cudaGraphLaunch(exec, w.a);
        const float y = w.first_of(w.y);
        EXPECT_EQ(w.first_of(w.x), 6);
        EXPECT_EQ(y, 9);
        cudaGraphExecDestroy(exec);
        return y;
    });
    EXPECT_EQ(result.text(), "");
}
TEST(Streams, ACaptureThatNeverJoinsItsOtherStreamIsRefused) {
    World w;
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(capture(w, false, &graph), cudaErrorStreamCaptureUnjoined);
    const auto findings = sim::take_findings();
    ASSERT_EQ(findings.size(), 1u);
    EXPECT_NE(findings[0].text.find("never joined"), std::string::npos);
    cudaGetLastError();
}
TEST(Streams, WaitingForAStreamInCaptureIsRefused) {
    World w;
    cudaGraph_t graph = nullptr;
    cudaStreamBeginCapture(w.a, cudaStreamCaptureModeThreadLocal);
    EXPECT_EQ(cudaStreamSynchronize(w.a), cudaErrorStreamCaptureUnsupported);
    EXPECT_EQ(cudaStreamEndCapture(w.a, &graph), cudaSuccess);
    cudaGraphDestroy(graph);
    cudaGetLastError();
}

// Independent nodes come in any order: a graph that forgot an edge shows it even where streams are immediate.
TEST(Streams, AGraphThatLacksAnEdgeIsSeen) {
    const auto result = sim::sweep({}, [&](sim::Outputs& outputs) {
        World w;
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t exec = nullptr;
        cudaStreamBeginCapture(w.a, cudaStreamCaptureModeThreadLocal);
        cudaEventRecord(w.event, w.a);
        cudaStreamWaitEvent(w.b, w.event);
        go(w.a, set_to, w.x, 3.0f);
        go(w.b, add_to, w.y, static_cast<const float*>(w.x));  // should have waited for set_to
        cudaEventRecord(w.event, w.b);
        cudaStreamWaitEvent(w.a, w.event);
        cudaStreamEndCapture(w.a, &graph);
        cudaGraphInstantiate(&exec, graph, 0);
        cudaGraphLaunch(exec, w.a);
        const float y = w.first_of(w.y);
        outputs.add("y", &y, sizeof y);
        cudaGraphDestroy(graph);
        cudaGraphExecDestroy(exec);
    });
    EXPECT_TRUE(result.has(Kind::nondeterminism));
}

// ---- blocks on several threads of the host give the same result
// --------------------------------------------------------------

__global__ void sum_of_many(float* out, const float* x) {
    KEEL_SHARED(float, tile, [128]);
    const unsigned i = threadIdx.x, at = blockIdx.x * 128 + i;
    tile[i] = x[at];
    __syncthreads();
    float sum = 0;
    for (unsigned k = 0; k < 128; ++k) sum += tile[(i + k) % 128];
    out[at] = sum;
    if (i == 0) atomicAdd(out + 6400, 1.0f);  // whole numbers: exact in any order
}
TEST(Streams, BlocksOnSeveralThreadsOfTheHostGiveTheSameBits) {
    std::vector<float> one, three, start = counting(6400);
    for (const int workers : {1, 3}) {
        sim::Config config;
        config.workers = workers;
        sim::configure(config);
        std::vector<float>& got = workers == 1 ? one : three;
        got.resize(6401);
        float *x = nullptr, *out = nullptr;
        cudaMalloc(&x, 25600);
        cudaMalloc(&out, 25604);
        cudaMemcpy(x, start.data(), 25600, cudaMemcpyHostToDevice);
        cudaMemset(out, 0, 25604);
        for (int i = 0; i < 5; ++i) {
            cudaLaunchConfig_t launch_config{};
            launch_config.gridDim = 50;
            launch_config.blockDim = 128;
            EXPECT_EQ(cudaLaunchKernelEx(&launch_config, sum_of_many, out, static_cast<const float*>(x)), cudaSuccess);
        }
        cudaMemcpy(got.data(), out, 25604, cudaMemcpyDeviceToHost);
        cudaFree(x);
        cudaFree(out);
        sim::configure({});
    }
    EXPECT_EQ(one, three);
    EXPECT_EQ(one[6400], 250);
    EXPECT_TRUE(sim::take_findings().empty());
}

// ---- what a schedule is
// -------------------------------------------------------------------------------------------------------

TEST(Streams, ASweepMeetsEveryOrderBothAsyncsAndBothPoisonsAndIsReproducible) {
    std::set<std::string> all;
    for (const sim::Config& c : sim::schedules_of({})) all.insert(c.text());
    EXPECT_EQ(all.size(), 24u);
    const auto two = sim::schedules_of({.reach = sim::SweepOptions::Reach::two});
    ASSERT_EQ(two.size(), 2u);
    EXPECT_NE(two[0].order, two[1].order);
    EXPECT_NE(two[0].async, two[1].async);
    EXPECT_NE(two[0].poison, two[1].poison);
    EXPECT_NE(two[0].shuffle_blocks, two[1].shuffle_blocks);
}

// ---- several devices
// -------------------------------------------------------------------------------------------------------------------------------------

// Which device is meant belongs to a thread: what a stream or memory of another one cannot do is refused, as on a GPU.
TEST(Devices, ALaunchIntoAStreamOfAnotherDeviceIsRefused) {
    sim::take_findings();
    World of_0;
    cudaLaunchConfig_t config{};
    config.blockDim = 32;
    config.stream = of_0.a;
    EXPECT_EQ(cudaLaunchKernelEx(&config, set_to, of_0.x, 1.0f), cudaSuccess);
    EXPECT_TRUE(sim::take_findings().empty());

    ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
    EXPECT_EQ(cudaLaunchKernelEx(&config, set_to, of_0.x, 1.0f), cudaErrorInvalidResourceHandle);
    auto findings = sim::take_findings();
    ASSERT_EQ(findings.size(), 1u);
    EXPECT_NE(findings[0].text.find("a launch into a stream of device 0 by a thread whose device is 1, at tests/sim/streams_test.cpp"), std::string::npos)
        << findings[0].text;
    // Its default stream, but memory of the other.
    config.stream = nullptr;
    cudaLaunchKernelEx(&config, set_to, of_0.x, 1.0f);
    findings = sim::take_findings();
    ASSERT_EQ(findings.size(), 1u);
    EXPECT_NE(findings[0].text.find("argument 0 of the launch at tests/sim/streams_test.cpp"), std::string::npos);
    EXPECT_NE(findings[0].text.find("points to memory of device 0, and device 1 runs it"), std::string::npos);
    EXPECT_EQ(cudaEventRecord(of_0.event, nullptr), cudaErrorInvalidResourceHandle);
    EXPECT_EQ(sim::take_findings().size(), 1u);
    cudaSetDevice(0);
    cudaGetLastError();
}

// Waiting for a stream is waiting for its device, whichever is the thread's own.
TEST(Devices, AStreamOfAnotherDeviceIsWaitedFor) {
    sim::Config config;
    config.streams = sim::Streams::deferred;
    config.patience_ms = 1000;
    sim::configure(config);
    {
        World of_0;
        go(of_0.a, set_to, of_0.x, 3.0f);
        cudaMemcpyAsync(of_0.pinned, of_0.x, 128, cudaMemcpyDeviceToHost, of_0.a);
        cudaEventRecord(of_0.event, of_0.a);
        cudaSetDevice(1);
        EXPECT_EQ(cudaEventSynchronize(of_0.event), cudaSuccess);
        EXPECT_EQ(cudaStreamSynchronize(of_0.a), cudaSuccess);
        EXPECT_EQ(of_0.pinned[31], 3);
        cudaSetDevice(0);
    }
    sim::configure({});
    EXPECT_TRUE(sim::take_findings().empty());
}

}  // namespace
}  // namespace keel::on_cudasim
