// engine/observe/trace.h: the trace of a few steps of a run (--observe.trace_steps): each rank writes
// RUN/trace/rank-N.json, and when the last of the steps is done they become RUN/trace.json.
//
// Steps are cut where nothing is under way beside: when gradients are summed, before the update. So a trace begins with
// the update of the step before its first, and ends with the gradients of its last. Writing costs a traced step
// milliseconds; other steps pay nothing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "comm/calls.h"
#include "engine/config.h"
#include "engine/observe/chrome_trace.h"
#include "engine/observe/spans.h"
#include "engine/parallel/ranks.h"

namespace keel {

class Trace {
public:
    // A collective, if there are steps to trace; `next_step` is the first that the process takes.
    Trace(const Config& config, const Ranks& ranks, Stream& stream, std::int64_t next_step);
    ~Trace();
    Trace(const Trace&) = delete;
    Trace& operator=(const Trace&) = delete;

    // What both threads of this rank have done since the step before. Every rank calls it after every step's gradients.
    void cut(std::int64_t step, const Spans& here, const Spans& beside);
    // What came since is no part of a step.
    void forget() { here_.clear(), beside_.clear(); }
    // A checkpoint, while steps are traced.
    void checkpoint(std::int64_t step, Clock::time_point begin, Clock::time_point end);
    // Ends a trace that is under way. A collective: every rank is in the same steps.
    void end();

private:
    void begin();
    void listen(bool on);

    std::filesystem::path run_dir_;
    Ranks ranks_;
    std::string name_;  // of this rank
    std::int64_t first_ = 0, last_ = -1;
    TraceClock clock_;
    Calls here_, beside_;
    bool tracing_ = false;               // equal on all ranks
    std::unique_ptr<ChromeTrace> file_;  // while it can be written
};

}  // namespace keel
