// engine/config.h: every setting of a run, one struct per section. A flag is spelled as the expression it sets:
// `--optim.lr 3e-4` sets config.optim.lr, and so does `lr = 3e-4` under [optim] in a TOML file.
//
// `fields` visits (name, member, help) in one table: the flags, the help, the printed configuration and the copy kept in a
// checkpoint all come from it (engine/config_io.h). Whatever can be refused is refused by `validate` before work begins.
// Sizes count elements; batches count samples (a sample is seq_len tokens).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace keel {

#define KEEL_FIELD(member, help) field(#member, member, help)

struct ModelSection {
    std::string preset;                     // a released shape by name; the fields below then change it
    std::string dtype = "bf16";
    std::int64_t vocab = 0, hidden = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0;
    double norm_eps = 1e-5;
    double rope_base = 10000;
    std::string rope_scaling = "none";
    double rope_factor = 1, rope_original_max_position = 0, rope_low_freq_factor = 1, rope_high_freq_factor = 4;
    double rope_beta_fast = 32, rope_beta_slow = 1, rope_attention_factor = 0, rope_fraction = 1;
    std::vector<double> rope_short_factors, rope_long_factors;
    bool tied = false, qkv_bias = false, qk_norm = false, qk_norm_whole = false, post_norm = false;
    std::int64_t window = 0;
    double init_std = 0.02;

    template <class Field> void fields(Field&& field) {
        KEEL_FIELD(preset, "a released shape, for example llama-3.2-1b; `keel estimate --presets` lists them");
        KEEL_FIELD(dtype, "type of parameters and activations: bf16 or f16 (float32 master weights; f16 with optim.loss_scale), or f32");
        KEEL_FIELD(vocab, "rows of the embedding; 0 takes the tokenizer's size; more than ckpt.init has adds rows, each their mean");
        KEEL_FIELD(hidden, "width of the residual stream");
        KEEL_FIELD(layers, "number of transformer blocks");
        KEEL_FIELD(heads, "query heads");
        KEEL_FIELD(kv_heads, "key and value heads; 0 means as many as heads");
        KEEL_FIELD(head_dim, "elements per head; 0 means hidden / heads");
        KEEL_FIELD(ffn, "width of the SwiGLU layer");
        KEEL_FIELD(norm_eps, "added to the mean square inside the root of RMSNorm");
        KEEL_FIELD(rope_base, "base of the rotary angles");
        KEEL_FIELD(rope_scaling, "none, linear, llama3, yarn or longrope");
        KEEL_FIELD(rope_factor, "context extension factor of the scaling");
        KEEL_FIELD(rope_original_max_position, "context length before scaling (llama3, yarn, longrope)");
        KEEL_FIELD(rope_low_freq_factor, "llama3: wavelengths past original / this are divided by the factor");
        KEEL_FIELD(rope_high_freq_factor, "llama3: wavelengths below original / this are kept");
        KEEL_FIELD(rope_beta_fast, "yarn: rotations above which a frequency is kept");
        KEEL_FIELD(rope_beta_slow, "yarn: rotations below which a frequency is divided by the factor");
        KEEL_FIELD(rope_attention_factor, "yarn, longrope: multiplies cos and sin; 0 means 0.1 ln(factor) + 1 of yarn, "
                                          "sqrt(1 + ln(factor) / ln(original)) of longrope");
        KEEL_FIELD(rope_fraction, "share of each head that is rotated, from its beginning on (Phi-3)");
        KEEL_FIELD(rope_short_factors, "longrope: what each frequency is divided by, for samples within the original context");
        KEEL_FIELD(rope_long_factors, "longrope: the same for longer samples");
        KEEL_FIELD(tied, "the output matrix is the embedding");
        KEEL_FIELD(qkv_bias, "biases on q, k and v (Qwen2)");
        KEEL_FIELD(qk_norm, "RMSNorm of every q and k head (Qwen3)");
        KEEL_FIELD(qk_norm_whole, "with qk_norm: one norm over all heads of q, and one over all of k (OLMo-2)");
        KEEL_FIELD(post_norm, "norms behind attention and feed-forward, on what they add, instead of before them (OLMo-2)");
        KEEL_FIELD(window, "sliding window: a query sees this many keys, itself included; 0 is full attention");
        KEEL_FIELD(init_std, "standard deviation of initial weights; output projections get it / sqrt(2 layers)");
    }
};

struct DataSection {
    std::vector<std::string> train, valid;
    std::string tokenizer;
    std::vector<double> split = {1, 0, 0};
    std::int64_t seq_len = 0;
    bool shuffle = true;
    bool reset_at_document = true;
    std::string packing = "concatenate", order = "keel";
    std::int64_t order_samples = 0;
    std::int64_t token_vocab = 0, token_eos = -1;
    std::string raw_dtype;
    std::int64_t prefetch = 2;

    template <class Field> void fields(Field&& field) {
        KEEL_FIELD(train, "token files, patterns, folders or @lists, each optionally after its weight: 0.7 books.tok 0.3 'code-*.tok'");
        KEEL_FIELD(valid, "token files for evaluation; empty takes the second part of data.split");
        KEEL_FIELD(tokenizer, "tokenizer.json or its folder; its hash must match the token files");
        KEEL_FIELD(split, "shares of train, validation and test, cut from each file in this order");
        KEEL_FIELD(seq_len, "tokens per sample");
        KEEL_FIELD(shuffle, "visit samples in a random order that is a pure function of seed and sample number");
        KEEL_FIELD(reset_at_document, "attention and positions restart at a document border");
        KEEL_FIELD(packing, "concatenate: a sample runs on over documents; best_fit: whole documents with little padding");
        KEEL_FIELD(order, "keel: a pure function of the sample number; megatron: the indices of its GPTDataset");
        KEEL_FIELD(order_samples, "samples that the order of megatron is made for; it depends on them");
        KEEL_FIELD(token_vocab, "vocabulary of token files that do not say theirs (Megatron, llm.c); 0 takes the tokenizer's");
        KEEL_FIELD(token_eos, "token that parts documents in files without a table of them; -1 takes the tokenizer's");
        KEEL_FIELD(raw_dtype, "uint16 or uint32: files without a header are such numbers, as nanoGPT writes them");
        KEEL_FIELD(prefetch, "micro-batches read ahead on a thread of their own; 0 reads each when it is needed");
    }
};

struct TrainSection {
    std::int64_t samples = 0, steps = 0;
    std::int64_t global_batch = 0, micro_batch = 0;
    std::vector<std::int64_t> batch_ramp;
    std::vector<std::string> batch_schedule;
    std::uint64_t seed = 1234;
    std::int64_t eval_interval = 0, eval_samples = 0, log_interval = 1;
    std::string sample_prompt;

    template <class Field> void fields(Field&& field) {
        KEEL_FIELD(samples, "length of the run in samples; give this or steps");
        KEEL_FIELD(steps, "length of the run in optimizer steps; give this or samples");
        KEEL_FIELD(global_batch, "samples per optimizer step");
        KEEL_FIELD(micro_batch, "samples per forward and backward; must divide global_batch");
        KEEL_FIELD(batch_ramp, "start increment ramp_samples: grow the batch to global_batch over ramp_samples");
        KEEL_FIELD(batch_schedule, "tokens:samples …, in place of global_batch: its size from that many tokens on, 0:768 250B:1536");
        KEEL_FIELD(seed, "of weights and data order");
        KEEL_FIELD(eval_interval, "steps between evaluations; 0 evaluates once, at the end");
        KEEL_FIELD(eval_samples, "samples per evaluation; 0 takes the whole validation set");
        KEEL_FIELD(log_interval, "steps between log lines");
        KEEL_FIELD(sample_prompt, "text that the finished model continues, printed and put in the report");
    }
};

struct OptimSection {
    double lr = 3e-4, min_lr = 0, init_lr = 0;
    std::string schedule = "cosine", wsd_decay = "exponential";
    std::int64_t warmup_samples = 0, decay_samples = 0, wsd_samples = 0;
    double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1, weight_decay_end = -1, clip = 1.0, z_loss = 0;
    std::string weight_decay_schedule = "linear";
    std::string loss_scale = "dynamic";
    double loss_scale_initial = 32768, loss_scale_min = 1;
    std::int64_t loss_scale_window = 1000, loss_scale_hysteresis = 2;

    template <class Field> void fields(Field&& field) {
        KEEL_FIELD(lr, "peak learning rate");
        KEEL_FIELD(min_lr, "learning rate after the decay");
        KEEL_FIELD(init_lr, "learning rate at the first sample of the warm-up");
        KEEL_FIELD(schedule, "constant, linear, cosine, inverse_sqrt or wsd; progress is counted in samples");
        KEEL_FIELD(wsd_decay, "shape of the last part of wsd: linear, cosine, exponential or minus_sqrt");
        KEEL_FIELD(warmup_samples, "samples over which the rate climbs from init_lr to lr");
        KEEL_FIELD(decay_samples, "sample at which min_lr is reached; 0 means the end of the run");
        KEEL_FIELD(wsd_samples, "length of the decay of wsd");
        KEEL_FIELD(beta1, "decay of the first moment");
        KEEL_FIELD(beta2, "decay of the second moment");
        KEEL_FIELD(eps, "added to the root of the second moment");
        KEEL_FIELD(weight_decay, "on matrices only; vectors never decay");
        KEEL_FIELD(weight_decay_end, "weight decay at the end of the run; negative keeps weight_decay");
        KEEL_FIELD(weight_decay_schedule, "the way there: linear or cosine");
        KEEL_FIELD(clip, "ceiling of the global gradient norm; 0 turns it off");
        KEEL_FIELD(z_loss, "weight of the squared log-partition; 0 turns it off");
        KEEL_FIELD(loss_scale, "f16 only: what each token's loss is multiplied by before backward, a number, or dynamic: halved where "
                               "gradients overflow, doubled where they long have not");
        KEEL_FIELD(loss_scale_initial, "dynamic: the scale of the first step");
        KEEL_FIELD(loss_scale_min, "dynamic: the scale never falls below this; an overflow there is looked into like any other fault");
        KEEL_FIELD(loss_scale_window, "dynamic: steps in a row without an overflow after which the scale doubles");
        KEEL_FIELD(loss_scale_hysteresis, "dynamic: overflows since the scale last doubled from which on each halves it");
    }
};

struct MemorySection {
    std::string recompute = "none";
    std::int64_t head_chunk = 0;

    template <class Field> void fields(Field&& field) {
        KEEL_FIELD(recompute, "what backward computes again instead of keeping: none, swiglu, norms, attention or block");
        KEEL_FIELD(head_chunk, "tokens per chunk of the output layer and loss; 0 chooses");
    }
};

struct CkptSection {
    std::string init, resume = "auto";
    std::int64_t interval = 0, keep_last = 2, keep_every = 0;
    bool accept_changes = false, async = false;
    std::string local_dir;
    std::int64_t local_interval = 0, local_distance = 0;

    template <class Field> void fields(Field&& field) {
        KEEL_FIELD(init, "model folder or checkpoint whose weights the run starts from");
        KEEL_FIELD(resume, "auto takes the newest good checkpoint of the run, none starts anew, or a checkpoint's path");
        KEEL_FIELD(interval, "steps between checkpoints; one is always written before the run ends or is stopped");
        KEEL_FIELD(keep_last, "newest checkpoints to keep; 0 keeps all");
        KEEL_FIELD(accept_changes, "resume although data, schedule or batch differ from the checkpoint's");
        KEEL_FIELD(keep_every, "also keep each checkpoint whose step is a multiple of this; 0 turns it off");
        KEEL_FIELD(async, "training goes on while a checkpoint is written, from a snapshot that takes the state's memory again");
        KEEL_FIELD(local_dir, "node-local storage for fast checkpoints, copied to a partner rank; a restart takes the newest whole one");
        KEEL_FIELD(local_interval, "steps between local checkpoints");
        KEEL_FIELD(local_distance, "how many ranks away the partner is, such as the ranks per node; 0 means half of all ranks");
    }
};

struct RunSection {
    std::string dir;
    std::int64_t threads = 0;
    std::string device = "cpu", bf16_by = "auto";
    bool graph = true, hopper = false;

    template <class Field> void fields(Field&& field) {
        KEEL_FIELD(dir, "folder of the run: checkpoints, log, report");
        KEEL_FIELD(threads, "threads that compute, per rank; 0 shares out the processors that this process may use");
        KEEL_FIELD(device, "cpu, cuda, or cudasim: the kernels of a GPU run by a simulator, exact and slow");
        KEEL_FIELD(bf16_by, "what multiplies bf16 on a processor: tiles (AMX), dots (AVX-512 BF16) or floats, each with bits of its own; auto is "
                            "the fastest here");
        KEEL_FIELD(graph, "on a GPU, a step is launched as one CUDA graph, from its second time on");
        KEEL_FIELD(hopper, "attention by sm_90's own instructions; off until checked on your GPU (docs/gpu.md)");
    }
};

struct ProfileSection {
    std::int64_t start = 0, stop = 0;

    template <class Field> void fields(Field&& field) {
        KEEL_FIELD(start, "on a GPU: the step before which a profiler is told to look (cudaProfilerStart); 0 is never");
        KEEL_FIELD(stop, "the step before which it is told to stop; 0 is the end of the run");
    }
};

// How the ranks share one model (docs/parallelism.md). None of it changes what is computed, but for the order of sums.
struct ParallelSection {
    std::int64_t tp = 1, pp = 1, cp = 1, dp = 0;
    bool sequence = true;
    std::int64_t chunks = 1, micro_batch_group = 0;
    std::string schedule = "auto";
    std::int64_t first_layers = 0, last_layers = 0;
    bool count_embedding = false, count_head = false;
    std::string layers;
    std::string context = "gather";
    std::int64_t vocab_multiple = 128, bucket = 0;
    bool overlap = true, overlap_reduce = true, overlap_gather = true;
    double deadline_s = 600;

    template <class Field> void fields(Field&& field) {
        KEEL_FIELD(tp, "ranks that share every matrix: tensor parallelism");
        KEEL_FIELD(pp, "ranks that share the layers: pipeline stages");
        KEEL_FIELD(cp, "ranks that share every sequence: context parallelism");
        KEEL_FIELD(dp, "replicas that share the batch; 0 takes what tp, pp and cp leave of the ranks there are");
        KEEL_FIELD(sequence, "with tp, norms and the residual stream are cut by tokens: sequence parallelism");
        KEEL_FIELD(chunks, "parts of the model per pipeline stage: virtual stages of the interleaved schedule");
        KEEL_FIELD(schedule, "auto, gpipe, 1f1b or interleaved; auto is 1f1b, or interleaved with chunks");
        KEEL_FIELD(micro_batch_group, "interleaved: micro-batches in a row through one chunk; 0 means pp");
        KEEL_FIELD(first_layers, "layers of the first stage; 0 means an equal share");
        KEEL_FIELD(last_layers, "layers of the last stage; 0 means an equal share");
        KEEL_FIELD(count_embedding, "the embedding counts as a layer when layers are shared out");
        KEEL_FIELD(count_head, "the output layer counts as a layer when layers are shared out");
        KEEL_FIELD(layers, "the split written out, as in \"Ett|tttt|tttL\": E embedding, t layer, L loss, | next stage");
        KEEL_FIELD(context, "how cp ranks see each other's keys: gather (all at once) or ring (one slice at a time)");
        KEEL_FIELD(vocab_multiple, "with tp, each rank's share of the vocabulary is a multiple of this");
        KEEL_FIELD(bucket, "gradient elements that are reduced together; 0 means max(40 M, 1 M x dp x cp)");
        KEEL_FIELD(overlap, "reduce gradients and gather parameters while computing, from the second step on");
        KEEL_FIELD(overlap_reduce, "with overlap: a bucket of gradients is reduced while backward goes on");
        KEEL_FIELD(overlap_gather, "with overlap: updated parameters are gathered while the next forward goes on");
        KEEL_FIELD(deadline_s, "seconds a collective may take before its ranks give up and say who is missing");
    }
};

// When a run leaves before its end, always behind a checkpoint of exactly that step (docs/operations.md).
struct ExitSection {
    double after_s = 0;
    std::int64_t interval = 0;
    std::vector<std::int64_t> steps;

    template <class Field> void fields(Field&& field) {
        KEEL_FIELD(after_s, "leave before this many seconds have passed, with time kept for the last checkpoint; 0 never does");
        KEEL_FIELD(interval, "leave after every step that is a multiple of this; 0 never does");
        KEEL_FIELD(steps, "leave after these steps, where a phase ends and the next one has other settings");
    }
};

// Whether the ranks live, and whether what computes is sound (docs/operations.md).
struct WatchSection {
    double start_s = 900, step_s = 300;
    bool leave = false;
    double heartbeat_s = 10;
    bool self_test = true;
    std::int64_t self_test_interval = 0;
    bool even = false;

    template <class Field> void fields(Field&& field) {
        KEEL_FIELD(start_s, "seconds that the start may take before each rank says where it stands; 0 never asks");
        KEEL_FIELD(step_s, "seconds without a sign of life, after the start, before each rank says where it stands; 0 never asks");
        KEEL_FIELD(leave, "a rank that had to say where it stands ends the run, with exit code 18");
        KEEL_FIELD(heartbeat_s, "seconds between two writes of where a rank stands, to RUN/heartbeat/; 0 writes nothing");
        KEEL_FIELD(self_test, "before the first step, test every core by products and patterns whose result is known");
        KEEL_FIELD(self_test_interval, "steps between further self-tests; 0 tests at the start only");
        KEEL_FIELD(even, "do not train where a rank's matrix products are faster or slower than the median rank's by more than a tenth "
                         "and by more than most; compares three ranks or more, none of which share processors");
    }
};

struct NumericsSection {
    std::string grad_sum = "float";

    template <class Field> void fields(Field&& field) {
        KEEL_FIELD(grad_sum, "float, or exact: gradients are summed as integers, so that the number of replicas and the "
                             "size of a micro-batch do not change a bit");
    }
};

// What a run tells, and where (docs/observe.md).
struct ObserveSection {
    bool tensorboard = true;
    std::string prometheus_file, http_address = "127.0.0.1";
    std::int64_t http_port = 0;
    std::string timers = "coarse", device_peak;
    double straggler_factor = 1.5;
    std::int64_t straggler_times = 10;
    std::vector<std::int64_t> trace_steps;

    template <class Field> void fields(Field&& field) {
        KEEL_FIELD(tensorboard, "write TensorBoard event files to run.dir/tensorboard");
        KEEL_FIELD(prometheus_file, "metrics for a node exporter's textfile collector; empty means run.dir/metrics.prom");
        KEEL_FIELD(http_port, "a Prometheus server scrapes the run at this port, as http://ADDRESS:PORT/metrics; 0 opens none");
        KEEL_FIELD(http_address, "numeric address that the port is opened on; 0.0.0.0 lets other machines in");
        KEEL_FIELD(timers, "off, coarse or fine: compare the ranks' times at every log line, by phase, or also by what they did when");
        KEEL_FIELD(straggler_factor, "a rank is slow that works slower than the median by this");
        KEEL_FIELD(straggler_times, "log lines in a row on which a rank is slow before it is warned about, once; 0 never warns");
        KEEL_FIELD(device_peak, "what MFU is measured against: a100, h100, h200, or a rank's dense peak in TFLOP/s by its datasheet; a GPU's own is known");
        KEEL_FIELD(trace_steps, "first and last step of a trace of what ran when on every rank, for Perfetto: run.dir/trace.json");
    }
};

// What is done about steps that look wrong (docs/operations.md).
struct FaultSection {
    std::string mode = "report";
    std::int64_t interval = 100;
    double spike_factor = 10;
    std::int64_t spike_steps = 100, tolerate = 0, replica_interval = 100;
    std::vector<std::string> skip;

    template <class Field> void fields(Field&& field) {
        KEEL_FIELD(mode, "report: a step that looks wrong is computed again, and the run stops if it is; validate: also every "
                         "interval-th step is; disabled: a step that is not finite changes nothing, and training goes on");
        KEEL_FIELD(interval, "with validate: steps from one that is computed twice to the next");
        KEEL_FIELD(spike_factor, "a loss or gradient norm this many times the largest of the first spike_steps looks wrong; 0 never");
        KEEL_FIELD(spike_steps, "steps that set the measure for spikes");
        KEEL_FIELD(tolerate, "errors of the hardware that training survives, by the two of three results that agree; 0 stops at the first");
        KEEL_FIELD(replica_interval, "steps between comparisons of what ranks hold in common, bit for bit; 0 compares nothing");
        KEEL_FIELD(skip, "steps to pass over, as in 7 10-12: their data is consumed, and nothing else happens");
    }
};

// Faults that a run is to suffer, to see what becomes of it (engine/fault/injected_fault.h). Never on by itself.
struct InjectSection {
    std::vector<std::string> faults;
    std::uint64_t seed = 1;

    template <class Field> void fields(Field&& field) {
        KEEL_FIELD(faults, "faults this run is to suffer, as in grad_nan,step=7,rank=1 or kill,step=9,every=5, or at a random time "
                           "kill:3/hang:1,mttf=600; docs/operations.md has them all");
        KEEL_FIELD(seed, "of what a fault leaves open: kind, time, ranks, tensor, element, bit");
    }
};

struct Config {
    ModelSection model;
    DataSection data;
    TrainSection train;
    OptimSection optim;
    MemorySection memory;
    ParallelSection parallel;
    NumericsSection numerics;
    CkptSection ckpt;
    ExitSection exit;
    WatchSection watch;
    ObserveSection observe;
    FaultSection fault;
    InjectSection inject;
    RunSection run;
    ProfileSection profile;

    template <class Section> void sections(Section&& section) {
        section("model", model);
        section("data", data);
        section("train", train);
        section("optim", optim);
        section("memory", memory);
        section("parallel", parallel);
        section("numerics", numerics);
        section("ckpt", ckpt);
        section("exit", exit);
        section("watch", watch);
        section("observe", observe);
        section("fault", fault);
        section("inject", inject);
        section("run", run);
        section("profile", profile);
    }
};

}  // namespace keel
