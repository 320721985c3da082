// engine/fault/dump.h: the samples of a step, as a file for people: RUN/fault-step-00000007.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "data/loader.h"
#include "engine/progress.h"

namespace keel {

// {"step", "micro_batches": [{"micro_batch", "first_sample", "samples", "ids", "labels"}]}, of those micro-batches of the
// step. A sample number and the run's data settings are a sample, so this file is for looking at. Returns its path.
std::string dump_samples(const std::filesystem::path& run, std::int64_t step, Loader& loader, const StepPlan& plan,
                         std::span<const std::int64_t> micro_batches);

}  // namespace keel
