// engine/observe/observe.h: what a run tells: one line per step, one JSON record per step, a progress bar, a report.
//
//     Observe observe(config, {.parameters = n, .matmul_peak = flops_per_s, …}, ledger);
//     observe.start(progress);                        // once, before the first step: also after a resume
//     observe.record(progress, plan, step);           // after progress.advance, every step
//     observe.record_eval(progress, eval);
//     observe.record_saving(progress);                // when a checkpoint is about to be written
//     observe.record_save(progress, path, seconds);   // when it has been announced
//     observe.finish(progress, why, …);               // closes the log and writes report.html
//
// The log line (log_line.h) goes to stdout, the bar to stderr if that is a terminal. RUN/log.jsonl is appended to and can
// be read while the run goes on: every record is written out as a whole line. Seconds come from the Ledger: the time of a
// step is its share of the phases that train (is_training); evaluation and checkpoints are not throughput.
// After start() nothing here allocates but finish().
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "engine/config.h"
#include "engine/observe/energy.h"
#include "engine/observe/facts.h"
#include "engine/observe/flops.h"
#include "engine/observe/ledger.h"
#include "engine/observe/log_line.h"
#include "engine/observe/outputs.h"
#include "engine/observe/report.h"
#include "engine/progress.h"

namespace keel {

class Observe {
public:
    // Opens RUN/log.jsonl (config.run.dir must exist). `ledger` must outlive it.
    Observe(const Config& config, const RunFacts& facts, Ledger& ledger);
    ~Observe();
    Observe(const Observe&) = delete;
    Observe& operator=(const Observe&) = delete;

    void start(const Progress& progress);
    void record(const Progress& progress, const StepPlan& plan, const StepResult& step);
    void record_eval(const Progress& progress, const EvalResult& eval);
    void record_saving(const Progress& progress);
    void record_save(const Progress& progress, const char* path, double seconds);
    // Other ledgers' words: a record for log.jsonl, as JsonLine makes it, and a line of the log. Warnings are for
    // people.
    void tell(const char* json, const char* line = nullptr);
    void warn(const std::string& text);
    void add_cost(double seconds) { cost_seconds_ += seconds; }  // of observing itself
    // `why`: "done", "signal", … Returns where the report lies.
    std::filesystem::path finish(const Progress& progress, const char* why, const Ending& ending);

private:
    StepFacts facts_of(const Progress& progress, const StepPlan& plan, const StepResult& step);
    void write_json(const char* line);
    void write_seconds(const Progress& progress);
    void show_end(const Progress& progress);
    void show_line(const char* line);
    void draw_bar(const Progress& progress, double loss, double seconds_left);
    void clear_bar();

    Config config_;
    RunFacts facts_;
    Ledger& ledger_;
    Flops flops_;
    std::filesystem::path dir_;
    AppendFile log_;
    bool bar_ = false, bar_shown_ = false;
    std::int64_t log_interval_;
    EnergyMeter energy_;
    Outputs outputs_;

    // Since the last log line.
    Progress logged_;
    double logged_seconds_ = 0;      // of training (is_training), then
    double recorded_seconds_ = 0;    // the same at the last record
    double recorded_joules_ = 0;     // at the last record, evaluation or checkpoint: what those took is no step's
    double cost_seconds_ = 0;        // of observing
    Progress first_, latest_;        // at start(), at the last record
    LossSum interval_loss_;
    double bar_drawn_ = -1;          // wall seconds
    double rate_samples_ = 0, rate_seconds_ = 0;  // recent steps, older ones fading; for the time left
};

}  // namespace keel
