// Runs on a simulated GPU beside runs on the CPU: the same start, checkpoints that move both ways, the same bits on every
// schedule of the simulator, and no code of the host that touches the device's memory.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "ckpt/checkpoint.h"
#include "engine/bench/bench.h"
#include "engine/run.h"
#include "engine/train.h"
#include "kernels/base/file.h"
#include "kernels/cudasim/config.h"
#include "kernels/cudasim/findings.h"
#include "kernels/cudasim/profiler.h"
#include "tests/engine/tiny.h"

namespace keel {
namespace {

namespace fs = std::filesystem;

class DeviceRun : public testing::Test {
protected:
    DeviceRun() {
        test::write_token_file(dir.path() / "a.tok", 61, 1500, 1);
        sim::Config sim;
        sim.host_faults = true;
        sim::configure(sim);
    }
    ~DeviceRun() override {
        sim::configure({});
        for (const sim::Finding& finding : sim::take_findings()) ADD_FAILURE() << finding.text;
    }
    Config config(const std::string& name, const std::string& device, const std::string& dtype = "bf16") const {
        Config c = test::tiny_config(dtype);
        c.model.layers = 2;
        c.run.dir = (dir.path() / name).string();
        c.run.threads = 1;
        c.run.device = device;
        c.data.train = {(dir.path() / "a.tok").string()};
        return c;
    }
    test::TempFolder dir;
};

// What a run holds, as the host sees it.
struct State {
    std::string param, master, m, v;
    bool operator==(const State&) const = default;
};
State state_of(Run& run) {
    run.model->fetch_state();
    const Model::HostState s = run.model->host_state();
    const auto text = [](const void* data, std::int64_t bytes) {
        return std::string(static_cast<const char*>(data), static_cast<std::size_t>(bytes));
    };
    return {text(s.param, run.model->params().flat_size * size_bytes(run.model->dtype())),
            text(s.master.data(), s.master.bytes()), text(s.m.data(), s.m.bytes()), text(s.v.data(), s.v.bytes())};
}
std::vector<double> go(Run& run, int steps) {
    std::vector<double> seen;
    for (int i = 0; i < steps; ++i) {
        const StepPlan plan = run.schedule.at(run.progress);
        const StepResult step = *train_step(run, plan);
        run.progress.advance(plan, step);
        seen.insert(seen.end(), {step.loss.sum, step.grad_norm});
    }
    return seen;
}
std::string newest(const keel::Run& run) {
    return (run.checkpoint_root() / concat("step-", std::string(7, '0'), run.progress.steps)).string();
}

TEST_F(DeviceRun, StartsWithTheBitsOfTheCpu) {
    for (const char* dtype : {"f32", "bf16"}) {
        keel::Run cpu(config(std::string("cpu") + dtype, "cpu", dtype)), gpu(config(std::string("gpu") + dtype, "cudasim", dtype));
        EXPECT_EQ(state_of(cpu), state_of(gpu)) << dtype;
    }
}

TEST_F(DeviceRun, CheckpointsMoveBothWaysToTheByte) {
    keel::Run cpu(config("cpu", "cpu"));
    go(cpu, 2);
    save_checkpoint(cpu);

    Config c = config("gpu", "cudasim");
    c.ckpt.resume = newest(cpu);
    keel::Run gpu(c);
    EXPECT_EQ(gpu.progress.steps, 2);
    EXPECT_EQ(state_of(gpu), state_of(cpu));
    save_checkpoint(gpu);  // the same state: the same bytes
    for (const char* file : {"weights.safetensors", "optimizer.safetensors"})
        EXPECT_EQ(read_file(fs::path(newest(gpu)) / file), read_file(fs::path(newest(cpu)) / file)) << file;
    go(gpu, 2);
    save_checkpoint(gpu);

    c = config("back", "cpu");
    c.ckpt.resume = newest(gpu);
    keel::Run back(c);
    EXPECT_EQ(back.progress.steps, 4);
    EXPECT_EQ(state_of(back), state_of(gpu));
    go(back, 1);
}

// What is written behind the training is the state of the step it was begun at.
TEST_F(DeviceRun, AnAsynchronousCheckpointHoldsTheStepItWasBegunAt) {
    Config c = config("async", "cudasim");
    c.ckpt.async = true;
    keel::Run run(c);
    go(run, 1);
    save_checkpoint(run);
    const State saved = state_of(run);
    const std::string path = newest(run);
    go(run, 1);
    tend_saves(run, false, true);
    Config again = config("again", "cpu");
    again.ckpt.resume = path;
    keel::Run cpu(again);
    EXPECT_EQ(state_of(cpu), saved);
}

TEST_F(DeviceRun, EverySchedulePutsTheSameBitsIntoLossesNormsAndWeights) {
    for (const bool tied : {false, true}) {
        std::vector<double> seen;
        State state;
        for (const int i : {0, 1, 2}) {
            sim::Config sim;
            sim.order = i == 0 ? sim::Order::warps_forward : sim::Order::random_lanes;
            sim.poison = i % 2 ? sim::Poison::finite : sim::Poison::nan;
            sim.async = i % 2 ? sim::Async::early : sim::Async::late;
            sim.streams = i == 1 ? sim::Streams::deferred : sim::Streams::immediate;
            sim.seed = static_cast<std::uint64_t>(i), sim.shuffle_blocks = i > 0, sim.host_faults = true;
            sim::configure(sim);
            Config c = config(concat("seed", tied, i), "cudasim");
            c.model.tied = tied;
            keel::Run run(c);
            const std::vector<double> now = go(run, 2);
            if (i == 0) seen = now, state = state_of(run);
            EXPECT_EQ(now, seen) << sim.text();
            EXPECT_EQ(state_of(run), state) << sim.text();
        }
    }
}

// A step's second time is captured, later ones are launched again on batches of their own; the batch grows in between. In
// deferred streams nothing happens before somebody waits, and a graph's nodes run in any order that its edges allow.
TEST_F(DeviceRun, AStepLaunchedAsAGraphHasTheBitsOfOneThatWasQueued) {
    for (const std::uint64_t seed : {1u, 2u, 3u}) {
        sim::Config sim;
        sim.order = sim::Order::random_warps, sim.streams = sim::Streams::deferred, sim.seed = seed, sim.host_faults = true;
        sim::configure(sim);
        Config c = config(concat("queued", seed), "cudasim");
        c.data.seq_len = 8;
        c.train.steps = 0, c.train.samples = 100, c.train.batch_ramp = {2, 2, 7}, c.train.micro_batch = 2;  // 2 2 2 4 4 4
        c.run.graph = false;
        keel::Run queued(c);
        c.run.graph = true, c.run.dir += " launched";
        keel::Run launched(c);
        EXPECT_EQ(go(queued, 6), go(launched, 6)) << seed;
        EXPECT_EQ(state_of(queued), state_of(launched)) << seed;
        EXPECT_EQ(queued.graph->nodes(), 0);
        EXPECT_GT(launched.graph->nodes(), 100);
    }
}

// Whatever ends a step amid its capture, the stream is as before, and the step can be run.
TEST(StepGraph, AStepThatIsGivenUpLeavesNothingCaptured) {
    const auto gpu = open_gpu(Device::cudasim);
    const auto queue = gpu->make_stream();
    Stream host(1);
    StepGraph graph(Backend(*gpu, *queue, host), true);
    std::byte* const data = gpu->allocate(64);
    const StepGraph::Size size{1, 1};
    const auto fill = [&] { return gpu->fill(*queue, data, 1, 64), true; };
    const auto refill = [] {};
    EXPECT_TRUE(graph.run(size, fill, refill));
    EXPECT_FALSE(graph.run(size, [&] { return fill(), false; }, refill));
    EXPECT_THROW(graph.run(size, [&]() -> bool { fail("amid the capture"); }, refill), Error);
    EXPECT_EQ(graph.nodes(), 0);
    queue->synchronize();
    EXPECT_TRUE(graph.run(size, fill, refill));
    EXPECT_EQ(graph.nodes(), 1);
    EXPECT_TRUE(graph.run(size, [&]() -> bool { fail("it has a graph"); }, refill));
    queue->synchronize();
    gpu->release(data);
}

// A profiler is told of the steps that were asked for, of their micro-batches and layers; of a graph, of the launch alone.
TEST_F(DeviceRun, AProfilerSeesTheStepsItWasAskedToSeeWithTheirParts) {
    Config c = config("profile", "cudasim");
    c.train.global_batch = 2, c.train.micro_batch = 2, c.data.seq_len = 8;
    c.profile.start = 2, c.profile.stop = 4;
    keel::Run run(c);
    go(run, 4);
    EXPECT_EQ(sim::take_profile(), (std::vector<std::string>{
        "step 2", "step 2/forward 0", "step 2/forward 0/layer 0", "step 2/forward 0/layer 1",
        "step 2/backward 0", "step 2/backward 0/layer 1", "step 2/backward 0/layer 0", "step 3"}));
}

// Seconds of a simulated GPU are no device's: neither a ceiling nor a datasheet is claimed for it. What is measured on a GPU can be
// run on it, though.
TEST_F(DeviceRun, NoShareOfAPeakIsClaimedForASimulatedGpu) {
    Config c = config("peak", "cudasim");
    keel::Run run(c);
    const Backend backend(*run.gpu, *run.queue, run.stream);
    EXPECT_EQ(matmul_peak(backend, Dtype::bf16, peak_product(backend, Dtype::bf16), false), 0);
    EXPECT_EQ(run.config.observe.device_peak, "");
    const SquareProduct product(backend, Dtype::bf16, 64, 2);
    product();
    EXPECT_EQ(product.flops(), 2.0 * 64 * 64 * 64 * 2);
    bench::Peaks peaks;
    peaks.products[static_cast<std::size_t>(Dtype::bf16)].n = 64;
    c.train.global_batch = c.train.micro_batch = 1, c.data.seq_len = 8;
    const auto queue = run.gpu->make_stream();  // the run's has its model
    const bench::StepTime step = bench::measure_step(Backend(*run.gpu, *queue, run.stream), {"tiny", c}, peaks, 1);
    EXPECT_GT(step.seconds.median_s, 0);
    EXPECT_EQ(step.tokens, 8);
}

// Another thread is another rank, and chooses anew; but for what it is told to take.
TEST_F(DeviceRun, ChoicesOfTheLibraryAreKeptInAFileAndTakenAgain) {
    Config c = config("products", "cudasim");
    const fs::path file = fs::path(c.run.dir) / "products.txt";
    const auto step = [&] {
        std::thread([&] {
            keel::Run run(c);
            go(run, 1);
            save_checkpoint(run);
        }).join();
        return read_file(file);
    };
    const std::string first = step();
    EXPECT_TRUE(first.starts_with("cublasLt ")) << first;
    EXPECT_NE(first.find(" on cudasim of 132 multiprocessors\n"), std::string::npos) << first;
    EXPECT_NE(first.find("\nbf16 to f32, "), std::string::npos) << first;
    std::string told = first;  // to promise less of an address than there is
    const auto at = told.find("0000000000000100", told.find(" | "));
    ASSERT_NE(at, std::string::npos) << first;
    told[at + 13] = '0', told[at + 14] = '4';
    write_file_atomically(file, told);
    c.ckpt.resume = "none";
    EXPECT_TRUE(step() == told);
    write_file_atomically(file, "cublasLt 1 on another\n" + told.substr(told.find('\n') + 1) + "no line\n");
    EXPECT_TRUE(step() == first);
}

// Forward alone computes what training computed: the loss of the step's own samples before the update, to the bit.
TEST_F(DeviceRun, EvaluationIsTheLossOfTraining) {
    Config c = config("eval", "cudasim");
    c.data.shuffle = false;
    keel::Run run(c);
    double loss = 0;
    const auto batch = [&](std::int64_t i) -> const Batch& { return run.loader.next(2 * i, 2); };
    const auto add = [&](double more) { loss += more; };
    run.executor->evaluate(2, batch, add);
    EXPECT_EQ(loss, go(run, 1)[0]);
}

std::string refusal(const Config& config) {
    try {
        keel::Run run(config);
    } catch (const Error& e) {
        return e.what();
    }
    return "";
}

TEST_F(DeviceRun, WhatADeviceCannotDoIsRefusedInOneLine) {
    Config c = config("f16", "cudasim");
    c.model.dtype = "f16";
    EXPECT_NE(refusal(c).find("--run.device cudasim computes in bf16 or f32; choose one by --model.dtype"), std::string::npos) << refusal(c);
    if (const auto why = why_no_gpu(Device::cuda)) {
        const std::string text = refusal(config("cuda", "cuda"));
        EXPECT_NE(text.find("--run.device cuda: " + *why + "; leave it out to train on the CPU"), std::string::npos) << text;
    }
}

}  // namespace
}  // namespace keel
