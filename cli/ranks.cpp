#include "cli/ranks.h"

#include <cstdio>

#include "cli/complain.h"
#include "comm/launch.h"
#include "comm/mpi.h"
#include "comm/threads.h"
#include "engine/parallel/layout.h"

namespace keel {

void run_ranks(const Config& config, const std::function<void(World&)>& body) {
    const Launch launch = read_launch(environment());
    if (!launch.note.empty() && launch.rank == 0) std::fprintf(stderr, "keel: %s\n", launch.note.c_str());
    if (launch.world > 1) {
        run_mpi(launch, {.deadline_s = config.parallel.deadline_s}, body, [](std::exception_ptr e) { return complain(e); });
        return;
    }
    run_threads(static_cast<int>(ranks_asked(config.parallel)), {.deadline_s = config.parallel.deadline_s}, body);
}

}  // namespace keel
