// engine/observe/outputs.h: what a run tells programs, beside its log: TensorBoard's event files, Prometheus's text,
// progress.txt. docs/observe.md says where each lies and how to open it.
//
// Observe hands over what happened. Files are brought up to date at a log line, at most once a second; a file that
// cannot be written is told once, and the run goes on. Nothing here allocates after start().
#pragma once

#include <memory>

#include "engine/config.h"
#include "engine/observe/append_file.h"
#include "engine/observe/facts.h"
#include "engine/observe/flops.h"
#include "engine/observe/ledger.h"
#include "engine/observe/metrics.h"
#include "engine/observe/progress_file.h"
#include "engine/observe/tfevents.h"

namespace keel {

class Outputs {
public:
    // Refuses what cannot be opened. `ledger` must outlive it.
    Outputs(const Config& config, const RunFacts& facts, const Ledger& ledger, Warn warn);
    ~Outputs();
    Outputs(const Outputs&) = delete;
    Outputs& operator=(const Outputs&) = delete;

    void start(const Progress& progress, double unix_time);
    void step(const StepFacts& step, bool log_line);
    void eval(const Progress& progress, const EvalResult& eval, double unix_time);
    void saving(const Progress& progress, double unix_time);
    void saved(const Progress& progress, double unix_time);

private:
    void publish();

    const Config& config_;
    const Ledger& ledger_;
    Flops flops_;
    Warn warn_;
    ProgressFile progress_file_;
    Metrics metrics_;
    std::unique_ptr<EventFile> events_;  // from start() on, unless config.observe.tensorboard is off
    double published_ = 0;               // wall seconds
};

}  // namespace keel
