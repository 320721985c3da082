// engine/train.h: the control loop and one optimizer step.
#pragma once

#include <optional>

#include "engine/fault/watch.h"
#include "engine/progress.h"
#include "engine/run.h"

namespace keel {

// Trains until the schedule is done, somebody asks to stop, or a step is wrong; says which: "done", "signal" or "fault". A
// checkpoint of the last whole step has been written when it returns, but where a fault left nothing to be saved.
const char* train(Run& run);

// One step as a transaction: gradients of every micro-batch, then an update everywhere or nowhere. It reads parameters and
// data and writes gradients before it commits, so it can be run again on the same plan with the same result.
// One that looks wrong is computed again (engine/fault/replay.h).
// nullopt: asked to stop between two micro-batches, or by a fault (run.findings->stop()); nothing has changed, and the step's
// data is not consumed.
std::optional<StepResult> train_step(Run& run, const StepPlan& plan, Watch* watch = nullptr);

// Loss on the validation set, if there is one, to the log.
void evaluate(Run& run);

}  // namespace keel
