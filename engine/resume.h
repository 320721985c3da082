// engine/resume.h: whether a checkpoint may go on under this configuration.
//
// Some settings cannot change what is computed and may differ freely; the model's shape may never differ; the rest (data,
// schedule, batch, seed) changes the curve, so it is shown as a table, before and after, and needs a yes. The length of a
// run is of the first kind only where the learning rate does not follow from it.
#pragma once

#include <string>
#include <vector>

#include "engine/config.h"

namespace keel {

struct Change {
    std::string key, before, after;  // "optim.lr", "0.0003", "0.0001"
};

struct Changes {
    std::vector<Change> shape;   // refuse
    std::vector<Change> curve;   // ask
};
Changes compare_for_resume(const Config& saved, const Config& now);

// Throws for shape changes, and for curve changes unless config.ckpt.accept_changes; returns the table to print, or "".
std::string check_resume(const Config& saved, const Config& now, const std::string& checkpoint);

}  // namespace keel
