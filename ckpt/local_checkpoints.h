// ckpt/local_checkpoints.h: fast checkpoints on node-local storage, each rank's part copied to a partner on another
// node.
//
// Under dir/RUN/ (RUN tells runs apart that share the storage) a rank keeps part-00003-of-00008/step-…, its own, and
// copy-00001-of-00008/step-…, its partner's: each a folder of ckpt/checkpoint.h with one rank's files. Nothing else is
// shared: a node that is lost takes its parts along, and its partners give them back to whoever has the rank next.
//
// They serve a restart with the same number of ranks and the same layout, and are used only when whole: the newest step
// of which every rank's part is found somewhere, of one and the same save, with good hashes before and after it was
// moved. Whatever is not whole is told and passed over; then the next older one, then the persistent checkpoints, must
// do.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "ckpt/checkpoint.h"
#include "ckpt/piece.h"
#include "comm/group.h"

namespace keel {

class LocalCheckpoints {
public:
    // Rank r's part is copied to rank (r + distance) % n; a multiple of the ranks per node puts it on another node. 0
    // takes n / 2. `checkpoint_root` is the run's, and need not exist. All ranks; makes folders, removes what a killed
    // process left.
    LocalCheckpoints(Group& world, const std::filesystem::path& dir, const std::filesystem::path& checkpoint_root,
                     int distance = 0);

    // Returns this rank's part. Older ones go only when every rank has its part and its partner's. On an Error, which
    // all ranks get, the older one is as good as before. Any group of all ranks will do, also that of a writer's
    // thread.
    std::filesystem::path save(Group& world, std::int64_t step, const std::string& state,
                               std::span<const TensorPiece> owned);

    struct Found {
        std::int64_t step;
        std::string state;           // as it was saved
        std::filesystem::path path;  // of this rank's part
    };
    // The newest that is whole and holds exactly what the ranks own; parts that were lost are brought back to their
    // ranks first. nullopt if there is none. What was passed over is told to rank 0's `warn`.
    std::optional<Found> find_newest(Group& world, std::span<const TensorPiece> owned, const WarningSink& warn);

    // Fills `owned` from what find_newest returned.
    void load(Group& world, const Found& found, std::span<const TensorPiece> owned);

    // The step of the newest that is whole and good on this machine alone, for somebody who watches a run of `ranks` ranks
    // from outside. Reads every byte of it.
    static std::optional<std::int64_t> newest_here(const std::filesystem::path& dir,
                                                   const std::filesystem::path& checkpoint_root, int ranks);

    // Removes those of steps past `step`: they belong to a history that the run has left.
    void discard_after(Group& world, std::int64_t step);

private:
    std::filesystem::path part(const char* kind, int rank) const;

    std::filesystem::path folder_;
    int ranks_, distance_;
};

}  // namespace keel
