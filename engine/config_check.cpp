#include "engine/config_check.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <type_traits>

#include "comm/nccl.h"
#include "data/dataset.h"
#include "data/utf8.h"
#include "engine/batch_sizes.h"
#include "engine/config_io.h"
#include "engine/config_names.h"
#include "engine/data_spec.h"
#include "engine/fault/injected_fault.h"
#include "engine/fault/loss_scale.h"
#include "engine/fault/skip_list.h"
#include "engine/model_shape.h"
#include "engine/observe/mfu.h"
#include "engine/parallel/layout.h"
#include "engine/presets.h"
#include "kernels/base/error.h"
#include "kernels/gpu.h"
#include "kernels/bf16_unit.h"
#include "kernels/hopper.h"

namespace keel {

Device device_of(const Config& config) {
    for (const Device device : {Device::cuda, Device::cudasim})
        if (config.run.device == name(device)) return device;
    return Device::cpu;
}

namespace {

constexpr std::int64_t int32_max = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t most_layers = 1024;    // a plan of more would take minutes and gigabytes to make
constexpr std::int64_t most_head_dim = 256;   // kernels/attention.h
constexpr std::int64_t most_samples = std::int64_t{1} << 53;  // every count of samples is exact as a double, too

void require_choice(const char* flag, const std::string& value, const std::vector<std::string>& choices) {
    if (std::ranges::count(choices, value) > 0) return;
    const auto hint = nearest_name(value, choices);
    fail_usage("--", flag, " is \"", value, "\"", hint ? "; did you mean " + *hint + "? Choices are " : "; choices are ",
               join(choices, ", "));
}

void require_range(const char* flag, double value, double low, double high, const char* words) {
    if (!(value >= low && value <= high)) fail_usage("--", flag, " is ", value, "; it must be ", words);
}
void require_positive(const char* flag, double value) {
    if (!(value > 0) || !std::isfinite(value)) fail_usage("--", flag, " is ", value, "; it must be greater than 0");
}
void require_at_least(const char* flag, std::int64_t value, std::int64_t low) {
    if (value < low) fail_usage("--", flag, " is ", value, "; it must be at least ", low);
}
void require_size(const char* flag, std::int64_t value) {
    if (value <= 0) fail_usage("--", flag, " is ", value, "; give a size of at least 1, or a --model.preset");
    if (value > int32_max) fail_usage("--", flag, " is ", value, "; the largest size keel takes is ", int32_max);
}

void require_at_most(const char* flag, std::int64_t value, std::int64_t high) {
    if (value > high) fail_usage("--", flag, " is ", value, "; it must be at most ", high);
}

// The configuration travels inside of checkpoints and the log as TOML and JSON, which hold nothing else.
void require_utf8(const std::string& flag, const std::string& value) {
    if (utf8_valid_prefix(value) != value.size())
        fail_usage("--", flag, " is not UTF-8 from byte ", utf8_valid_prefix(value), " on; rename the file, or write it in UTF-8");
}
void check_texts(Config& config) {
    for_each_setting(config, [](const std::string& key, auto& member, const char*) {
        using T = std::remove_reference_t<decltype(member)>;
        if constexpr (std::is_same_v<T, std::string>) require_utf8(key, member);
        else if constexpr (std::is_same_v<T, std::vector<std::string>>)
            for (const std::string& word : member) require_utf8(key, word);
    });
}

void check_rope(const ModelSection& m) {
    require_choice("model.rope_scaling", m.rope_scaling, {"none", "linear", "llama3", "yarn", "longrope"});
    if (!(m.rope_base > 1) || !std::isfinite(m.rope_base))
        fail_usage("--model.rope_base is ", m.rope_base, "; it must be above 1 (10000 is usual)");
    require_range("model.rope_fraction", m.rope_fraction, 0, 1, "more than 0 and at most 1");
    if (rotary_dim(m) < 2 || rotary_dim(m) % 2 != 0)
        fail_usage("--model.rope_fraction ", m.rope_fraction, " of a head of ", m.head_dim, " elements is ", rotary_dim(m),
                   "; rotary positions pair them, so it must be even and at least 2");
    if (m.rope_scaling != "longrope" && !(m.rope_short_factors.empty() && m.rope_long_factors.empty()))
        fail_usage("--model.rope_short_factors and --model.rope_long_factors have no effect while --model.rope_scaling is ",
                   m.rope_scaling, "; choose longrope, or leave them out");
    if (m.rope_scaling == "none") {
        if (m.rope_factor != 1)
            fail_usage("--model.rope_factor ", m.rope_factor, " has no effect while --model.rope_scaling is none; ",
                       "choose linear, llama3, yarn or longrope, or leave the factor at 1");
        return;
    }
    require_range("model.rope_factor", m.rope_factor, 1, 1e6, "at least 1");
    if (m.rope_scaling == "linear") return;
    if (!(m.rope_original_max_position > 0) || !std::isfinite(m.rope_original_max_position))
        fail_usage("--model.rope_scaling ", m.rope_scaling, " needs --model.rope_original_max_position, ",
                   "the context length that the frequencies were made for");
    if (m.rope_scaling == "llama3") {
        require_positive("model.rope_low_freq_factor", m.rope_low_freq_factor);
        if (!(m.rope_high_freq_factor > m.rope_low_freq_factor))
            fail_usage("--model.rope_high_freq_factor ", m.rope_high_freq_factor, " must be greater than ",
                       "--model.rope_low_freq_factor ", m.rope_low_freq_factor);
    } else if (m.rope_scaling == "longrope") {
        const std::int64_t pairs = rotary_dim(m) / 2;
        for (const auto& [flag, factors] : {std::pair{"model.rope_short_factors", &m.rope_short_factors},
                                            {"model.rope_long_factors", &m.rope_long_factors}}) {
            if (static_cast<std::int64_t>(factors->size()) != pairs)
                fail_usage("--", flag, " has ", factors->size(), " numbers; longrope needs one for each of the ", pairs,
                           " pairs of a head");
            for (const double f : *factors) require_positive(flag, f);
        }
        require_range("model.rope_attention_factor", m.rope_attention_factor, 0, 1e6,
                      "0 (choose) or the factor itself");
    } else {
        require_positive("model.rope_beta_slow", m.rope_beta_slow);
        if (!(m.rope_beta_fast > m.rope_beta_slow))
            fail_usage("--model.rope_beta_fast ", m.rope_beta_fast, " must be greater than --model.rope_beta_slow ",
                       m.rope_beta_slow);
        require_range("model.rope_attention_factor", m.rope_attention_factor, 0, 1e6,
                      "0 (choose) or the factor itself");
    }
}

// f16 alone has so few exponents that gradients need one; elsewhere a setting would be a misunderstanding.
void check_loss_scale(const Config& c) {
    const OptimSection& o = c.optim;
    const OptimSection usual;
    if (c.model.dtype != "f16") {
        const auto expect_usual = [&](const char* flag, const auto& value, const auto& of) {
            if (value != of)
                fail_usage("--optim.", flag, " ", value, " is for --model.dtype f16; gradients in ", c.model.dtype,
                           " have all the exponents they need: leave it out");
        };
        expect_usual("loss_scale", o.loss_scale, usual.loss_scale);
        expect_usual("loss_scale_initial", o.loss_scale_initial, usual.loss_scale_initial);
        expect_usual("loss_scale_min", o.loss_scale_min, usual.loss_scale_min);
        expect_usual("loss_scale_window", o.loss_scale_window, usual.loss_scale_window);
        expect_usual("loss_scale_hysteresis", o.loss_scale_hysteresis, usual.loss_scale_hysteresis);
        return;
    }
    const auto require_scale = [](const char* flag, double value) {
        require_range(flag, value, LossScale::least, LossScale::largest, "from 2^-24 to 2^64");
    };
    require_scale("optim.loss_scale_initial", o.loss_scale_initial);
    require_scale("optim.loss_scale_min", o.loss_scale_min);
    if (o.loss_scale_min > o.loss_scale_initial)
        fail_usage("--optim.loss_scale_min ", o.loss_scale_min, " is more than --optim.loss_scale_initial ", o.loss_scale_initial);
    require_at_least("optim.loss_scale_window", o.loss_scale_window, 1);
    require_at_least("optim.loss_scale_hysteresis", o.loss_scale_hysteresis, 1);
    if (o.loss_scale != "dynamic") require_scale("optim.loss_scale", LossScale::constant_of(o.loss_scale));
}

void check_optim(const Config& c) {
    const OptimSection& o = c.optim;
    require_choice("optim.schedule", o.schedule, {"constant", "linear", "cosine", "inverse_sqrt", "wsd"});
    require_choice("optim.wsd_decay", o.wsd_decay, {"linear", "cosine", "exponential", "minus_sqrt"});
    require_positive("optim.lr", o.lr);
    require_range("optim.min_lr", o.min_lr, 0, std::numeric_limits<double>::max(), "at least 0");
    require_range("optim.init_lr", o.init_lr, 0, std::numeric_limits<double>::max(), "at least 0");
    if (o.min_lr > o.lr) fail_usage("--optim.min_lr ", o.min_lr, " is greater than --optim.lr ", o.lr, ", the peak");
    if (o.init_lr > o.lr) fail_usage("--optim.init_lr ", o.init_lr, " is greater than --optim.lr ", o.lr, ", the peak");
    require_range("optim.beta1", o.beta1, 0, 0.9999999, "at least 0 and less than 1");
    require_range("optim.beta2", o.beta2, 0, 0.9999999, "at least 0 and less than 1");
    require_positive("optim.eps", o.eps);
    require_range("optim.weight_decay", o.weight_decay, 0, std::numeric_limits<double>::max(), "at least 0");
    if (!std::isfinite(o.weight_decay_end)) fail_usage("--optim.weight_decay_end is ", o.weight_decay_end, "; it must be finite");
    require_choice("optim.weight_decay_schedule", o.weight_decay_schedule, {"linear", "cosine"});
    require_range("optim.clip", o.clip, 0, std::numeric_limits<double>::max(), "at least 0 (0 turns clipping off)");
    require_range("optim.z_loss", o.z_loss, 0, std::numeric_limits<double>::max(), "at least 0 (0 turns it off)");
    check_loss_scale(c);
    require_at_least("optim.warmup_samples", o.warmup_samples, 0);
    require_at_least("optim.decay_samples", o.decay_samples, 0);
    require_at_least("optim.wsd_samples", o.wsd_samples, 0);

    const std::int64_t decay = o.decay_samples > 0 ? o.decay_samples : c.train.samples;
    const std::string end = o.decay_samples > 0 ? concat("--optim.decay_samples ", decay)
                                                : concat("the end of the run, --train.samples ", decay);
    if (o.schedule == "constant") {
        if (o.decay_samples > 0)
            fail_usage("--optim.decay_samples ", o.decay_samples, " has no effect with --optim.schedule constant; ",
                       "leave it out or choose linear, cosine, inverse_sqrt or wsd");
        if (o.warmup_samples > c.train.samples)
            fail_usage("--optim.warmup_samples ", o.warmup_samples, " is longer than the run of --train.samples ",
                       c.train.samples);
    } else if (o.warmup_samples >= decay) {
        fail_usage("--optim.warmup_samples ", o.warmup_samples, " must end before ", end,
                   ", where the decay ends; shorten the warm-up or lengthen the run");
    }
    if (o.schedule == "wsd") {
        if (o.wsd_samples == 0)
            fail_usage("--optim.schedule wsd needs --optim.wsd_samples, the length of its decay in samples; ",
                       "a tenth of the run, ", std::max<std::int64_t>(1, decay / 10), ", is common");
        if (o.wsd_samples > decay - o.warmup_samples)
            fail_usage("--optim.wsd_samples ", o.wsd_samples, " is more than what lies between --optim.warmup_samples ",
                       o.warmup_samples, " and ", end);
    } else if (o.wsd_samples > 0) {
        fail_usage("--optim.wsd_samples ", o.wsd_samples, " needs --optim.schedule wsd; the schedule is ", o.schedule);
    }
}

void resolve_length(Config& config) {
    TrainSection& t = config.train;
    require_at_least("train.samples", t.samples, 0);
    require_at_least("train.steps", t.steps, 0);
    require_at_most("train.samples", t.samples, most_samples);
    const BatchSizes batches(config);
    if (t.samples == 0 && t.steps == 0)
        fail_usage("the length of the run is missing: give --train.steps or --train.samples");
    if (t.samples > 0 && t.steps > 0 && batches.steps_for(t.samples) != t.steps)
        fail_usage("--train.samples ", t.samples, " takes ", batches.steps_for(t.samples), " steps, but --train.steps is ",
                   t.steps, "; give only one of them");
    if (t.samples == 0) t.samples = batches.samples_after(t.steps);
    require_at_most("train.samples", t.samples, most_samples);
    t.steps = batches.steps_for(t.samples);
}

void check_blend(const char* flag, const std::vector<std::string>& words) {
    bool after_weight = false;
    std::size_t files = 0, weights = 0;
    for (const std::string& word : words) {
        const std::optional<double> weight = blend_weight(word);
        if (weight && after_weight) fail_usage("--", flag, ": ", word, " follows another weight; name a file after each");
        if (weight && !(*weight > 0 && std::isfinite(*weight)))
            fail_usage("--", flag, ": the weight ", word, " must be greater than 0");
        if (word.empty()) fail_usage("--", flag, ": a file name is empty");
        after_weight = weight.has_value();
        (weight ? weights : files) += 1;
    }
    if (after_weight) fail_usage("--", flag, ": the weight ", words.back(), " has no file after it");
    if (weights != 0 && weights != files)
        fail_usage("--", flag, " has ", weights, weights == 1 ? " weight for " : " weights for ", files,
                   " files; give every file one, or none at all");
}

void check_data(const DataSection& d) {
    if (d.train.empty()) fail_usage("--data.train is missing: name the token files that `keel tokenize` wrote");
    check_blend("data.train", d.train);
    for (const std::string& word : d.valid) {
        if (word.empty()) fail_usage("--data.valid: a file name is empty");
        if (blend_weight(word))
            fail_usage("--data.valid: ", word, " is a weight, but evaluation reads every file whole; leave it out");
    }
    require_at_least("data.seq_len", d.seq_len, 0);
    if (d.seq_len == 0) fail_usage("--data.seq_len is missing: give the tokens per sample, for example 1024");
    if (d.seq_len > int32_max) fail_usage("--data.seq_len is ", d.seq_len, "; the largest size keel takes is ", int32_max);
    if (d.split.size() != 3)
        fail_usage("--data.split takes three shares, of train, validation and test, but got ", d.split.size());
    require_at_least("data.prefetch", d.prefetch, 0);
    require_at_most("data.prefetch", d.prefetch, 1024);
    double sum = 0;
    for (const double share : d.split) {
        if (!(share >= 0) || !std::isfinite(share)) fail_usage("--data.split: the share ", share, " must be at least 0");
        sum += share;
    }
    if (!(d.split[0] > 0))
        fail_usage("--data.split gives train the share ", d.split[0], " of ", sum, "; nothing is left to train on");
    if (!d.valid.empty() && d.split[1] > 0)
        fail_usage("--data.valid and the second part of --data.split (", d.split[1], ") both name validation data; ",
                   "give only one of them");
    check_samples(d);
}

void check_memory_and_run(const Config& c) {
    require_choice("memory.recompute", c.memory.recompute, {"none", "swiglu", "norms", "attention", "block"});
    require_at_least("memory.head_chunk", c.memory.head_chunk, 0);
    require_at_least("ckpt.interval", c.ckpt.interval, 0);
    require_at_least("ckpt.keep_last", c.ckpt.keep_last, 0);
    require_at_least("ckpt.keep_every", c.ckpt.keep_every, 0);
    if (c.ckpt.keep_every > 0 && c.ckpt.interval > 0 && c.ckpt.keep_every % c.ckpt.interval != 0)
        fail_usage("--ckpt.keep_every ", c.ckpt.keep_every, " is not a multiple of --ckpt.interval ", c.ckpt.interval,
                   ", so no checkpoint would fall on it");
    if (c.ckpt.keep_every > 0 && c.ckpt.interval == 0)
        fail_usage("--ckpt.keep_every ", c.ckpt.keep_every, " needs --ckpt.interval: without it only the last state is saved");
    require_at_least("ckpt.local_interval", c.ckpt.local_interval, 0);
    require_at_least("ckpt.local_distance", c.ckpt.local_distance, 0);
    if (c.ckpt.local_dir.empty() != (c.ckpt.local_interval == 0))
        fail_usage("--ckpt.local_dir and --ckpt.local_interval need each other: where, and how often");
    if (c.ckpt.resume.empty())
        fail_usage("--ckpt.resume is empty; it must be auto, none or the path of a checkpoint");
    if (!c.ckpt.init.empty() && c.ckpt.resume != "auto" && c.ckpt.resume != "none")
        fail_usage("--ckpt.init ", c.ckpt.init, " and --ckpt.resume ", c.ckpt.resume,
                   " both say where the weights come from; give only one of them");
    require_range("exit.after_s", c.exit.after_s, 0, 1e9, "from 0 (no limit) to 1e9");
    require_at_least("exit.interval", c.exit.interval, 0);
    for (const std::int64_t step : c.exit.steps) require_at_least("exit.steps", step, 1);
    require_range("watch.start_s", c.watch.start_s, 0, 1e9, "from 0 (never) to 1e9");
    require_range("watch.step_s", c.watch.step_s, 0, 1e9, "from 0 (never) to 1e9");
    require_range("watch.heartbeat_s", c.watch.heartbeat_s, 0, 1e9, "from 0 (never) to 1e9");
    require_at_least("watch.self_test_interval", c.watch.self_test_interval, 0);
    if (c.watch.self_test_interval > 0 && !c.watch.self_test)
        fail_usage("--watch.self_test_interval ", c.watch.self_test_interval, " contradicts --watch.self_test false; leave one out");
    if (c.watch.leave && c.watch.start_s == 0 && c.watch.step_s == 0)
        fail_usage("--watch.leave needs --watch.start_s or --watch.step_s: after how many seconds");
    if (c.run.dir.empty()) fail_usage("--run.dir is missing: name the folder for checkpoints, log and report");
    if (const auto& t = c.observe.trace_steps; !t.empty() && (t.size() != 2 || t[0] < 1 || t[1] < t[0]))
        fail_usage("--observe.trace_steps takes the first and the last step to trace, counted from 1, as in --observe.trace_steps 10 12");
    require_range("observe.http_port", static_cast<double>(c.observe.http_port), 0, 65535, "a port, 1 to 65535, or 0 for none");
    require_choice("observe.timers", c.observe.timers, {"off", "coarse", "fine"});
    require_range("observe.straggler_factor", c.observe.straggler_factor, 1, 1e6, "at least 1");
    require_at_least("observe.straggler_times", c.observe.straggler_times, 0);
    (void)device_peak(c);
    require_at_least("run.threads", c.run.threads, 0);
    if (c.run.threads > Stream::max_threads)
        fail_usage("--run.threads is ", c.run.threads, "; the most keel takes is ", Stream::max_threads);
    require_choice("run.device", c.run.device, {"cpu", "cuda", "cudasim"});
    require_choice("run.bf16_by", c.run.bf16_by, {"auto", "tiles", "dots", "floats"});
    require_at_least("profile.start", c.profile.start, 0);
    require_at_least("profile.stop", c.profile.stop, 0);
    if (c.profile.stop > 0 && c.profile.stop <= c.profile.start)
        fail_usage("--profile.stop ", c.profile.stop, " is not after --profile.start ", c.profile.start);
    if (c.profile.start + c.profile.stop > 0 && device_of(c) == Device::cpu)
        fail_usage("--profile.start and --profile.stop are for the profilers of GPUs; leave them out, or give --run.device");
    if (c.run.hopper && device_of(c) == Device::cpu)
        fail_usage("--run.hopper is for GPUs; leave it out, or give --run.device");
}

void check_fault(const FaultSection& f) {
    require_choice("fault.mode", f.mode, {"report", "validate", "disabled"});
    require_at_least("fault.interval", f.interval, 1);
    require_range("fault.spike_factor", f.spike_factor, 0, std::numeric_limits<double>::max(), "at least 0 (0 turns it off)");
    if (f.spike_factor > 0 && f.spike_factor <= 1)
        fail_usage("--fault.spike_factor is ", f.spike_factor, "; every step would be a spike: give more than 1, or 0 for none");
    require_at_least("fault.spike_steps", f.spike_steps, 1);
    require_at_least("fault.tolerate", f.tolerate, 0);
    require_at_least("fault.replica_interval", f.replica_interval, 0);
    (void)SkipList(f.skip);
}

void check_train(const Config& c) {
    if (c.data.order == "megatron" && c.data.order_samples < c.train.samples)
        fail_usage("--data.order_samples ", c.data.order_samples, " is less than the ", c.train.samples, " samples of the run, and the ",
                   "order ends with it; give as many as the longest run will have");
    require_at_least("train.eval_interval", c.train.eval_interval, 0);
    require_at_least("train.eval_samples", c.train.eval_samples, 0);
    require_at_least("train.log_interval", c.train.log_interval, 1);
    const bool validates = !c.data.valid.empty() || c.data.split[1] > 0;
    if (!validates && c.train.eval_interval > 0)
        fail_usage("--train.eval_interval ", c.train.eval_interval, " has nothing to evaluate on: give --data.valid, ",
                   "or a second part of --data.split");
    std::int64_t tokens = 0;
    if (__builtin_mul_overflow(c.train.micro_batch, c.data.seq_len, &tokens) || tokens > int32_max)
        fail_usage("--train.micro_batch ", c.train.micro_batch, " of --data.seq_len ", c.data.seq_len,
                   " tokens is more than ", int32_max, " tokens at once; lower --train.micro_batch, ",
                   "and keep --train.global_batch");
}

}  // namespace

void check_device(const Config& config, std::int64_t ranks) {
    const Device device = device_of(config);
    if (!bf16_unit_of(config.run.bf16_by))
        fail_usage("--run.bf16_by ", config.run.bf16_by, ": this processor, or this build, has none; leave it out, and the fastest ",
                   "that is here multiplies bf16");
    if (device == Device::cpu) return;
    const std::string asked = "--run.device " + config.run.device;
    if (const auto why = why_no_gpu(device)) fail_usage(asked, ": ", *why, "; leave it out to train on the CPU");
    if (config.run.hopper)
        if (const auto why_no = why_no_hopper(device)) fail_usage("--run.hopper: ", *why_no, "; leave it out");
    if (ranks > 1)
        if (const auto why = why_no_nccl(device)) fail_usage(asked, " with ", ranks, " ranks: ", *why);
    if (config.model.dtype == "f16")
        fail_usage(asked, " computes in bf16 or f32; choose one by --model.dtype, or train in f16 on the CPU");
}

void resolve_model(ModelSection& m) {
    if (!m.preset.empty() && m.hidden == 0 && m.layers == 0) apply_preset(m, std::string(m.preset));
    require_choice("model.dtype", m.dtype, {"bf16", "f16", "f32"});
    require_size("model.hidden", m.hidden);
    require_size("model.layers", m.layers);
    require_at_most("model.layers", m.layers, most_layers);
    require_size("model.heads", m.heads);
    require_size("model.ffn", m.ffn);
    require_at_least("model.vocab", m.vocab, 0);
    if (m.vocab > int32_max) fail_usage("--model.vocab is ", m.vocab, "; token ids are 32-bit, at most ", int32_max);
    require_at_least("model.kv_heads", m.kv_heads, 0);
    require_at_least("model.head_dim", m.head_dim, 0);
    if (m.kv_heads == 0) m.kv_heads = m.heads;
    if (m.head_dim == 0) {
        if (m.hidden % m.heads != 0)
            fail_usage("--model.hidden ", m.hidden, " is not a multiple of --model.heads ", m.heads,
                       "; change one of them, or give --model.head_dim");
        m.head_dim = m.hidden / m.heads;
    }
    if (m.head_dim > most_head_dim)
        fail_usage("the head dimension is ", m.head_dim, " (--model.head_dim, or --model.hidden ", m.hidden,
                   " / --model.heads ", m.heads, "); attention takes at most ", most_head_dim, ": give more --model.heads");
    if (m.head_dim % 2 != 0)
        fail_usage("the head dimension is ", m.head_dim, " (--model.head_dim, or --model.hidden ", m.hidden,
                   " / --model.heads ", m.heads, "); rotary positions pair its elements, so it must be even");
    if (m.heads % m.kv_heads != 0)
        fail_usage("--model.heads ", m.heads, " is not a multiple of --model.kv_heads ", m.kv_heads,
                   "; every key head serves equally many query heads");
    std::int64_t widest = 0;
    if (__builtin_mul_overflow(m.heads, m.head_dim, &widest) || widest > int32_max)
        fail_usage("--model.heads ", m.heads, " of --model.head_dim ", m.head_dim, " make rows of more than ", int32_max,
                   " elements");
    const auto approximate = static_cast<double>(m.layers) * static_cast<double>(m.hidden) *
                                 (4.0 * static_cast<double>(widest) + 3.0 * static_cast<double>(m.ffn)) +
                             2.0 * static_cast<double>(m.vocab) * static_cast<double>(m.hidden);
    if (approximate > 1e15)
        fail_usage("the shape has about ", approximate, " parameters (--model.layers ", m.layers, ", --model.hidden ",
                   m.hidden, ", --model.ffn ", m.ffn, "); keel counts up to 1e15");
    require_positive("model.norm_eps", m.norm_eps);
    require_range("model.init_std", m.init_std, 0, 1e3, "at least 0");
    require_at_least("model.window", m.window, 0);
    if (m.qk_norm_whole && !m.qk_norm)
        fail_usage("--model.qk_norm_whole true says how q and k are normalised, and needs --model.qk_norm true");
    check_rope(m);
}

void resolve_batch(Config& config) {
    TrainSection& t = config.train;
    require_at_least("train.global_batch", t.global_batch, 0);
    require_at_least("train.micro_batch", t.micro_batch, 0);
    if (!t.batch_schedule.empty()) {
        if (!t.batch_ramp.empty()) fail_usage("--train.batch_schedule and --train.batch_ramp both say how the batch grows; give one");
        const std::int64_t last = BatchSizes(config).last();
        if (t.global_batch != 0 && t.global_batch != last)
            fail_usage("--train.batch_schedule ends with steps of ", last, " samples, and --train.global_batch is ", t.global_batch,
                       "; leave that out");
        t.global_batch = last;
    }
    if (t.global_batch == 0 && t.micro_batch == 0)
        fail_usage("the batch is missing: give --train.global_batch, the samples per optimizer step");
    require_at_most("train.global_batch", t.global_batch, int32_max);
    require_at_most("train.micro_batch", t.micro_batch, int32_max);
    if (t.global_batch == 0) t.global_batch = t.micro_batch;
    if (!t.batch_ramp.empty() && t.batch_ramp.size() != 3)
        fail_usage("--train.batch_ramp takes three numbers, start increment ramp_samples, but got ",
                   t.batch_ramp.size());
    const BatchSizes batches(config);  // checks start, increment and length; the start may become the micro-batch
    if (t.micro_batch == 0) t.micro_batch = batches.at(0);
    if (t.micro_batch > t.global_batch)
        fail_usage("--train.micro_batch ", t.micro_batch, " is more than --train.global_batch ", t.global_batch,
                   ", the samples of a whole step");
    if (t.global_batch % t.micro_batch != 0)
        fail_usage("--train.global_batch ", t.global_batch, " is not a multiple of --train.micro_batch ", t.micro_batch,
                   "; ", t.global_batch / t.micro_batch * t.micro_batch, " and ",
                   (t.global_batch / t.micro_batch + 1) * t.micro_batch, " are the nearest that are");
    for (const std::int64_t batch : batches.all())
        if (!t.batch_schedule.empty() && batch % t.micro_batch != 0)
            fail_usage("--train.batch_schedule comes to steps of ", batch, " samples, which is not a multiple of --train.micro_batch ",
                       t.micro_batch);
    if (t.batch_ramp.empty()) return;
    for (const int i : {0, 1})
        if (const std::int64_t n = t.batch_ramp[static_cast<std::size_t>(i)];
            n % t.micro_batch != 0 && t.batch_ramp[0] != t.global_batch)
            fail_usage("--train.batch_ramp ", i == 0 ? "starts at " : "grows by ", n,
                       ", which is not a multiple of --train.micro_batch ", t.micro_batch);
}

void resolve_and_validate(Config& config) {
    check_texts(config);
    resolve_model(config.model);
    check_data(config.data);
    resolve_batch(config);
    resolve_length(config);
    check_train(config);
    if (config.train.seed > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
        fail_usage("--train.seed is ", config.train.seed, "; the largest is ", std::numeric_limits<std::int64_t>::max());
    check_optim(config);
    check_memory_and_run(config);
    check_parallel(config);
    check_fault(config.fault);
    (void)parse_injected_faults(config);
}

}  // namespace keel
