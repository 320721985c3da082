#include "engine/overlap/step_graph.h"

#include <algorithm>

namespace keel {

bool can_be_one_graph(const Config& config) {
    const ParallelSection& p = config.parallel;
    return p.pp == 1 && (p.cp == 1 || p.context != "ring") && config.numerics.grad_sum != "exact" && config.inject.faults.empty();
}

StepGraph::Capture::~Capture() {
    if (!open_) return;
    try {
        (void)backend_.gpu->end_capture(backend_.stream);
    } catch (const Error&) {  // why the scope ends is known, and worth more
    }
}

std::unique_ptr<GpuGraph> StepGraph::Capture::end() {
    open_ = false;
    return backend_.gpu->end_capture(backend_.stream);
}

StepGraph::Captured& StepGraph::of(Size size) {
    const auto at = std::ranges::find_if(steps_, [&](const Captured& c) { return c.size == size; });
    if (at != steps_.end()) return *at;
    return steps_.emplace_back(Captured{.size = size, .seen = false, .graph = nullptr});
}

std::int64_t StepGraph::nodes() const {
    std::int64_t all = 0;
    for (const Captured& c : steps_) all += c.graph ? c.graph->nodes() : 0;
    return all;
}

}  // namespace keel
