// comm/launch.h: who a process is, by what its launcher wrote into the environment. A pure function: nothing is started
// here.
//
// Families, each of which is believed only if it is whole: Open MPI (OMPI_COMM_WORLD_*), MPICH and Intel (PMI_RANK,
// PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS), Slurm steps (SLURM_PROCID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS,
// SLURM_LOCALID) and torchrun's (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE). The last names ranks but gives
// nothing to connect them that keel could use: it writes no network protocol of its own, and stands on MPI between
// processes.
#pragma once

#include <map>
#include <string>

namespace keel {

struct Launch {
    std::string launcher = "none";         // "none", "Open MPI", "MPICH", "Slurm", "torchrun"
    int rank = 0, world = 1;               // processes, not threads
    int local_rank = 0, local_size = 1;    // on this machine; -1 where the launcher does not say
    std::string note;                      // worth telling the user; empty if nothing is
};

using Environment = std::map<std::string, std::string>;
Environment environment();  // of this process

// Refuses (Error, ExitCode::usage) a family of which a part is missing, numbers that are none or out of range, families
// that contradict each other, and more than one rank by torchrun's variables alone. A Slurm allocation without a step
// (a batch script, a shell of salloc) is one process, and `note` says so.
Launch read_launch(const Environment& environment);

}  // namespace keel
