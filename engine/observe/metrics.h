// engine/observe/metrics.h: a run as a Prometheus server sees it: keel's names, and the file and the port that give
// them out.
//
// The file is for a node exporter's textfile collector: written beside and renamed, so that a reader sees one moment
// whole. It is not synced to the disk: after a power cut there is nothing to scrape. The port is metrics_server.h.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/config.h"
#include "engine/observe/append_file.h"
#include "engine/observe/ledger.h"
#include "engine/observe/metrics_server.h"
#include "engine/observe/prometheus.h"
#include "engine/observe/facts.h"

namespace keel {

class Metrics {
public:
    // Opens the port, if one is asked for; fails if it cannot. `facts` as of the run.
    Metrics(const ObserveSection& config, const std::filesystem::path& run_dir, const RunFacts& facts, Warn warn);

    // Cheap: kept for publish().
    void start(const StepFacts& before) { last_ = before; }
    void step(const StepFacts& step) { last_ = step, step_seconds_.add(step.seconds); }
    void eval(const EvalResult& eval) { eval_loss_ = eval.loss.mean(); }
    void saved(double unix_time) { saved_time_ = unix_time; }
    // Where the file and the port stand from now on. Allocates nothing.
    void publish(const Ledger& ledger);

    const std::filesystem::path& path() const { return path_; }

private:
    void format(const Ledger& ledger);
    void write_file();

    std::filesystem::path path_, beside_;
    std::string run_;
    std::int64_t planned_bytes_;
    std::vector<RunFacts::Source> sources_;
    Warn warn_;
    bool failed_ = false;
    PrometheusText text_;
    std::unique_ptr<MetricsServer> server_;

    StepFacts last_{};
    Histogram step_seconds_;
    std::optional<double> eval_loss_, saved_time_;
};

}  // namespace keel
