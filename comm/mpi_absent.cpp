// comm/mpi_absent.cpp: comm/mpi.h where keel was built without MPI.
#include "comm/mpi.h"

namespace keel {

bool built_with_mpi() { return false; }

void run_mpi(const Launch& launch, const MpiOptions&, const std::function<void(World&)>&,
             const std::function<int(std::exception_ptr)>&) {
    fail_usage(
        concat(launch.launcher, " started ", launch.world,
               " processes, but this keel was built without MPI. Install it (Debian: apt-get install libopenmpi-dev "
               "openmpi-bin) and build again; or start one process: on one machine ranks are threads"));
}

}  // namespace keel
