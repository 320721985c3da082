// engine/fault/watchdog.h: says where a rank stands when it has given no sign of life for too long, and leaves if asked to.
//
// Every rank has one, on a thread of its own, so that a hang of some is told by all that still run: who waits for whom in which
// collective, and who for nobody. It tells once for each hang. Collectives have a deadline of their own (--parallel.deadline_s)
// that ends a run; this also sees what is no collective: a file system, a lock, a loop without end.
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "engine/config.h"
#include "engine/fault/standing.h"
#include "engine/fault/ticker.h"

namespace keel {

class Watchdog {
public:
    // `standing` outlives it. What `leave` does in place of ending the process is for tests.
    Watchdog(const WatchSection& limits, const Standing& standing, std::function<void()> leave = end_process);

    static void end_process();  // at once, with ExitCode::hang: what hangs cannot be waited for

    int told() const { return told_; }  // hangs so far

    static constexpr double grace_s = 2;  // between telling and leaving, for the other ranks to tell as well

private:
    void look();

    const WatchSection limits_;
    const Standing& standing_;
    std::function<void()> leave_;
    std::atomic<int> told_ = 0;
    Clock::time_point told_of_{}, told_at_{};  // the last sign of life before it; when
    Ticker ticker_;                            // last: it uses all of the above
};

}  // namespace keel
