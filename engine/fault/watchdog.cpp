#include "engine/fault/watchdog.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "kernels/base/error.h"

namespace keel {
namespace {

// Often enough for the shorter limit, at most every second otherwise; 0 without limits.
double period(const WatchSection& limits) {
    double shortest = 0;
    for (const double limit : {limits.start_s, limits.step_s})
        if (limit > 0) shortest = shortest > 0 ? std::min(shortest, limit) : limit;
    return std::min(shortest / 4, 1.0);
}

}  // namespace

Watchdog::Watchdog(const WatchSection& limits, const Standing& standing, std::function<void()> leave)
    : limits_(limits), standing_(standing), leave_(std::move(leave)), ticker_(period(limits), [this] { look(); }) {}

void Watchdog::end_process() { std::_Exit(static_cast<int>(ExitCode::hang)); }

void Watchdog::look() {
    const bool started = standing_.started();
    // A slow disk and a long report are no hang: they give no sign between their beginning and their end.
    const std::string_view what = standing_.what();
    const bool patient = !started || what == "checkpoint" || what == "report";
    const double limit = patient ? limits_.start_s : limits_.step_s;
    const auto now = Clock::now(), since = standing_.since();
    const double silent = std::chrono::duration<double>(now - since).count();
    if (limit <= 0 || silent < limit) return;
    if (told_ == 0 || told_of_ != since) {
        char where[768];
        standing_.describe(where, sizeof where);
        std::fprintf(stderr, "keel: rank %d (%s, process %d) gave no sign of life for %.1f s (--watch.%s %g): %s%s\n",
                     standing_.world().rank(), standing_.world().host().c_str(), static_cast<int>(::getpid()), silent,
                     patient ? "start_s" : "step_s", limit, where, limits_.leave ? "; leaving (--watch.leave)" : "");
        told_of_ = since, told_at_ = now;
        ++told_;
        return;
    }
    if (limits_.leave && std::chrono::duration<double>(now - told_at_).count() >= grace_s) leave_();
}

}  // namespace keel
