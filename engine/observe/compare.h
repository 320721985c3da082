// engine/observe/compare.h: several runs side by side: what they were told, what they reached, and where their time
// went.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/config.h"
#include "engine/observe/run_log.h"

namespace keel {

struct ComparedRun {
    std::string name{};  // its folder, as short as tells it from the others
    Config config{};     // RUN/config.toml
    RunLog log{};
};

// Reads the folders of runs. Fails for one that is not there, holds no run, or has not made a step, and says which and
// why.
std::vector<ComparedRun> read_runs(const std::vector<std::string>& folders);

// A setting that is not the same in all runs, with its value in each. Where a run lies does not count.
struct Difference {
    std::string key;
    std::vector<std::string> values;
};
std::vector<Difference> differences(const std::vector<ComparedRun>& runs);

// What a run came to. NaN where it is not known.
struct Outcome {
    std::int64_t steps = 0, tokens = 0;
    double loss = 0, eval_loss = 0;  // loss: mean of the last twentieth of the steps
    double tokens_per_second = 0;    // of training, over all steps kept
    double flops_per_second = 0, peak_percent = 0;
    double goodput_percent = 0, seconds = 0;
    int sessions = 0;
    std::string ended{};  // "done", "signal", …; "not yet, or killed"
};
Outcome outcome(const RunLog& log);

// One self-contained page.
std::string comparison_html(const std::vector<ComparedRun>& runs);

}  // namespace keel
