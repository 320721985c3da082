// engine/run.h: everything a training run owns, made in the order in which it can be refused.
//
// Checks come first and cost nothing: the configuration, the tokenizer, the token files, the memory plan. Then memory, then
// weights (initial, from a model, or from the newest good checkpoint), then the loop (engine/train.cpp).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "ckpt/checkpoint.h"
#include "comm/world.h"
#include "data/dataset.h"
#include "data/loader.h"
#include "data/tokenizer.h"
#include "engine/config.h"
#include "engine/fault/device_test.h"
#include "engine/fault/finding.h"
#include "engine/fault/heartbeat.h"
#include "engine/fault/inject.h"
#include "engine/fault/loss_scale.h"
#include "engine/fault/replay.h"
#include "engine/fault/replicas.h"
#include "engine/fault/run_lock.h"
#include "engine/fault/skip_list.h"
#include "engine/fault/standing.h"
#include "engine/fault/watchdog.h"
#include "engine/model/model.h"
#include "engine/observe/ledger.h"
#include "engine/observe/observe.h"
#include "engine/observe/rank_times.h"
#include "engine/observe/trace.h"
#include "engine/overlap/step_graph.h"
#include "engine/parallel/executor.h"
#include "engine/parallel/mesh.h"
#include "engine/parallel/ranks.h"
#include "engine/progress.h"
#include "engine/saver.h"
#include "engine/schedule.h"

namespace keel {

struct Run {
    // Members are in the order of construction; each may lean on those before it.
    Ledger ledger;
    StartupDials startup;
    std::optional<RunLock> lock;  // on run.dir, from before anything is written there until everything is
    Config config;  // resolved
    std::optional<Tokenizer> tokenizer;
    std::string tokenizer_json;
    std::vector<ExtraFile> companions;  // what lies beside the tokenizer: special tokens, chat template
    std::string config_json;  // of the model folder that the weights came from, if they did
    Dataset data;
    std::optional<Dataset> valid_data;
    std::unique_ptr<World> own_world;  // of a run that is the only rank, or whose ranks are GPUs
    World& world;
    Standing standing;  // and who watches it, from here to the end
    Heartbeat heartbeat;
    Watchdog watchdog;
    Mesh mesh;
    Ranks ranks;
    Schedule schedule;
    Progress progress;
    std::optional<LossScale> loss_scale;  // of f16
    Stream stream;  // the crew of the host
    std::unique_ptr<Gpu> gpu;       // where config.run.device is one
    std::unique_ptr<Stream> queue;  // of the GPU
    std::optional<DeviceTest> device_test;  // of a GPU that is to be tested again
    std::optional<StepSpans> spans;  // with observe.timers or a trace: what ran when; the model's thread writes into it to the end
    std::optional<Trace> trace;      // with observe.trace_steps; the same
    std::unique_ptr<Model> model;
    std::unique_ptr<Executor> executor;
    std::optional<StepGraph> graph;
    std::optional<Injector> inject;  // of a run that is to suffer faults
    SkipList skip;
    std::optional<Findings> findings;
    std::optional<Replay> replay;    // unless it is disabled
    std::optional<Replicas> replicas;
    std::optional<Saver> saver;
    Loader loader;
    std::optional<Loader> valid_loader;
    std::vector<std::int32_t> token_bytes;  // bytes of text each id stands for; empty without a tokenizer
    std::optional<RankTimes> rank_times;    // with observe.timers
    std::optional<Stragglers> stragglers;   // of rank 0
    std::unique_ptr<Observe> observe;       // of rank 0, which keeps the run's log

    // `config` as the user gave it; vocab 0 is filled from the tokenizer. Loads a checkpoint if config.ckpt says so. Every rank
    // of `world`, which must outlive it, makes one; without a world it is the only rank.
    explicit Run(Config config, World* world = nullptr);

    // What only the rank with the log does: record([&](Observe& observe) { … }).
    template <class Body> void record(Body&& body) {
        if (observe) body(*observe);
    }

    Spans* what_ran() { return spans ? &spans->here : nullptr; }  // on the thread that runs the loop
    // After what is no part of a step, with nothing under way beside: its picture is to have no gap.
    void restart_picture() {
        if (spans) spans->here.clear(), spans->beside.clear();
        if (trace) trace->forget();
    }
    std::filesystem::path checkpoint_root() const { return std::filesystem::path(config.run.dir) / "checkpoints"; }
};

// Fails where a core or the GPU of this rank computes wrongly.
void test_devices(Run& run);

// What the ledgers are told (engine/record.cpp), by every rank: before the loop, after every step, at the end.
void begin_observing(Run& run);
void record_start(Run& run);
void cut_spans(Run& run);  // a step's gradients are done
void record_step(Run& run, const StepPlan& plan, const StepResult& step);
Ending record_end(Run& run);
// Before a step on a GPU: whether its profiler is to look at it (--profile.start, --profile.stop).
void tell_profiler(Run& run);

// Writes a checkpoint of this moment, or begins to; a later run resumes from it bit for bit.
void save_checkpoint(Run& run);
// After every decision: the local checkpoint that is due, and what became of one under way. `last` waits for it.
void tend_saves(Run& run, bool stepped, bool last);

// After the loop: lets the model write a sample if asked for one, and closes the log and the report. `why` as in the log.
// Returns where the report lies.
std::filesystem::path finish(Run& run, const char* why);

}  // namespace keel
