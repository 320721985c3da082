// engine/parallel/forecast.h: what a parallel configuration will do, before there is any rank: the schedule it plays,
// the time of its steps on a cluster, the memory of every stage, all from the code that a run uses.
//
// Configurations are resolved and valid, their dp included (engine/parallel/layout.h).
#pragma once

#include <string>

#include "engine/config.h"
#include "engine/parallel/simulate.h"

namespace keel {

ClusterLayout cluster_layout(const Config& config);

// One step of one replica, by FLOPs alone, in units of one block's forward.
PipelineRun schedule_forecast(const Config& config);

StepForecast cluster_forecast(const Config& config, const Cluster& cluster);

// The peak of one rank of each pipeline stage, and what it is made of: from the memory plan of the run itself. With
// more than 16 stages: of the first, the last, and the one between that keeps the most. Then the whole plan of the
// largest. `memory_gb` is what a device has; 0 is not known.
std::string stage_memory(const Config& config, double memory_gb);

}  // namespace keel
