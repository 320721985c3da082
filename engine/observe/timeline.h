// engine/observe/timeline.h: what ran when on every thread of every rank, as a picture: forward and backward by micro-batch,
// chunks as shades, communication and waiting in colours of their own, so that what is hidden behind what can be seen.
#pragma once

#include <span>
#include <string>

#include "engine/observe/spans.h"

namespace keel {

struct TimelineLane {
    std::string name;     // "rank 0", "rank 0 beside"
    const Spans* spans;
};

// A self-contained SVG that reads well on white and on dark paper. Lanes share one clock.
std::string timeline_svg(std::span<const TimelineLane> lanes);

}  // namespace keel
