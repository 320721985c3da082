// Nothing is allocated in a step: every heap allocation of the process, on every thread, is counted over ten steps.
// malloc and its kin are replaced in this binary, so what libraries allocate counts too.
#include <gtest/gtest.h>

#include <fstream>

#include "comm/threads.h"
#include "engine/run.h"
#include "engine/train.h"
#include "kernels/cudasim/config.h"
#include "kernels/cudasim/counters.h"
#include "tests/count_allocations.h"
#include "tests/engine/tiny.h"

namespace keel {
namespace {

std::int64_t resident_bytes() {
    std::ifstream statm("/proc/self/statm");
    std::int64_t total = 0, resident = 0;
    statm >> total >> resident;
    return resident * 4096;
}

TEST(Step, AllocatesNothingOnAnyThread) {
    test::TempFolder dir;
    test::write_token_file(dir.path() / "a.tok", 61, 4000, 1);
    for (const char* dtype : {"f32", "bf16", "f16"})
        for (const char* policy : {"none", "block"}) {
            Config config = test::tiny_config(dtype);
            config.model.qk_norm = config.model.qkv_bias = true;
            config.model.post_norm = config.model.qk_norm_whole = std::string(policy) == "block";
            config.memory.recompute = policy;
            config.data.train = {(dir.path() / "a.tok").string()};
            config.data.split = {0.8, 0.2, 0};
            config.run.dir = (dir.path() / (std::string(dtype) + policy)).string();
            config.run.threads = 2;
            config.watch.heartbeat_s = 0.001;  // who watches does not allocate, either
            keel::Run run(config);
            Watch watch(run.ranks.world);
            record_start(run);
            const auto step = [&] {
                const StepPlan plan = run.schedule.at(run.progress);
                const StepResult result = *train_step(run, plan, &watch);
                run.progress.advance(plan, result);
                record_step(run, plan, result);
                watch.decide(false, "");
            };
            step();
            const long before = allocations();
            for (int i = 0; i < 10; ++i) step();
            EXPECT_EQ(allocations() - before, 0) << dtype << " " << policy;
            evaluate(run);
            const long before_eval = allocations();
            evaluate(run);
            EXPECT_EQ(allocations() - before_eval, 0) << dtype << " " << policy;
        }
}

// Nor do ranks: collectives, messages between stages, the thread that communicates beside, exact sums, comparing their times.
TEST(Step, OfManyRanksAllocatesNothingOnAnyThread) {
    test::TempFolder dir;
    test::write_token_file(dir.path() / "a.tok", 61, 4000, 1);
    for (const char* sum : {"float", "exact"}) {
        Config config = test::tiny_config("bf16");
        config.model.layers = 4, config.model.tied = true;
        config.data.train = {(dir.path() / "a.tok").string()};
        config.run.dir = (dir.path() / sum).string();
        config.run.threads = 1, config.train.micro_batch = 1;
        config.parallel.tp = config.parallel.pp = config.parallel.dp = 2;
        config.parallel.vocab_multiple = 1, config.parallel.bucket = 2000;
        config.numerics.grad_sum = sum, config.observe.timers = "fine";
        long grown = 0;
        run_threads(8, {.deadline_s = 60}, [&](World& world) {
            keel::Run run(config, &world);
            Watch watch(run.ranks.world);
            record_start(run);
            const auto step = [&] {
                const StepPlan plan = run.schedule.at(run.progress);
                const StepResult result = *train_step(run, plan, &watch);
                run.progress.advance(plan, result);
                record_step(run, plan, result);
                watch.decide(false, "");
            };
            for (int i = 0; i < 3; ++i) step();  // as many messages under way as there will ever be
            run.ranks.world.barrier();
            const long before = allocations();
            run.ranks.world.barrier();
            for (int i = 0; i < 5; ++i) step();
            run.ranks.world.barrier();
            if (world.rank() == 0) grown = allocations() - before;
            run.ranks.world.barrier();
        });
        EXPECT_EQ(grown, 0) << sum;
    }
}

// Nor does a step on a GPU, queued or launched as a graph, on the host, on the device or in pinned memory. What the simulator
// itself takes to play a GPU is not counted.
TEST(Step, OnAGpuAllocatesNothingOnHostOrDevice) {
    test::TempFolder dir;
    test::write_token_file(dir.path() / "a.tok", 61, 4000, 1);
    not_counted = sim::InModel::here;
    for (const bool graph : {false, true}) {
        Config config = test::tiny_config("bf16");
        config.model.layers = 1, config.model.tied = true, config.data.seq_len = 8;
        config.data.train = {(dir.path() / "a.tok").string()};
        config.run.dir = (dir.path() / (graph ? "graph" : "queue")).string();
        config.run.threads = 1, config.run.device = "cudasim", config.run.graph = graph;
        keel::Run run(config);
        Watch watch(run.ranks.world);
        const auto step = [&] {
            const StepPlan plan = run.schedule.at(run.progress);
            run.progress.advance(plan, *train_step(run, plan, &watch));
            watch.decide(false, "");
        };
        for (int i = 0; i < 3; ++i) step();
        const long before = allocations();
        sim::take_counters();
        for (int i = 0; i < 3; ++i) step();
        EXPECT_EQ(allocations() - before, 0) << "graph " << graph;
        const sim::Counters counted = sim::take_counters();
        EXPECT_EQ(counted.allocations, 0) << "graph " << graph;
        EXPECT_GT(counted.launches, 100);
    }
    not_counted = nullptr;
}

// The counter counts: without this the test above could pass by counting nothing.
TEST(Step, AllocationsAreCounted) {
    const long before = allocations();
    auto* p = new int(1);
    EXPECT_GT(allocations(), before);
    delete p;
}

// The process holds the arena, and beside it 4 MiB per thread of workspace and what the program and its libraries need.
TEST(Step, ProcessMemoryStaysWithinAMarginOfThePlan) {
    test::TempFolder dir;
    test::write_token_file(dir.path() / "a.tok", 61, 200000, 1);
    Config config = test::tiny_config("bf16");
    config.model.hidden = 256, config.model.head_dim = 64, config.model.ffn = 1024, config.model.layers = 8;
    config.data.seq_len = 1024;
    config.train.steps = 2;
    config.data.train = {(dir.path() / "a.tok").string()};
    config.run.dir = (dir.path() / "run").string();
    const std::int64_t before = resident_bytes();
    keel::Run run(config);
    for (int i = 0; i < 2; ++i) train_step(run, run.schedule.at(run.progress));
    const std::int64_t grown = resident_bytes() - before, planned = run.model->plan().peak_bytes();
    const std::int64_t beside = run.stream.threads() * run.stream.workspace_bytes() + (16 << 20);
    EXPECT_LE(grown, planned + beside) << "planned " << planned;
    EXPECT_GE(grown, planned - (4 << 20)) << "the arena is touched whole";
}

}  // namespace
}  // namespace keel
