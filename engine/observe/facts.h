// engine/observe/facts.h: what a run knows about itself, and what one step told: worked out once, by Observe, and read
// by every output (log.jsonl, log line, TensorBoard, Prometheus).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/observe/rank_rates.h"
#include "engine/progress.h"

namespace keel {

// Before the first step.
struct RunFacts {
    std::int64_t parameters = 0;
    double matmul_peak = 0;  // FLOP/s of all ranks, as each reached it in a large product of config.model.dtype; 0: not measured
    RankRates rates{};       // what it is the sum of
    double device_peak = 0;  // FLOP/s of one rank's device by its datasheet; 0: not known
    std::int64_t planned_bytes = 0;  // the memory plan's peak
    std::string memory_table{};      // MemoryPlan::table(), for the report
    std::int64_t total_samples = 0, total_steps = 0;  // of the whole run (Schedule)
    int threads = 1;
    int ranks = 1;
    struct Source {
        std::string name;
        double epochs_per_sample;
    };
    std::vector<Source> sources{};  // of training data
    std::filesystem::path powercap = "/sys/class/powercap";
    std::vector<std::string> gpus{};  // PCI bus ids of those that the run's ranks of this machine use
};

struct StepFacts {
    double unix_time = 0;
    Progress progress{};  // after the step
    StepPlan plan{};
    StepResult result{};
    double seconds = 0;  // of the phases that train (ledger.h)
    double tokens_per_second = 0, flops = 0, flops_per_second = 0;
    double peak_share = -1;         // of the matmul peak; negative: not known
    double total_flops = 0;         // of the run, to here
    double joules = -1, watts = 0;  // of the step, and per device; negative: not measured
    double total_joules = 0;        // of the process, evaluations and checkpoints included
};

}  // namespace keel
