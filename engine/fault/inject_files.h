// engine/fault/inject_files.h: faults of the disk that holds a run's checkpoints, for engine/fault/inject.h.
//
// They strike in kernels/base/file.h, where every byte of a checkpoint is written, on whatever thread writes it. Ranks that
// are threads of one process share one; whose file it is, its name tells, and what all write together is rank 0's.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

namespace keel {

class FileTroubles {
public:
    // Of files under `folders`. Refuses a second one in this process with other folders.
    explicit FileTroubles(const std::vector<std::filesystem::path>& folders);
    ~FileTroubles();

    void fail_next_write(int rank, int ranks);            // with an input/output error
    void fill_disk(int rank, int ranks, bool full);       // until it is told otherwise, no space is left

private:
    struct Shared;
    std::shared_ptr<Shared> shared_;
};

}  // namespace keel
