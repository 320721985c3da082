// engine/parallel/simulate.h: how long a training step takes on a cluster that need not be there.
//
// Work is counted from shapes (model_work.h), turned into seconds by a device's rates (cluster.h), and played through
// the very pipeline tables that the executor runs (pipeline_run.h); gradients and optimizer follow at each rank's own
// end. Only one number is fitted, the share of peak that matrix products reach; the rest is counted or from datasheets.
// What is left out: kernel launches, stragglers, congestion, data loading, checkpoints. docs/parallelism.md compares it
// with published runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/parallel/cluster.h"
#include "engine/parallel/layers.h"
#include "engine/parallel/model_work.h"
#include "engine/parallel/pipeline_run.h"

namespace keel {

struct ClusterLayout {
    std::int64_t tp = 1, cp = 1, dp = 1, pp = 1;
    bool sequence = true;
    PipelineSchedule schedule = PipelineSchedule::none;
    std::int64_t chunks = 1, group = 0;
    std::vector<LayerRange> split{};          // per virtual stage
    std::int64_t micro_batch = 1, micro_batches = 1, seq_len = 0;
    bool scattered_sends = false;             // without sequence: tp ranks send a share each, gathered where it arrives
    bool blocking_sends = false;              // ranks compute nothing while they send or receive; keel's do
    bool sharded = true;                      // the optimizer, over dp * cp
    bool overlap = true;                      // gradients behind the last backward, parameters behind the first forward
    double bucket = 0;                        // gradient elements reduced together
};

// Mean over ranks of the seconds of a step. They add up to step_s.
struct StepTimes {
    double gemm = 0, attention = 0, memory = 0;  // computing
    double tp = 0, cp = 0;                       // collectives inside of blocks: nothing hides them
    double idle = 0;                             // waiting for other stages: bubble, sends, the slowest rank's end
    double dp = 0;                               // gradients and parameters that nothing hides
    double optimizer = 0;
    double sum() const { return gemm + attention + memory + tp + cp + idle + dp + optimizer; }
};
struct StepForecast {
    double step_s = 0, tokens_per_s = 0, mfu = 0;
    double bubble = 0;       // of the schedule alone, with free sends: share of the busiest rank's work
    double dp_hidden_s = 0;  // mean of what overlap hides
    StepTimes times;
    std::vector<double> rank_s;  // per pipeline rank: when it is done with its step
    PipelineRun run;
};
StepForecast simulate_step(const ModelWork& work, const ClusterLayout& layout, const Cluster& cluster);

// One line per part of the step, then tokens/s and MFU.
std::string forecast_text(const StepForecast& forecast, const ClusterLayout& layout, const Cluster& cluster);

}  // namespace keel
