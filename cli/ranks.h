// cli/ranks.h: starts the ranks of a run: the processes of a launcher, or threads of this one.
#pragma once

#include <functional>

#include "comm/world.h"
#include "engine/config.h"

namespace keel {

// Calls body once per rank. Under mpirun or srun this process is one rank of theirs. Otherwise tp x pp x cp x dp ranks are
// threads, which share this process's processors.
void run_ranks(const Config& config, const std::function<void(World&)>& body);

}  // namespace keel
