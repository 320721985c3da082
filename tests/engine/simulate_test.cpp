// The cluster simulator: against arithmetic by hand, and against the ten published runs of Narayanan et al. 2021
// (arXiv:2104.04473, table 1), whose achieved TFLOP/s per device it must meet with a single fitted number.
#include "engine/parallel/simulate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "engine/config_check.h"
#include "engine/presets.h"
#include "kernels/base/error.h"

using namespace keel;

namespace {

// --- The published runs

struct Published {
    double parameters;  // in 10^9
    int heads, hidden, layers, tp, pp, gpus, batch;
    double tflops;     // achieved per device
    double petaflops;  // achieved by all
};
constexpr Published published[] = {
    {1.7, 24, 2304, 24, 1, 1, 32, 512, 137, 4.4},           {3.6, 32, 3072, 30, 2, 1, 64, 512, 138, 8.8},
    {7.5, 32, 4096, 36, 4, 1, 128, 512, 142, 18.2},         {18.4, 48, 6144, 40, 8, 1, 256, 1024, 135, 34.6},
    {39.1, 64, 8192, 48, 8, 2, 512, 1536, 138, 70.8},       {76.1, 80, 10240, 60, 8, 4, 1024, 1792, 140, 143.8},
    {145.6, 96, 12288, 80, 8, 8, 1536, 2304, 148, 227.1},   {310.1, 128, 16384, 96, 8, 16, 1920, 2160, 155, 297.4},
    {529.6, 128, 20480, 105, 8, 35, 2520, 2520, 163, 410.2}, {1008.0, 160, 25600, 128, 8, 64, 3072, 3072, 163, 502.0},
};
constexpr double seq_len = 2048, vocab = 51200;

// The GPT of those runs as its ops of 2021 move it, in fp16, everything recomputed in backward. Scores are
// materialised: per head and (query, key) pair, forward writes a score, reads and writes it in softmax, reads and
// writes it with a mask in dropout, reads it once more (13 bytes); backward passes over them 19 bytes' worth.
// Elementwise, in units of hidden: two norms (read, write) and two bias-dropout-adds (read two, write one, half for the
// mask) on every tp rank, 11; GELU over 4 hidden and one copy of the heads' output, 10 over tp. Backward: 17 and 21.
ModelWork gpt_2021(const Published& run) {
    const double h = run.hidden, pairs = run.heads * seq_len;
    ModelWork w;
    w.layers = run.layers;
    w.forward = {.gemm_flops = 24 * h * h, .attention_flops = 4 * seq_len * h, .split_bytes = 2 * 10 * h + 13 * pairs,
                 .row_bytes = 2 * 11 * h, .weight_bytes = 2 * 12 * h * h, .tp_passes = 4, .cp_passes = 0};
    w.again = w.forward;
    w.backward = {.gemm_flops = 48 * h * h, .attention_flops = 8 * seq_len * h, .split_bytes = 2 * 21 * h + 19 * pairs,
                  .row_bytes = 2 * 17 * h, .weight_bytes = 6 * 12 * h * h, .tp_passes = 4, .cp_passes = 0};
    // Logits in fp16, turned to float, and six passes over them; backward reads, writes and rounds their gradient.
    w.head_forward = {.gemm_flops = 2 * h * vocab, .attention_flops = 0, .split_bytes = 34 * vocab, .row_bytes = 0,
                      .weight_bytes = 2 * h * vocab, .tp_passes = 0, .cp_passes = 0};
    w.head_backward = {.gemm_flops = 4 * h * vocab, .attention_flops = 0, .split_bytes = 14 * vocab, .row_bytes = 0,
                       .weight_bytes = 6 * h * vocab, .tp_passes = 2, .cp_passes = 0};
    w.block_parameters = 12 * h * h + 13 * h;
    w.embedding_parameters = (vocab + seq_len) * h;
    w.tied = true;
    w.hidden_bytes = 2 * h;
    w.grad_bytes = 2;       // reduced in fp16, on every replica
    w.optimizer_bytes = 48; // fp16 gradients to float, norm, float master and moments, fp16 parameters
    // Their count of operations, which includes recomputing and the whole of a causal square: the numerator of their
    // TFLOP/s.
    w.useful_flops = 96.0 * run.layers * h * h * (1 + seq_len / (6 * h) + vocab / (16 * run.layers * h));
    return w;
}

// The table gives tp, pp, devices and batch. Micro-batches (one sequence with a pipeline, four without) and chunks (the
// fewest that divide a stage's layers, or one) are our assumption; it makes little difference, and both are printed.
double predicted_tflops(const Published& run, bool interleaved) {
    Cluster cluster = parse_cluster("device=a100,gpus=8");
    cluster.gpus = run.gpus;
    ClusterLayout l;
    l.tp = run.tp;
    l.pp = run.pp;
    l.dp = run.gpus / (run.tp * run.pp);
    l.sequence = l.sharded = l.overlap = false;
    l.scattered_sends = l.blocking_sends = run.pp > 1;
    l.seq_len = static_cast<std::int64_t>(seq_len);
    l.micro_batch = run.pp > 1 ? 1 : 4;
    l.micro_batches = run.batch / l.dp / l.micro_batch;
    if (run.pp > 1 && interleaved)
        for (l.chunks = 2; run.layers / run.pp % l.chunks != 0;) ++l.chunks;
    l.schedule = pipeline_schedule("auto", run.pp, static_cast<int>(l.chunks));
    l.split = layer_split({.layers = run.layers, .stages = run.pp, .chunks = static_cast<int>(l.chunks)});
    return simulate_step(gpt_2021(run), l, cluster).mfu * cluster.tflops;
}

// --- A model small enough for arithmetic

// 1000 FLOP/s, 100 bytes/s, 10 bytes/s between devices of a node and 1 byte/s beyond.
Cluster toy(std::int64_t gpus, std::int64_t per_node) {
    return {.device = "toy",
            .gpus = gpus,
            .per_node = per_node,
            .tflops = 1e-9,
            .memory_gb = 1e-9,
            .hbm_gb = 100e-9 / Cluster::memory_share,
            .nvlink_gb = 10e-9 / Cluster::wire_share,
            .ib_gb = 1e-9 / Cluster::wire_share,
            .gemm = 1,
            .attention = 1};
}
ModelWork toy_work() {
    ModelWork w;
    w.layers = 2;
    w.forward = {.gemm_flops = 1000,
                 .attention_flops = 500,
                 .split_bytes = 20,
                 .row_bytes = 10,
                 .weight_bytes = 0,
                 .tp_passes = 4,
                 .cp_passes = 1};
    w.backward = {.gemm_flops = 2000,
                  .attention_flops = 1000,
                  .split_bytes = 40,
                  .row_bytes = 20,
                  .weight_bytes = 0,
                  .tp_passes = 4,
                  .cp_passes = 2};
    w.block_parameters = 100;
    w.embedding_parameters = 50;
    w.head_parameters = 50;
    w.hidden_bytes = 5;
    w.kv_bytes = 4;
    w.useful_flops = 9000;
    w.optimizer_bytes = 10;
    return w;
}
ClusterLayout toy_layout() {
    ClusterLayout l;
    l.seq_len = 1;
    l.sequence = false;
    l.overlap = false;
    l.split = layer_split({.layers = 2});
    return l;
}
constexpr double near = 1e-3;  // latency: at most 40 collectives of 10 us in these

}  // namespace

TEST(Simulate, ThePublishedTableIsConsistent) {
    for (const Published& run : published) {  // their formulas give their parameters and their aggregate
        const double h = run.hidden, l = run.layers;
        EXPECT_NEAR(12 * l * h * h * (1 + 13 / (12 * h) + (vocab + seq_len) / (12 * l * h)) / 1e9, run.parameters,
                    0.051);
        EXPECT_NEAR(run.tflops * run.gpus / 1e3, run.petaflops, 0.5 * run.gpus / 1e3 + 0.05);  // both are rounded
        EXPECT_EQ(run.gpus % (run.tp * run.pp), 0);
    }
}

TEST(Simulate, MeetsTenPublishedRunsWithOneFittedNumber) {
    std::printf(
        "parameters  devices  published  1f1b         interleaved   (TFLOP/s per A100; arXiv:2104.04473, table 1)\n");
    double mean = 0;
    for (const Published& run : published) {
        const double plain = predicted_tflops(run, false), chunked = predicted_tflops(run, true);
        std::printf("%8.1f B  %7d  %9.0f  %5.1f %+5.1f %%  %5.1f %+5.1f %%\n", run.parameters, run.gpus, run.tflops,
                    plain, 100 * (plain / run.tflops - 1), chunked, 100 * (chunked / run.tflops - 1));
        // What is measured here is the model; docs/parallelism.md states these errors.
        EXPECT_LT(std::fabs(plain / run.tflops - 1), 0.06);
        EXPECT_LT(std::fabs(chunked / run.tflops - 1), 0.06);
        mean += std::log(chunked / run.tflops) / 10;
    }
    EXPECT_LT(std::fabs(mean), 0.005);  // the fit: gemm of the a100 in known_devices()
}

TEST(Simulate, OneDeviceIsTheSumOfItsWork) {
    const StepForecast f = simulate_step(toy_work(), toy_layout(), toy(1, 1));
    // Two blocks: (3000 + 1500) / 1000 s of products and (60 + 30) / 100 s of memory each; 300 parameters x 10 bytes /
    // 100.
    EXPECT_NEAR(f.times.gemm, 6, 1e-9);
    EXPECT_NEAR(f.times.attention, 3, 1e-9);
    EXPECT_NEAR(f.times.memory, 1.8, 1e-9);
    EXPECT_NEAR(f.times.optimizer, 30, 1e-9);
    EXPECT_NEAR(f.step_s, 40.8, 1e-9);
    EXPECT_NEAR(f.tokens_per_s, 1 / 40.8, 1e-9);
    EXPECT_NEAR(f.mfu, 9000 / (40.8 * 1000), 1e-9);
    EXPECT_NEAR(f.times.sum(), f.step_s, 1e-9);
}

TEST(Simulate, TensorParallelRanksShareTheWorkAndMeet) {
    ClusterLayout l = toy_layout();
    l.tp = 2;
    StepForecast f = simulate_step(toy_work(), l, toy(2, 2));
    EXPECT_NEAR(f.times.gemm, 3, 1e-9);
    EXPECT_NEAR(f.times.memory, (30 + 30) / 100.0 * 2, 1e-9);   // rows are not cut
    EXPECT_NEAR(f.times.tp, 2 * 8 * 5 * 0.5 / 10, near);        // 8 passes a block of half of 5 bytes over 10 bytes/s
    l.sequence = true;
    f = simulate_step(toy_work(), l, toy(2, 2));
    EXPECT_NEAR(f.times.memory, (30 + 15) / 100.0 * 2, 1e-9);
    f = simulate_step(toy_work(), l, toy(2, 1));  // on two nodes: a tenth of the rate
    EXPECT_NEAR(f.times.tp, 2 * 8 * 5 * 0.5 / 1, near);
}

TEST(Simulate, DataParallelRanksReduceAndGatherAndHideWhatTheyCan) {
    ClusterLayout l = toy_layout();
    l.dp = 2;
    StepForecast f = simulate_step(toy_work(), l, toy(2, 2));
    // 300 parameters: 4 bytes reduced and 2 gathered, half of each sent over 10 bytes/s; half of the optimizer each.
    EXPECT_NEAR(f.times.dp, 300 * 6 * 0.5 / 10, near);
    EXPECT_NEAR(f.times.optimizer, 15, 1e-9);
    l.sharded = false;  // all-reduce, and everything updated everywhere
    f = simulate_step(toy_work(), l, toy(2, 2));
    EXPECT_NEAR(f.times.dp, 300 * 4 * 2 * 0.5 / 10, near);
    EXPECT_NEAR(f.times.optimizer, 30, 1e-9);
    l.sharded = l.overlap = true;
    l.bucket = 100;  // three: two thirds may hide, behind 7.2 s of backward and 3.6 s of forward
    f = simulate_step(toy_work(), l, toy(2, 2));
    EXPECT_NEAR(f.dp_hidden_s, 7.2 + 3.6, near);
    EXPECT_NEAR(f.times.dp, 90 - 10.8, near);
    EXPECT_NEAR(f.times.sum(), f.step_s, 1e-9);
}

TEST(Simulate, ContextParallelRanksPassKeysAndValues) {
    ClusterLayout l = toy_layout();
    l.cp = 2;
    l.seq_len = 2;
    const StepForecast f = simulate_step(toy_work(), l, toy(2, 2));
    EXPECT_NEAR(f.times.gemm, 6, 1e-9);                 // one token each
    EXPECT_NEAR(f.times.cp, 2 * 3 * 4 * 1.0 / 10, near);  // three passes a block of the other rank's 4 bytes
}

TEST(Simulate, AStageIdlesForTheBubbleItsTablesHave) {
    ClusterLayout l = toy_layout();
    l.pp = 2;
    l.schedule = PipelineSchedule::one_f_one_b;
    l.micro_batches = 4;
    l.split = layer_split({.layers = 2, .stages = 2});
    ModelWork work = toy_work();
    work.hidden_bytes = work.optimizer_bytes = 0;
    StepForecast f = simulate_step(work, l, toy(2, 2));
    EXPECT_NEAR(f.bubble, 0.25, 1e-9);          // (stages - 1) / micro-batches
    EXPECT_NEAR(f.step_s, 5 * 5.4, near);
    EXPECT_NEAR(f.times.idle, 5.4, near);
    EXPECT_NEAR(f.times.sum(), f.step_s, 1e-9);
    work.hidden_bytes = 10;                     // a send takes 1 s: a micro-batch goes there and back
    f = simulate_step(work, l, toy(2, 2));
    EXPECT_GT(f.step_s, 5 * 5.4 + 2 - near);
    EXPECT_NEAR(f.bubble, 0.25, 1e-9);
    const double free_running = f.step_s;
    l.blocking_sends = true;
    EXPECT_GT(simulate_step(work, l, toy(2, 2)).step_s, free_running);
}

TEST(Simulate, CountsKeelsOwnOpsLikeFlopsDo) {
    ModelSection model;
    apply_preset(model, "llama-3-8b");
    resolve_model(model);
    const ModelWork w = model_work(model, 8192, "none", true);
    // Six FLOPs per weight and token, the head included: 45 027 950 592, and the causal half of attention.
    EXPECT_EQ(32 * (w.forward.gemm_flops + w.backward.gemm_flops) + w.head_backward.gemm_flops, 45'027'950'592.0);
    EXPECT_EQ(32 * w.forward.attention_flops * 3, 786'432.0 * 8192);
    EXPECT_EQ(w.useful_flops, 51'470'401'536.0);
    EXPECT_EQ(32 * w.block_parameters + w.embedding_parameters + w.head_parameters, 8'030'261'248.0);
    EXPECT_EQ(w.again.gemm_flops, 0);
    // Each policy computes again what the one before it does, and more.
    double before = -1;
    for (const char* policy : {"none", "swiglu", "norms", "attention", "block"}) {
        const PassWork again = model_work(model, 8192, policy, true).again;
        const double sum = again.gemm_flops + again.attention_flops + again.split_bytes + again.row_bytes;
        EXPECT_GT(sum, before) << policy;
        before = sum;
    }
    const PassWork block = model_work(model, 8192, "block", true).again;
    EXPECT_EQ(block.gemm_flops, w.forward.gemm_flops - 2.0 * 4096 * 14336);  // all but the last product
}

TEST(Simulate, StaysBelowTheSpeedOfLight) {
    // One H200, Llama-3-8B on 8192 tokens: 790 TFLOP/s and all other ops at bandwidth allow 74 % of 989 TFLOP/s.
    ModelSection model;
    apply_preset(model, "llama-3-8b");
    resolve_model(model);
    ClusterLayout l;
    l.seq_len = 8192;
    l.dp = 8;
    l.micro_batches = 8;
    l.bucket = 40e6;
    l.split = layer_split({.layers = 32});
    const StepForecast f = simulate_step(model_work(model, 8192, "none", true), l, parse_cluster("gpus=8,device=h200"));
    EXPECT_LT(f.mfu, 0.74);
    EXPECT_GT(f.mfu, 0.45);
}

TEST(Simulate, SaysWhatItFound) {
    ClusterLayout l = toy_layout();
    l.dp = 2;
    const Cluster cluster = toy(2, 2);
    const std::string text = forecast_text(simulate_step(toy_work(), l, cluster), l, cluster);
    EXPECT_NE(text.find("layout       tp 1, cp 1, dp 2, pp 1 (none), 1 micro-batch of 1 x 1 tokens per replica\n"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("  dp                 90 s   77.7 %  gradients and parameters, not hidden; hidden 0 s\n"),
              std::string::npos)
        << text;
    EXPECT_EQ(text.find("idle"), std::string::npos);
}

TEST(Cluster, ReadsWhatIsGivenAndTakesTheRestFromTheDevice) {
    const Cluster c = parse_cluster("gpus=3072,device=a100,ib=12.5,gemm=0.5");
    EXPECT_EQ(c.gpus, 3072);
    EXPECT_EQ(c.per_node, 8);
    EXPECT_EQ(c.tflops, 312);
    EXPECT_EQ(c.ib_gb, 12.5);
    EXPECT_EQ(c.gemm, 0.5);
    EXPECT_EQ(parse_cluster("gpus=16").device, "h100");
    EXPECT_EQ(parse_cluster("gpus=16,device=h200").memory_gb, 141);
}

TEST(Cluster, KnowsWhichWiresAGroupUses) {
    const Cluster c = parse_cluster("gpus=64,device=a100");
    EXPECT_DOUBLE_EQ(c.wire(1, 8), 240e9);   // inside of a node
    EXPECT_DOUBLE_EQ(c.wire(8, 4), 20e9);    // one member per node
    EXPECT_DOUBLE_EQ(c.wire(2, 32), 80e9);   // four members per node share their wires
    EXPECT_DOUBLE_EQ(c.wire(1, 64), 160e9);  // eight: still less than NVLink
}

TEST(Cluster, RefusesWhatItCannotRead) {
    const auto refusal = [](const std::string& text) -> std::string {
        try {
            parse_cluster(text);
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ExitCode::usage);
            return error.what();
        }
        return "accepted";
    };
    EXPECT_EQ(refusal("gpu=8"), "--cluster: there is no \"gpu\"; did you mean gpus?");
    EXPECT_EQ(refusal("device=h100"), "--cluster needs gpus, as in gpus=64,device=h100");
    EXPECT_EQ(refusal("gpus=8,device=h900"),
              "--cluster: device=h900 is not one of a100, h100, h200; take the nearest and change its tflops, memory, "
              "hbm, nvlink, "
              "ib and gemm");
    EXPECT_EQ(refusal("gpus=8.5"), "--cluster: gpus=8.5 is not a whole number up to 10 000 000");
    EXPECT_EQ(refusal("gpus=8,ib=fast"), "--cluster: ib=fast is not a number greater than 0");
    EXPECT_EQ(refusal("gpus=8,gemm=1.5"), "--cluster: gemm=1.5 is a share of tflops; it is at most 1");
    EXPECT_EQ(refusal(""), "--cluster \"\": \"\" is not name=value; write for example gpus=64,device=h100");
    EXPECT_EQ(refusal("gpus=8,"),
              "--cluster \"gpus=8,\": \"\" is not name=value; write for example gpus=64,device=h100");
    ClusterLayout l = toy_layout();
    l.tp = 3;
    EXPECT_THROW(simulate_step(toy_work(), l, toy(4, 4)), Error);
}
