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

// Spans as text that travels between processes: the time of day is what their clocks have in common.
std::string spans_text(const Spans& spans);
Spans read_spans(const std::string& text);

// A self-contained SVG that reads well on white and on dark paper. Lanes share one clock.
std::string timeline_svg(std::span<const TimelineLane> lanes);

}  // namespace keel
