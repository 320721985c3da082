// engine/fault/watch.h: whether to go on, decided by all ranks together after each step.
//
// Asked to stop: SIGINT, SIGTERM or SIGHUP to any rank. Stopping implies saving; the caller saves, then leaves. A second
// signal of the same kind ends the process at once, as it would have without keel: for somebody who will not wait. A SIGHUP
// that was ignored when keel started stays ignored: that is what nohup is for.
#pragma once

#include "comm/group.h"

namespace keel {

struct Verdict {
    bool save = false, stop = false;
    const char* why = "";  // for the log: "signal", "done", or "" while it goes on
};

class Watch {
public:
    // Installs the signal handlers; the destructor puts the old ones back. Ranks that are threads of one process share them.
    explicit Watch(Group& group);
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

    // A collective: every rank asks after every step. `save_due` is what the schedule says.
    Verdict decide(bool save_due, bool last_step);
    // A collective: every rank asks between the micro-batches of a step, which is then abandoned. A step may take minutes,
    // and who sends a signal may wait for seconds only. The stages of a pipeline are never between the same micro-batches:
    // they ask after a step.
    bool asked_to_stop();

private:
    Group& group_;  // the run's
};

}  // namespace keel
