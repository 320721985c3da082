// Everything that can be refused before work begins is, by a message that names the flags, the numbers and the fix.
#include "engine/config_check.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "engine/config_io.h"
#include "engine/parallel/layout.h"
#include "engine/schedule.h"
#include "kernels/base/error.h"

using namespace keel;

namespace {

Config good() {
    Config c;
    c.model.vocab = 1000;
    c.model.hidden = 64;
    c.model.layers = 2;
    c.model.heads = 4;
    c.model.ffn = 128;
    c.data.train = {"a.tok"};
    c.data.seq_len = 32;
    c.train.samples = 100;
    c.train.global_batch = 8;
    c.train.micro_batch = 2;
    c.run.dir = "run";
    return c;
}

std::string refusal(const std::function<void(Config&)>& spoil) {
    Config c = good();
    spoil(c);
    try {
        resolve_and_validate(c);
    } catch (const Error& error) {
        EXPECT_EQ(static_cast<int>(error.code()), 2);
        return error.what();
    }
    return "accepted";
}

#define EXPECT_REFUSED(statement, text) EXPECT_EQ(refusal([](Config& c) { statement; }), text)

}  // namespace

TEST(ConfigCheck, FillsWhatFollowsFromTheRest) {
    Config c = good();
    c.train.micro_batch = 0;
    resolve_and_validate(c);
    EXPECT_EQ(c.model.kv_heads, 4);
    EXPECT_EQ(c.model.head_dim, 16);
    EXPECT_EQ(c.train.micro_batch, 8);
    EXPECT_EQ(c.train.steps, 13);

    c = good();
    c.train.samples = 0;
    c.train.steps = 7;
    c.train.batch_ramp = {4, 2, 20};
    resolve_and_validate(c);
    EXPECT_EQ(c.train.samples, 40);  // 4 4 4 6 6 8 8: the ramp is followed, not 7 * 8

    c = good();
    c.model = ModelSection();
    c.model.preset = "smollm2-135m";
    resolve_and_validate(c);
    EXPECT_EQ(c.model.hidden, 576);
    EXPECT_EQ(c.model.kv_heads, 3);
}

TEST(ConfigCheck, AResolvedConfigurationResolvesToItself) {
    for (const bool by_steps : {false, true}) {
        Config c = good();
        c.train.batch_ramp = {4, 2, 20};
        if (by_steps) c.train.samples = 0, c.train.steps = 9;
        resolve_and_validate(c);
        const std::string once = to_toml(c);
        Config again = from_toml(once);
        resolve_and_validate(again);
        EXPECT_EQ(to_toml(again), once);
    }
}

TEST(ConfigCheck, RefusesImpossibleShapes) {
    EXPECT_REFUSED(c.model.hidden = 0, "--model.hidden is 0; give a size of at least 1, or a --model.preset");
    EXPECT_REFUSED(c.model.layers = 0, "--model.layers is 0; give a size of at least 1, or a --model.preset");
    EXPECT_REFUSED(c.model.heads = -1, "--model.heads is -1; give a size of at least 1, or a --model.preset");
    EXPECT_REFUSED(c.model.ffn = 1LL << 40, "--model.ffn is 1099511627776; the largest size keel takes is 2147483647");
    EXPECT_REFUSED(c.model.vocab = -1, "--model.vocab is -1; it must be at least 0");
    EXPECT_REFUSED(c.model.vocab = 1LL << 31, "--model.vocab is 2147483648; token ids are 32-bit, at most 2147483647");
    EXPECT_REFUSED(c.model.kv_heads = -1, "--model.kv_heads is -1; it must be at least 0");
    EXPECT_REFUSED(c.model.head_dim = -2, "--model.head_dim is -2; it must be at least 0");
    EXPECT_REFUSED(c.model.heads = 5,
                   "--model.hidden 64 is not a multiple of --model.heads 5; change one of them, or give --model.head_dim");
    EXPECT_REFUSED(c.model.heads = 64,
                   "the head dimension is 1 (--model.head_dim, or --model.hidden 64 / --model.heads 64); "
                   "rotary positions pair its elements, so it must be even");
    EXPECT_REFUSED(c.model.kv_heads = 3,
                   "--model.heads 4 is not a multiple of --model.kv_heads 3; every key head serves equally many query heads");
    EXPECT_REFUSED((c.model.heads = 1 << 30, c.model.head_dim = 4),
                   "--model.heads 1073741824 of --model.head_dim 4 make rows of more than 2147483647 elements");
    EXPECT_REFUSED((c.model.hidden = 1024, c.model.heads = 2),
                   "the head dimension is 512 (--model.head_dim, or --model.hidden 1024 / --model.heads 2); attention takes at "
                   "most 256: give more --model.heads");
    EXPECT_REFUSED(c.model.layers = 2'000'000'000, "--model.layers is 2000000000; it must be at most 1024");
    EXPECT_REFUSED((c.model.hidden = c.model.ffn = 1 << 30, c.model.head_dim = 16),
                   "the shape has about 6.91753e+18 parameters (--model.layers 2, --model.hidden 1073741824, "
                   "--model.ffn 1073741824); keel counts up to 1e15");
    EXPECT_REFUSED(c.model.dtype = "fp16", "--model.dtype is \"fp16\"; did you mean f16? Choices are bf16, f16, f32");
    EXPECT_REFUSED(c.model.norm_eps = 0, "--model.norm_eps is 0; it must be greater than 0");
    EXPECT_REFUSED(c.model.norm_eps = std::numeric_limits<double>::quiet_NaN(), "--model.norm_eps is nan; it must be greater than 0");
    EXPECT_REFUSED(c.model.init_std = -1, "--model.init_std is -1; it must be at least 0");
    EXPECT_REFUSED(c.model.window = -1, "--model.window is -1; it must be at least 0");
}

TEST(ConfigCheck, RefusesContradictoryRope) {
    EXPECT_REFUSED(c.model.rope_scaling = "lama3",
                   "--model.rope_scaling is \"lama3\"; did you mean llama3? Choices are none, linear, llama3, yarn, longrope");
    EXPECT_REFUSED(c.model.rope_base = 0, "--model.rope_base is 0; it must be above 1 (10000 is usual)");
    EXPECT_REFUSED(c.model.rope_base = 1, "--model.rope_base is 1; it must be above 1 (10000 is usual)");
    EXPECT_REFUSED(c.model.rope_factor = 8,
                   "--model.rope_factor 8 has no effect while --model.rope_scaling is none; choose linear, llama3, yarn or "
                   "longrope, or leave the factor at 1");
    EXPECT_REFUSED((c.model.rope_scaling = "linear", c.model.rope_factor = 0.5),
                   "--model.rope_factor is 0.5; it must be at least 1");
    EXPECT_REFUSED((c.model.rope_scaling = "llama3", c.model.rope_factor = 8),
                   "--model.rope_scaling llama3 needs --model.rope_original_max_position, the context length that the "
                   "frequencies were made for");
    EXPECT_REFUSED((c.model.rope_scaling = "llama3", c.model.rope_original_max_position = 8192, c.model.rope_low_freq_factor = 4),
                   "--model.rope_high_freq_factor 4 must be greater than --model.rope_low_freq_factor 4");
    EXPECT_REFUSED((c.model.rope_scaling = "llama3", c.model.rope_original_max_position = 8192, c.model.rope_low_freq_factor = 0),
                   "--model.rope_low_freq_factor is 0; it must be greater than 0");
    EXPECT_REFUSED((c.model.rope_scaling = "yarn", c.model.rope_original_max_position = 8192, c.model.rope_beta_fast = 1),
                   "--model.rope_beta_fast 1 must be greater than --model.rope_beta_slow 1");
    EXPECT_REFUSED((c.model.rope_scaling = "yarn", c.model.rope_original_max_position = 8192, c.model.rope_beta_slow = 0),
                   "--model.rope_beta_slow is 0; it must be greater than 0");
    EXPECT_REFUSED((c.model.rope_scaling = "yarn", c.model.rope_original_max_position = 8192, c.model.rope_attention_factor = -1),
                   "--model.rope_attention_factor is -1; it must be 0 (choose) or the factor itself");
    EXPECT_REFUSED(c.model.rope_fraction = 0.45,
                   "--model.rope_fraction 0.45 of a head of 16 elements is 7; rotary positions pair them, so it must be even "
                   "and at least 2");
    EXPECT_REFUSED(c.model.rope_fraction = 1.5, "--model.rope_fraction is 1.5; it must be more than 0 and at most 1");
    EXPECT_REFUSED(c.model.rope_long_factors = {1},
                   "--model.rope_short_factors and --model.rope_long_factors have no effect while --model.rope_scaling is none; "
                   "choose longrope, or leave them out");
    EXPECT_REFUSED((c.model.rope_scaling = "longrope", c.model.rope_original_max_position = 64, c.model.rope_short_factors = {1, 2}),
                   "--model.rope_short_factors has 2 numbers; longrope needs one for each of the 8 pairs of a head");
    EXPECT_REFUSED((c.model.rope_scaling = "longrope", c.model.rope_original_max_position = 64, c.model.rope_fraction = 0.25,
                    c.model.rope_short_factors = {1, 2}, c.model.rope_long_factors = {1, 0}),
                   "--model.rope_long_factors is 0; it must be greater than 0");
    EXPECT_REFUSED(c.model.qk_norm_whole = true,
                   "--model.qk_norm_whole true says how q and k are normalised, and needs --model.qk_norm true");
}

TEST(ConfigCheck, RefusesContradictoryLengthsAndBatches) {
    EXPECT_REFUSED(c.train.samples = 0, "the length of the run is missing: give --train.steps or --train.samples");
    EXPECT_REFUSED(c.train.steps = 5,
                   "--train.samples 100 takes 13 steps, but --train.steps is 5; give only one of them");
    EXPECT_REFUSED(c.train.samples = -1, "--train.samples is -1; it must be at least 0");
    EXPECT_REFUSED(c.train.steps = -1, "--train.steps is -1; it must be at least 0");
    EXPECT_REFUSED(c.train.samples = std::numeric_limits<std::int64_t>::max(),
                   "--train.samples is 9223372036854775807; it must be at most 9007199254740992");
    EXPECT_REFUSED((c.train.samples = 0, c.train.steps = std::int64_t{1} << 55),
                   "--train.samples is 288230376151711744; it must be at most 9007199254740992");
    EXPECT_REFUSED(c.train.global_batch = std::int64_t{1} << 62,
                   "--train.global_batch is 4611686018427387904; it must be at most 2147483647");
    EXPECT_REFUSED(c.train.micro_batch = 16,
                   "--train.micro_batch 16 is more than --train.global_batch 8, the samples of a whole step");
    // The start of a ramp becomes the micro-batch where none is given.
    EXPECT_REFUSED((c.train.micro_batch = 0, c.train.batch_ramp = {0, 2, 20}),
                   "--train.batch_ramp starts at 0 samples per step; it must start between 1 and --train.global_batch 8");
    EXPECT_REFUSED((c.train.samples = 0, c.train.steps = std::numeric_limits<std::int64_t>::max()),
                   "--train.steps 9223372036854775807 of --train.global_batch 8 samples are more than a 64-bit count of "
                   "samples holds; shorten the run");
    EXPECT_REFUSED((c.train.global_batch = 0, c.train.micro_batch = 0),
                   "the batch is missing: give --train.global_batch, the samples per optimizer step");
    EXPECT_REFUSED(c.train.global_batch = -8, "--train.global_batch is -8; it must be at least 0");
    EXPECT_REFUSED(c.train.micro_batch = -1, "--train.micro_batch is -1; it must be at least 0");
    EXPECT_REFUSED(c.train.micro_batch = 3,
                   "--train.global_batch 8 is not a multiple of --train.micro_batch 3; 6 and 9 are the nearest that are");
    EXPECT_REFUSED((c.train.batch_schedule = {"0:4", "64:8"}, c.train.batch_ramp = {4, 2, 20}),
                   "--train.batch_schedule and --train.batch_ramp both say how the batch grows; give one");
    EXPECT_REFUSED((c.train.batch_schedule = {"0:4", "64:16"}),
                   "--train.batch_schedule ends with steps of 16 samples, and --train.global_batch is 8; leave that out");
    EXPECT_REFUSED((c.train.batch_schedule = {"0:3", "64:8"}),
                   "--train.batch_schedule comes to steps of 3 samples, which is not a multiple of --train.micro_batch 2");
    EXPECT_REFUSED((c.parallel.dp = 4, c.train.batch_schedule = {"0:4", "64:8"}),
                   "--train.batch_schedule comes to steps of 4 samples, which is not a multiple of --train.micro_batch 2 x 4 replicas (--parallel.dp)");
    EXPECT_REFUSED((c.optim.weight_decay_schedule = "square"), "--optim.weight_decay_schedule is \"square\"; choices are linear, cosine");
    EXPECT_REFUSED((c.train.batch_ramp = {4, 2}),
                   "--train.batch_ramp takes three numbers, start increment ramp_samples, but got 2");
    EXPECT_REFUSED((c.train.batch_ramp = {0, 2, 20}),
                   "--train.batch_ramp starts at 0 samples per step; it must start between 1 and --train.global_batch 8");
    EXPECT_REFUSED((c.train.batch_ramp = {10, 2, 20}),
                   "--train.batch_ramp starts at 10 samples per step; it must start between 1 and --train.global_batch 8");
    EXPECT_REFUSED((c.train.batch_ramp = {4, 0, 20}), "--train.batch_ramp has increment 0; it must be at least 1");
    EXPECT_REFUSED((c.train.batch_ramp = {4, 2, -1}), "--train.batch_ramp lasts -1 samples; it cannot be negative");
    EXPECT_REFUSED((c.train.batch_ramp = {4, 3, 20}),
                   "--train.batch_ramp 4 3 20 never arrives at --train.global_batch 8: 4 is not a multiple of 3");
    EXPECT_REFUSED((c.train.batch_ramp = {1, 7, 20}),
                   "--train.batch_ramp starts at 1, which is not a multiple of --train.micro_batch 2");
    EXPECT_REFUSED((c.train.micro_batch = 4, c.train.batch_ramp = {4, 2, 20}),
                   "--train.batch_ramp grows by 2, which is not a multiple of --train.micro_batch 4");
    EXPECT_REFUSED((c.train.micro_batch = c.train.global_batch = 1 << 20, c.data.seq_len = 1 << 20),
                   "--train.micro_batch 1048576 of --data.seq_len 1048576 tokens is more than 2147483647 tokens at once; "
                   "lower --train.micro_batch, and keep --train.global_batch");
    EXPECT_REFUSED(c.train.seed = 1ULL << 63, "--train.seed is 9223372036854775808; the largest is 9223372036854775807");
    EXPECT_REFUSED(c.train.log_interval = 0, "--train.log_interval is 0; it must be at least 1");
    EXPECT_REFUSED(c.train.eval_samples = -1, "--train.eval_samples is -1; it must be at least 0");
    EXPECT_REFUSED(c.train.eval_interval = -1, "--train.eval_interval is -1; it must be at least 0");
    EXPECT_REFUSED(c.train.eval_interval = 10,
                   "--train.eval_interval 10 has nothing to evaluate on: give --data.valid, or a second part of --data.split");
}

TEST(ConfigCheck, RefusesContradictorySchedules) {
    EXPECT_REFUSED(c.optim.schedule = "cosin",
                   "--optim.schedule is \"cosin\"; did you mean cosine? Choices are constant, linear, cosine, inverse_sqrt, wsd");
    EXPECT_REFUSED(c.optim.wsd_decay = "sqrt",
                   "--optim.wsd_decay is \"sqrt\"; choices are linear, cosine, exponential, minus_sqrt");
    EXPECT_REFUSED(c.optim.lr = 0, "--optim.lr is 0; it must be greater than 0");
    EXPECT_REFUSED(c.optim.loss_scale = "1024", "--optim.loss_scale 1024 is for --model.dtype f16; gradients in bf16 have all the "
                   "exponents they need: leave it out");
    EXPECT_REFUSED(c.optim.loss_scale_window = 10, "--optim.loss_scale_window 10 is for --model.dtype f16; gradients in bf16 have all the exponents they need: leave "
                   "it out");
    EXPECT_REFUSED((c.model.dtype = "f16", c.optim.loss_scale = "dynamite"),
                   "--optim.loss_scale is \"dynamite\"; it must be dynamic, or a number such as 1024");
    EXPECT_REFUSED((c.model.dtype = "f16", c.optim.loss_scale = "0"), "--optim.loss_scale is 0; it must be from 2^-24 to 2^64");
    EXPECT_REFUSED((c.model.dtype = "f16", c.optim.loss_scale_initial = 1e30),
                   "--optim.loss_scale_initial is 1e+30; it must be from 2^-24 to 2^64");
    EXPECT_REFUSED((c.model.dtype = "f16", c.optim.loss_scale_min = 65536),
                   "--optim.loss_scale_min 65536 is more than --optim.loss_scale_initial 32768");
    EXPECT_REFUSED((c.model.dtype = "f16", c.optim.loss_scale_window = 0), "--optim.loss_scale_window is 0; it must be at least 1");
    EXPECT_REFUSED((c.model.dtype = "f16", c.optim.loss_scale_hysteresis = 0),
                   "--optim.loss_scale_hysteresis is 0; it must be at least 1");
    EXPECT_REFUSED(c.optim.min_lr = 1, "--optim.min_lr 1 is greater than --optim.lr 0.0003, the peak");
    EXPECT_REFUSED(c.optim.min_lr = -1, "--optim.min_lr is -1; it must be at least 0");
    EXPECT_REFUSED(c.optim.init_lr = 1, "--optim.init_lr 1 is greater than --optim.lr 0.0003, the peak");
    EXPECT_REFUSED(c.optim.init_lr = -1, "--optim.init_lr is -1; it must be at least 0");
    EXPECT_REFUSED(c.optim.warmup_samples = -1, "--optim.warmup_samples is -1; it must be at least 0");
    EXPECT_REFUSED(c.optim.warmup_samples = 100,
                   "--optim.warmup_samples 100 must end before the end of the run, --train.samples 100, where the decay ends; "
                   "shorten the warm-up or lengthen the run");
    EXPECT_REFUSED((c.optim.warmup_samples = 60, c.optim.decay_samples = 50),
                   "--optim.warmup_samples 60 must end before --optim.decay_samples 50, where the decay ends; "
                   "shorten the warm-up or lengthen the run");
    EXPECT_REFUSED(c.optim.decay_samples = -1, "--optim.decay_samples is -1; it must be at least 0");
    EXPECT_REFUSED((c.optim.schedule = "constant", c.optim.decay_samples = 50),
                   "--optim.decay_samples 50 has no effect with --optim.schedule constant; leave it out or choose linear, "
                   "cosine, inverse_sqrt or wsd");
    EXPECT_REFUSED((c.optim.schedule = "constant", c.optim.warmup_samples = 101),
                   "--optim.warmup_samples 101 is longer than the run of --train.samples 100");
    EXPECT_REFUSED(c.optim.schedule = "wsd",
                   "--optim.schedule wsd needs --optim.wsd_samples, the length of its decay in samples; a tenth of the run, 10, "
                   "is common");
    EXPECT_REFUSED((c.optim.schedule = "wsd", c.optim.warmup_samples = 50, c.optim.wsd_samples = 51),
                   "--optim.wsd_samples 51 is more than what lies between --optim.warmup_samples 50 and the end of the run, "
                   "--train.samples 100");
    EXPECT_REFUSED(c.optim.wsd_samples = 10, "--optim.wsd_samples 10 needs --optim.schedule wsd; the schedule is cosine");
    EXPECT_REFUSED(c.optim.wsd_samples = -1, "--optim.wsd_samples is -1; it must be at least 0");
    EXPECT_REFUSED(c.optim.beta1 = 1, "--optim.beta1 is 1; it must be at least 0 and less than 1");
    EXPECT_REFUSED(c.optim.beta2 = -0.5, "--optim.beta2 is -0.5; it must be at least 0 and less than 1");
    EXPECT_REFUSED(c.optim.eps = 0, "--optim.eps is 0; it must be greater than 0");
    EXPECT_REFUSED(c.optim.weight_decay = -1, "--optim.weight_decay is -1; it must be at least 0");
    EXPECT_REFUSED(c.optim.clip = -1, "--optim.clip is -1; it must be at least 0 (0 turns clipping off)");
    EXPECT_REFUSED(c.optim.z_loss = -1, "--optim.z_loss is -1; it must be at least 0 (0 turns it off)");
}

TEST(ConfigCheck, RefusesContradictoryData) {
    EXPECT_REFUSED(c.data.train = {}, "--data.train is missing: name the token files that `keel tokenize` wrote");
    EXPECT_REFUSED((c.data.train = {"0.5", "0.5", "a.tok"}),
                   "--data.train: 0.5 follows another weight; name a file after each");
    EXPECT_REFUSED((c.data.train = {"0.5", "a.tok", "0.5"}), "--data.train: the weight 0.5 has no file after it");
    EXPECT_REFUSED((c.data.train = {"0.5", "a.tok", "b.tok"}),
                   "--data.train has 1 weight for 2 files; give every file one, or none at all");
    EXPECT_REFUSED((c.data.train = {"-1", "a.tok"}), "--data.train: the weight -1 must be greater than 0");
    EXPECT_REFUSED((c.data.train = {"inf", "a.tok"}), "--data.train: the weight inf must be greater than 0");
    EXPECT_REFUSED((c.data.train = {""}), "--data.train: a file name is empty");
    EXPECT_REFUSED((c.data.valid = {"0.5", "v.tok"}),
                   "--data.valid: 0.5 is a weight, but evaluation reads every file whole; leave it out");
    EXPECT_REFUSED((c.data.valid = {""}), "--data.valid: a file name is empty");
    EXPECT_REFUSED(c.data.seq_len = 0, "--data.seq_len is missing: give the tokens per sample, for example 1024");
    EXPECT_REFUSED(c.data.seq_len = -4, "--data.seq_len is -4; it must be at least 0");
    EXPECT_REFUSED(c.data.seq_len = 1LL << 40, "--data.seq_len is 1099511627776; the largest size keel takes is 2147483647");
    EXPECT_REFUSED((c.data.split = {1, 0}), "--data.split takes three shares, of train, validation and test, but got 2");
    EXPECT_REFUSED((c.data.split = {1, -1, 0}), "--data.split: the share -1 must be at least 0");
    EXPECT_REFUSED((c.data.split = {0, 1, 0}), "--data.split gives train the share 0 of 1; nothing is left to train on");
    EXPECT_REFUSED((c.data.split = {0.9, 0.1, 0}, c.data.valid = {"v.tok"}),
                   "--data.valid and the second part of --data.split (0.1) both name validation data; give only one of them");
}

TEST(ConfigCheck, RefusesContradictoryMemoryCheckpointsAndRun) {
    EXPECT_REFUSED(c.memory.recompute = "all",
                   "--memory.recompute is \"all\"; choices are none, swiglu, norms, attention, block");
    EXPECT_REFUSED(c.memory.head_chunk = -1, "--memory.head_chunk is -1; it must be at least 0");
    EXPECT_REFUSED(c.ckpt.interval = -1, "--ckpt.interval is -1; it must be at least 0");
    EXPECT_REFUSED(c.ckpt.keep_last = -1, "--ckpt.keep_last is -1; it must be at least 0");
    EXPECT_REFUSED(c.ckpt.keep_every = -1, "--ckpt.keep_every is -1; it must be at least 0");
    EXPECT_REFUSED((c.ckpt.interval = 10, c.ckpt.keep_every = 15),
                   "--ckpt.keep_every 15 is not a multiple of --ckpt.interval 10, so no checkpoint would fall on it");
    EXPECT_REFUSED(c.ckpt.keep_every = 10,
                   "--ckpt.keep_every 10 needs --ckpt.interval: without it only the last state is saved");
    EXPECT_REFUSED(c.ckpt.resume = "", "--ckpt.resume is empty; it must be auto, none or the path of a checkpoint");
    EXPECT_REFUSED((c.ckpt.init = "folder", c.ckpt.resume = "run/checkpoints/x"),
                   "--ckpt.init folder and --ckpt.resume run/checkpoints/x both say where the weights come from; give only one "
                   "of them");
    EXPECT_REFUSED(c.run.dir = "", "--run.dir is missing: name the folder for checkpoints, log and report");
    EXPECT_REFUSED(c.observe.trace_steps = {12}, "--observe.trace_steps takes the first and the last step to trace, counted from 1, as in "
                                                 "--observe.trace_steps 10 12");
    EXPECT_REFUSED(c.observe.http_port = 65536, "--observe.http_port is 65536; it must be a port, 1 to 65535, or 0 for none");
    EXPECT_REFUSED(c.observe.timers = "corse", "--observe.timers is \"corse\"; did you mean coarse? Choices are off, coarse, fine");
    EXPECT_REFUSED(c.observe.straggler_factor = 0.5, "--observe.straggler_factor is 0.5; it must be at least 1");
    EXPECT_REFUSED(c.observe.straggler_times = -1, "--observe.straggler_times is -1; it must be at least 0");
    EXPECT_REFUSED(c.observe.device_peak = "fast",
                   "--observe.device_peak is \"fast\"; it must be a100, h100, h200, or a number of TFLOP/s greater than 0");
    EXPECT_REFUSED(c.run.threads = -1, "--run.threads is -1; it must be at least 0");
    EXPECT_REFUSED(c.run.threads = 5000, "--run.threads is 5000; the most keel takes is 1024");
    EXPECT_REFUSED(c.profile.start = -1, "--profile.start is -1; it must be at least 0");
    EXPECT_REFUSED((c.profile.start = 5, c.profile.stop = 5), "--profile.stop 5 is not after --profile.start 5");
    EXPECT_REFUSED(c.profile.start = 5,
                   "--profile.start and --profile.stop are for the profilers of GPUs; leave them out, or give --run.device");
    EXPECT_REFUSED(c.run.hopper = true, "--run.hopper is for GPUs; leave it out, or give --run.device");
    EXPECT_REFUSED(c.run.bf16_by = "tile", "--run.bf16_by is \"tile\"; did you mean tiles? Choices are auto, tiles, dots, floats");
    EXPECT_REFUSED(c.run.device = "gpu", "--run.device is \"gpu\"; did you mean cpu? Choices are cpu, cuda, cudasim");
}

// What is kept in checkpoints is TOML inside of JSON: a text that neither can hold must not wait for the first save.
TEST(ConfigCheck, RefusesNonsenseAboutFaults) {
    EXPECT_REFUSED(c.fault.mode = "validte", "--fault.mode is \"validte\"; did you mean validate? Choices are report, validate, disabled");
    EXPECT_REFUSED(c.fault.interval = 0, "--fault.interval is 0; it must be at least 1");
    EXPECT_REFUSED(c.fault.spike_factor = -1, "--fault.spike_factor is -1; it must be at least 0 (0 turns it off)");
    EXPECT_REFUSED(c.fault.spike_factor = 1, "--fault.spike_factor is 1; every step would be a spike: give more than 1, or 0 for none");
    EXPECT_REFUSED(c.fault.spike_steps = 0, "--fault.spike_steps is 0; it must be at least 1");
    EXPECT_REFUSED(c.fault.tolerate = -1, "--fault.tolerate is -1; it must be at least 0");
    EXPECT_REFUSED(c.fault.replica_interval = -1, "--fault.replica_interval is -1; it must be at least 0");
    EXPECT_REFUSED(c.fault.skip = {"x"}, "--fault.skip x: this is no step, as in 7, and no range of them, as in 10-12");
}

TEST(ConfigCheck, RefusesTextsThatAreNotUtf8) {
    EXPECT_REFUSED(c.run.dir = "runs/caf\xe9",
                   "--run.dir is not UTF-8 from byte 8 on; rename the file, or write it in UTF-8");
    EXPECT_REFUSED((c.data.train = {"a.tok", "\xff.tok"}),
                   "--data.train is not UTF-8 from byte 0 on; rename the file, or write it in UTF-8");
}

TEST(ConfigCheck, AcceptsWhatIsUnusualButPossible) {
    const std::function<void(Config&)> unusual[] = {
        [](Config&) {},
        [](Config& c) { c.model.head_dim = 128; },                             // wider than hidden / heads
        [](Config& c) { c.model.window = 1; },
        [](Config& c) { c.optim.clip = 0; },
        [](Config& c) { c.optim.warmup_samples = 99; },
        [](Config& c) { c.optim.decay_samples = 1000; },                       // past the end of the run
        [](Config& c) { c.optim.schedule = "wsd", c.optim.wsd_samples = 100; },
        [](Config& c) { c.train.batch_ramp = {8, 3, 50}; },                    // no ramp at all
        [](Config& c) { c.data.train = {"0.7", "a.tok", "0.3", "b.tok"}; },
        [](Config& c) { c.data.split = {90, 5, 5}; },
        [](Config& c) { c.model.vocab = 0; },                                  // the tokenizer will say
        [](Config& c) { c.optim.min_lr = c.optim.lr; },
    };
    for (const auto& change : unusual) EXPECT_EQ(refusal(change), "accepted");
}

TEST(ConfigCheck, HowSamplesAreCutAndOrderedMustNotContradictItself) {
    EXPECT_REFUSED(c.data.order = "random", "--data.order is \"random\"; it must be keel or megatron");
    EXPECT_REFUSED(c.data.packing = "ffd", "--data.packing is \"ffd\"; it must be concatenate or best_fit");
    EXPECT_REFUSED(c.data.raw_dtype = "int8", "--data.raw_dtype is \"int8\"; it must be uint16 or uint32");
    EXPECT_REFUSED(c.data.order = "megatron",
                   "--data.order megatron depends on the number of samples it is made for; give --data.order_samples");
    EXPECT_REFUSED(c.data.order_samples = 5,
                   "--data.order_samples 5 is for --data.order megatron; keel's own order does not depend on it");
    EXPECT_REFUSED((c.data.order = "megatron", c.data.order_samples = 99),
                   "--data.order_samples 99 is less than the 100 samples of the run, and the order ends with it; give as many as the"
                   " longest run will have");
    EXPECT_REFUSED((c.data.order = "megatron", c.data.order_samples = 100, c.data.packing = "best_fit"),
                   "--data.packing best_fit and --data.order megatron exclude each other");
    EXPECT_REFUSED((c.data.packing = "best_fit", c.data.reset_at_document = false),
                   "--data.packing best_fit puts documents side by side that have nothing to do with each other; it needs"
                   " --data.reset_at_document true");
    EXPECT_EQ(refusal([](Config& c) { c.data.order = "megatron", c.data.order_samples = 100; }), "accepted");
    EXPECT_EQ(refusal([](Config& c) { c.data.packing = "best_fit"; }), "accepted");
}

TEST(ConfigCheck, LayoutsThatCannotShareTheModelAreRefused) {
    const auto says = [](const std::function<void(Config&)>& spoil, const std::string& part) {
        EXPECT_NE(refusal(spoil).find(part), std::string::npos) << refusal(spoil);
    };
    EXPECT_REFUSED((c.parallel.tp = 2, c.model.kv_heads = 1),
                   "--model.kv_heads 1 cannot be shared out over --parallel.tp 2; a rank holds whole key and value heads, since two"
                   " copies of one would need their gradients summed: lower --parallel.tp to a divisor of 1");
    EXPECT_REFUSED(c.parallel.tp = 3, "--model.heads 4 cannot be shared out over --parallel.tp 3; a rank holds whole heads");
    EXPECT_REFUSED((c.parallel.tp = 4, c.model.ffn = 90),
                   "--model.ffn 90 is not a multiple of --parallel.tp 4, over which it is shared out");
    says([](Config& c) { c.parallel.tp = 4, c.model.vocab = 200; },
         "--model.vocab 200 in multiples of --parallel.vocab_multiple 128 leaves nothing for the last of --parallel.tp 4 ranks");
    says([](Config& c) { c.parallel.tp = 2, c.model.vocab = 500, c.data.seq_len = 63; }, "give --parallel.sequence false");
    says([](Config& c) { c.parallel.cp = 2, c.data.seq_len = 62; }, "--parallel.cp");
    says([](Config& c) { c.parallel.dp = 3; }, "x 3 replicas (--parallel.dp); every replica takes equally many micro-batches");
    says([](Config& c) { c.train.global_batch = 512, c.train.micro_batch = 2, c.parallel.dp = 24; },  // behaviour.md, T2.1
         "--train.global_batch 512 is not a multiple of --train.micro_batch 2 x 24 replicas (--parallel.dp)");
    says([](Config& c) { c.parallel.pp = 0; }, "--parallel.pp is 0; it must be at least 1");
    says([](Config& c) { c.parallel.deadline_s = 0; }, "--parallel.deadline_s is 0; it must be more than 0");
    says([](Config& c) { c.parallel.context = "star"; }, "--parallel.context is \"star\"; choices are gather, ring");
    says([](Config& c) { c.parallel.dp = 1 << 20, c.parallel.pp = 1 << 20; }, "are too many ranks");
    says([](Config& c) { c.numerics.grad_sum = "double"; }, "--numerics.grad_sum is \"double\"; choices are float, exact");
}

// Shares are equal multiples, so that what the last rank lacks is padding, which exists nowhere.
TEST(ConfigCheck, VocabulariesAreSharedOutInMultiples) {
    const struct {
        std::int64_t vocab, padded[4];  // over 1, 2, 4 and 8 ranks
    } table[] = {{32000, {32000, 32000, 32256, 32768}}, {50257, {50304, 50432, 50688, 51200}},
                 {128256, {128256, 128256, 128512, 129024}}, {151643, {151680, 151808, 152064, 152576}}};
    for (const auto& row : table)
        for (int i = 0; i < 4; ++i) {
            const std::int64_t ranks = std::int64_t{1} << i;
            EXPECT_EQ(padded_vocab(row.vocab, 128, ranks), row.padded[i]);
            std::int64_t next = 0;
            for (std::int64_t r = 0; r < ranks; ++r) {
                const VocabRange share = vocab_range(row.vocab, 128, ranks, r);
                EXPECT_EQ(share.begin, next);
                if (r + 1 < ranks) {
                    EXPECT_EQ(share.size(), row.padded[i] / ranks);
                }
                next = share.end;
            }
            EXPECT_EQ(next, row.vocab);
        }
}
