// engine/observe/memory_chart.h: the memory plan over a step as a picture: what lives at each moment, by use, and the
// peak.
#pragma once

#include <string>

#include "engine/memory/plan.h"

namespace keel {

// A figure for a page whose CSS has the classes u0 … u6 (by Use), grid, tick and dot (report.cpp). Empty for an empty
// plan.
std::string memory_svg(const MemoryPlan& plan);

}  // namespace keel
