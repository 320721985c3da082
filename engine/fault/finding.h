// engine/fault/finding.h: what was found out about a step that looked wrong, and how a run leaves because of it.
//
// A finding is told on stderr by rank 0, appended to RUN/faults.jsonl, which a start that resumes reads, and to log.jsonl. Its verdict is one of
//     passing    the same step on the same data gave two results: a chip erred, and which rank's is named
//     open       the same result again, and it is bad: the program, the data, or a defect of this machine that stays
//     program    as `open`, and a second start came to the same: on another machine, or as far as this one can tell
//     settled    a start after an `open` finding came past that step: the machine of then has a defect, or it passed
//     spike      a number far larger than before, the same again: no fault, training goes on
//     replicas   ranks that hold the same parameter hold different bits of it
// `open` leaves with exit code 16: start again, best on another machine, and it will be known. `passing`, `program` and
// `replicas` leave with 17: whoever starts again changes something first.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "comm/group.h"
#include "kernels/base/error.h"

namespace keel {

struct Finding {
    std::string verdict;
    std::int64_t step = 0, first_sample = 0, samples = 0;
    std::string seen;     // "loss nan, gradient norm 3.1"
    std::string where;    // "rank 3 on host a: gradient of layers.2.down"; several lines of them
    std::string advice;   // for people, one sentence
    std::string dump;     // file of the samples, or empty
    bool save = false;    // the state from before the step is good: keep a checkpoint of it
    ExitCode code = ExitCode::ok;  // ok: training goes on
};

class Findings {
public:
    // Every rank has one; `host` is its machine's name. `remember`: what earlier starts found counts. `world` must outlive it.
    Findings(const std::filesystem::path& run, Group& world, const std::string& host, bool remember);

    // Where rank 0 puts a finding besides: a line of JSON, with its '\n'.
    void to_log(std::function<void(const char*)> log) { log_ = std::move(log); }

    // Collective, with the same finding on all ranks.
    void add(Finding finding);
    // The finding the run must leave for.
    const std::optional<Finding>& stop() const { return stop_; }
    // Leaves with its exit code, by an Error; returns where there is none.
    void leave() const;

    // Hosts of an earlier start that left this step `open`, and no start has settled it; empty if there is none.
    const std::set<std::string>& open_hosts(std::int64_t step) const;
    std::set<std::string> hosts_now() const { return hosts_; }

private:
    void read(const std::string& text);
    void append(const std::string& line) const;

    Group& world_;
    std::filesystem::path file_;
    std::set<std::string> hosts_;                 // of this run's ranks
    std::int64_t open_step_ = -1;                 // the newest open finding
    std::set<std::string> open_hosts_, none_;
    std::optional<Finding> stop_;
    std::function<void(const char*)> log_;
};

}  // namespace keel
