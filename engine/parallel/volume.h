// engine/parallel/volume.h: how many bytes a rank sends in one training step, from shapes alone. `keel bench --parallel` prints it
// beside what the groups have counted, and a test demands that they are equal.
//
// With n tokens per micro-batch on this rank, H hidden elements of e bytes, t tensor-parallel ranks and R replicas, a block sends
// per micro-batch        4 all-reduces of n H e, or with sequence parallelism 6 all-gathers and 4 reduce-scatters of it
// and a step             (R-1)/R of the gradients in float and of the parameters in e bytes.
#pragma once

#include <map>
#include <string>

#include "comm/group.h"
#include "engine/config.h"
#include "engine/parallel/layout.h"

namespace keel {

// By the name of the group ("tp", "cp", "pp", "dp_cp", "embd"), of the rank at `place` in a step of config.train.global_batch
// samples, gradient norm and update included. Groups of one rank are left out.
std::map<std::string, Traffic> step_traffic(const Config& config, const RankPlace& place);

}  // namespace keel
