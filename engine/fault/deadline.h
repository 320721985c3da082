// engine/fault/deadline.h: a limit of wall clock that leaves time for the last checkpoint.
//
// A scheduler ends a job at its limit, saved or not. What still has to happen after a decision to go on is known: the loop
// comes back to ask once more, and then a checkpoint is written. So a run leaves as soon as
//
//     elapsed + longest time between two questions + 1.5 x longest save  >=  limit
//
// with both measured in this run. Half a save more is for a file system that is busier at the end than it was before.
#pragma once

#include <algorithm>
#include <chrono>

#include "engine/observe/ledger.h"

namespace keel {

// When the job began: the process, or the supervisor that forked it. The first call fixes it.
inline Clock::time_point job_start() {
    static const Clock::time_point start = process_start();
    return start;
}

class Deadline {
public:
    // Seconds of wall clock since the job began, 0 for no limit; `elapsed_s` is now.
    Deadline(double limit_s, double elapsed_s) : limit_s_(limit_s), asked_s_(elapsed_s) {}

    // A question, at `elapsed_s`: whether to leave now. `save_s`: the longest save so far, or what one is expected to take.
    bool due(double elapsed_s, double save_s) {
        longest_s_ = std::max(longest_s_, elapsed_s - asked_s_);
        asked_s_ = elapsed_s;
        reserve_s_ = longest_s_ + 1.5 * save_s;
        return limit_s_ > 0 && elapsed_s + reserve_s_ >= limit_s_;
    }
    double limit_s() const { return limit_s_; }
    double reserve_s() const { return reserve_s_; }  // as of the last question

private:
    double limit_s_, asked_s_, longest_s_ = 0, reserve_s_ = 0;
};

}  // namespace keel
