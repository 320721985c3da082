// engine/parallel/schedule_picture.h: a played pipeline schedule, drawn: one lane per rank, a box per forward and
// backward with its micro-batch, the chunk as a shade, idle time visible, makespan and bubble in the caption.
#pragma once

#include <string>

#include "engine/parallel/pipeline_run.h"

namespace keel {

// "1f1b, 4 stages, 8 micro-batches: ...", one line. `unit` names the unit of time, for example "block forwards".
std::string schedule_caption(const PipelineRun& run, const std::string& unit);

// For a terminal. Lines longer than `columns` are continued in further bands of lanes; after `most_bands` of them the
// rest is left out, and said to be.
//     rank 0 |F0|F1............|B0   |B1
//     rank 1 ...|F0|B0   |F1|B1
std::string schedule_text(const PipelineRun& run, const std::string& unit, int columns = 120, int most_bands = 12);

// A file of its own that reads well on white and on dark paper. Fails if there are too many boxes to look at.
std::string schedule_svg(const PipelineRun& run, const std::string& unit);

}  // namespace keel
