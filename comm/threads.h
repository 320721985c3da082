// comm/threads.h: ranks are threads of one process, and a collective reads the peers' memory where it lies.
#pragma once

#include <functional>

#include "comm/world.h"

namespace keel {

struct ThreadsOptions {
    double deadline_s = 600;  // how long a rank waits for its peers in any call
};

// Runs body once per rank, rank 0 on the calling thread, and returns when all have returned. An exception on one rank
// aborts the others. Then the first cause is rethrown, not its consequences at the peers (ExitCode::peer); Errors get
// "rank r: " in front. One rank alone gets a SoloWorld. `ranks` from 1 to 1024.
void run_threads(int ranks, const ThreadsOptions& options, const std::function<void(World&)>& body);

}  // namespace keel
