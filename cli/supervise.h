// cli/supervise.h: starts a run again after it fell, from its newest good checkpoint.
//
// The run is a child process; this one only watches it. It is started again when it failed or was killed, after a delay that
// doubles with every start in vain; not when it was done, was told to stop, was refused for its configuration, found a fault (exit
// code 17) or a machine that computes wrongly (19). It is given up after `max` restarts, or when two starts in a row ended
// without a new checkpoint, local ones included: more of them would end the same way.
#pragma once

#include <filesystem>

namespace keel {

struct Supervision {
    std::filesystem::path checkpoints;  // of the run
    std::filesystem::path local;        // its --ckpt.local_dir, or empty
    int ranks;                          // that keep a part each there
    int max;                            // restarts
    double delay_s = 1, most_delay_s = 60;
};

// Forks; there must be no other threads yet. In every child it returns at once, to do the run; in the watching process it returns
// when all is over, with the exit code to leave with: that of the last child, 128 + signal if it was killed.
struct Supervised {
    bool child;
    int code;
};
Supervised supervise(const Supervision& how);

}  // namespace keel
