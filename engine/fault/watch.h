// engine/fault/watch.h: whether to go on, decided by all ranks together after each step.
//
// Asked to stop: SIGINT, SIGTERM or SIGHUP to any rank, or its limit of wall clock (deadline.h). Stopping implies saving; the
// caller saves, then leaves. A SIGHUP that was ignored when keel started stays ignored: that is what nohup is for.
//
// A second signal, more than a second after the first, ends the process at once, by that signal: for somebody who will not
// wait. A checkpoint that was being written is then not there; those before it are as they were. What comes within the second
// is the same wish: `timeout` signals a process and its group, a terminal the supervisor and the run.
#pragma once

#include <functional>

#include "comm/group.h"
#include "engine/fault/deadline.h"

namespace keel {

struct Verdict {
    bool save = false, stop = false;
    const char* why = "";  // for the log: "done", "signal", "time", "interval", "phase", or "" while it goes on
};

class Watch {
public:
    // Installs the signal handlers; the destructor puts the old ones back. Ranks that are threads of one process share them.
    // `limit_s` as Deadline; `save_s` tells what the last checkpoint may take.
    explicit Watch(Group& group, double limit_s = 0, std::function<double()> save_s = [] { return 0.0; }, double long_step_s = 1);
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

    // A collective: every rank asks after every step. What the schedule says of this step is the same on all ranks: whether a
    // checkpoint is due, and why the run leaves here, or "".
    Verdict decide(bool save_due, const char* leave);
    bool asked_to_stop();  // a collective
    // A collective: every rank asks between the micro-batches of a step, which is then abandoned. A step may take minutes,
    // and who sends a signal may wait for seconds only. Where the step before took less than `long_step_s` on every rank, ranks
    // are not made to wait for each other in the midst of one: the answer is no. The stages of a pipeline are never between the
    // same micro-batches: they ask after a step.
    bool asked_to_abandon() { return long_steps_ && asked_to_stop(); }

private:
    Group& group_;  // the run's
    double long_step_s_, decided_s_;  // since the job began
    bool long_steps_ = true;          // the same on all ranks; nothing is known of the first
    Deadline deadline_;
    std::function<double()> save_s_;
};

}  // namespace keel
