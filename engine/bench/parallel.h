// engine/bench/parallel.h: whole steps on several ranks, measured in turns with the same step on one rank.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/group.h"
#include "engine/bench/bench.h"

namespace keel::bench {

struct ParallelCase {
    std::string name;    // "dp 2"
    Config config;       // resolved
};
// Configuration b on one rank and, on `ranks` (2), by data, tensor, context and pipeline parallelism.
std::vector<ParallelCase> parallel_cases(const std::string& dtype);

// Ranks that are threads, ready to take a step when called.
class ParallelStep {
public:
    ParallelStep(const ParallelCase& c, int threads);  // per rank
    ~ParallelStep();
    void operator()();                                 // one step on all ranks

    std::map<std::string, Traffic> traffic() const;    // that rank 0 sent in its last step, by group
    double hidden_seconds() const;                     // of rank 0's last step: communication beside computation,
    double exposed_seconds() const;                    // and what was waited for
    std::string timeline() const;                      // SVG of the last step, every rank and thread

private:
    struct State;
    std::unique_ptr<State> state_;
};

struct ParallelTime {
    ParallelCase c;
    Sample seconds;
    std::map<std::string, Traffic> sent, formula;      // of rank 0, in one step
    double hidden_s = 0, exposed_s = 0;
    std::string timeline;
};
// The first case is the one others are compared with: one rank with all `threads`, which the others share out.
std::vector<ParallelTime> measure_parallel(const std::string& dtype, int threads, int rounds);

}  // namespace keel::bench
