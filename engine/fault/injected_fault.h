// engine/fault/injected_fault.h: a fault that a run is told to suffer, as it is written after --inject.faults.
//
// KIND,step=N and more words, parted by commas: "grad_flip,step=7,rank=1,bit=30". What is left out is drawn by
// --inject.seed, on all ranks alike. A step is counted from 1, as in the log. A fault strikes once, and every n steps again
// with every=n; a run that is started again does not suffer it a second time at the same step (engine/fault/inject.h). With
// the word `lasting` it does, and so does a step that is run again on its own data: a defect, and not a passing fault.
//
// Of several kinds one is drawn, by their weights: "kill:3/hang:1". Instead of a step a time can be told: after=S seconds,
// mttf=M for a random time of mean M (exponentially distributed: of a machine that does not age), or both, one after the
// other; from when a start of the run begins its first step, or the one that is told: a run that is started again before that
// time waits anew. The fault is then of the first step that begins past that time. Each rank has a clock of its own, so that
// several ranks (`ranks=n`) may suffer it in different steps.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/config.h"

namespace keel {

enum class FaultKind : std::uint8_t {
    grad_nan, grad_value, grad_flip,     // one element of a gradient, after backward, before any rank sums it
    param_nan, param_value, param_flip,  // one element of a parameter, before the forward pass reads it
    slow, hang, kill,                    // the rank, before the forward pass
    write_fail, disk_full,               // files of checkpoints
    corrupt_checkpoint,                  // one bit of the newest one
    bad_core,                            // it multiplies wrongly in the next self-test
};
const char* name(FaultKind kind);

struct InjectedFault {
    FaultKind kind = FaultKind::kill;
    std::int64_t step = 0, every = 0;  // 0: once
    double delay = -1;                 // seconds from the beginning of `step`; negative: it strikes there
    int rank = -1, ranks = 0;          // -1: drawn, one of all, or as many as `ranks` of all but rank 0
    bool lasting = false;
    std::string tensor;                // empty: drawn among those of the rank
    int bit = -1;                      // of a flip; -1: drawn
    double value = 1e6;                // of grad_value and param_value
    double seconds = 1;                // of slow
    std::int64_t steps = 1;            // that a full disk lasts
    std::string text;                  // as written

    bool due(std::int64_t now) const { return every > 0 ? now >= step && (now - step) % every == 0 : now == step; }
    bool of_gradient() const { return kind <= FaultKind::grad_flip; }
    bool of_parameter() const { return kind >= FaultKind::param_nan && kind <= FaultKind::param_flip; }
    bool of_files() const { return kind == FaultKind::write_fail || kind == FaultKind::disk_full; }
};

// Seconds to a failure: `after`, then a time of mean `mttf` that u of [0, 1) draws.
double failure_delay(double u, double mttf, double after);
// Which of these u of [0, 1) draws, by its share of their sum. None is negative, and one is not 0.
std::size_t draw_by_weight(double u, std::span<const double> weights);

// Refuses what makes no sense, by name. `config` is resolved.
std::vector<InjectedFault> parse_injected_faults(const Config& config);

}  // namespace keel
