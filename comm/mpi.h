// comm/mpi.h: ranks are processes under mpirun or srun. MPI moves the data; keel sums it, in the order of ranks, so
// that the bits are those of ranks that are threads.
//
// Built where CMake finds MPI (KEEL_MPI); elsewhere run_mpi says how to get it. Needs MPI_THREAD_MULTIPLE: several
// threads of a rank may be in calls of different groups. Nothing blocks inside MPI: every wait polls, so that it can
// end at a deadline or when a peer leaves.
//
// More ranks than processors   mpirun --oversubscribe, and --bind-to none for ranks with several threads. Open MPI must
//                              give way while it waits; keel asks for that (mpi_yield_when_idle) unless the environment
//                              says otherwise, and sleeps itself when a wait is long. As root, mpirun wants
//                              --allow-run-as-root.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>

#include "comm/launch.h"
#include "comm/world.h"

namespace keel {

struct MpiOptions {
    double deadline_s = 600;              // how long a rank waits for its peers in any call
    double farewell_s = 5;                // how long a rank that failed waits for the others to have told why
    std::int64_t buffer_bytes = 4 << 20;  // where peers' parts of a sum arrive; per group, reserved when it is made
};

bool built_with_mpi();

// Runs body as this process's rank and returns when the bodies of all ranks have returned; once per process. `launch`
// is what the launcher said: if MPI sees another world, that is refused with what to do.
//
// An exception ends the process, and does not come back: the peers are told, `complain` prints it and gives the exit
// code, and when all ranks have said theirs, or farewell_s is over, MPI_Abort ends whatever is left, with that code. A
// consequence (ExitCode::peer) waits a second longer, so that mpirun returns the code of the cause.
void run_mpi(const Launch& launch, const MpiOptions& options, const std::function<void(World&)>& body,
             const std::function<int(std::exception_ptr)>& complain);

}  // namespace keel
