// engine/observe/chrome_trace.h: what ran when, as JSON that Perfetto (ui.perfetto.dev) and chrome://tracing open: a
// process per rank, a lane per stream of work, an arrow from each send to its receive.
//
// Times are microseconds on the clock of rank 0, so that ranks can be laid over each other: see TraceClock. Every event
// stands on a line of its own, and a file that was cut off is whole again once "]}" follows its last whole line.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/calls.h"
#include "comm/group.h"
#include "engine/observe/spans.h"

namespace keel {

// How a rank's clock stands to that of rank 0, which is where a trace's time begins.
struct TraceClock {
    std::int64_t offset_ns = 0;  // this clock - that of rank 0
    std::int64_t error_ns = 0;   // at most
    std::int64_t origin_ns = 0;  // on the clock of rank 0
    double microseconds(Clock::time_point at) const;
};

// When a rank entered and left a collective in which no one leaves before all have entered, on its own clock.
struct BarrierTimes {
    std::int64_t entered_ns, left_ns;
};
// What meetings of both tell: whoever leaves does so after the other has entered. Clocks that may be one are taken for
// one.
TraceClock clock_from(std::span<const BarrierTimes> rank0, std::span<const BarrierTimes> here);
// A collective: a few barriers.
TraceClock meet(Group& world, Stream& stream);

// One rank's file.
class ChromeTrace {
public:
    // `about` goes into the file's otherData. Throws if the file cannot be written; later problems are found by
    // close().
    ChromeTrace(const std::filesystem::path& path, int rank, const std::string& name, const TraceClock& clock,
                std::vector<std::pair<std::string, std::string>> about);
    ~ChromeTrace();
    ChromeTrace(const ChromeTrace&) = delete;
    ChromeTrace& operator=(const ChromeTrace&) = delete;

    // What the thread that computes, and the one that communicates beside it, have done up to the end of a step's
    // gradients.
    struct Step {
        std::int64_t step;
        const Spans &here, &beside;
        const Calls &calls_here, &calls_beside;
    };
    void step(const Step& step);
    void checkpoint(std::int64_t step, Clock::time_point begin, Clock::time_point end);
    // "" or why the file is not whole.
    std::string close();

private:
    void spans(const Spans& spans, bool beside, std::int64_t step);
    void calls(const Calls& calls, bool beside, std::int64_t step);
    void event(int lane, const char* category, const std::string& name, Clock::time_point begin, Clock::time_point end,
               const std::string& args);
    void line(const std::string& text);

    std::filesystem::path path_;
    int rank_;
    TraceClock clock_;
    std::FILE* file_;
    std::int64_t dropped_ = 0, latest_step_ = -1;
    using Route = std::tuple<std::string_view, std::string_view, int, int, int>;  // group, what, from, to, channel
    std::map<Route, std::int64_t> messages_;  // of the step, which may run more than once
};

// One file of all ranks' files; those that are missing or cut off give what they have.
void merge_traces(std::span<const std::filesystem::path> parts, const std::filesystem::path& merged);

}  // namespace keel
