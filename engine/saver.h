// engine/saver.h: a run's state on its way to disk: at once or behind the training, to the run's folder and to local
// storage.
//
// Every rank has one, and all call the same functions at the same steps. A checkpoint that cannot be written behind the
// training is told and training goes on with the older ones; only the last one of a run must succeed.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/async_save.h"
#include "ckpt/checkpoint.h"
#include "ckpt/local_checkpoints.h"
#include "comm/world.h"
#include "engine/config.h"
#include "engine/model/model.h"
#include "engine/observe/ledger.h"
#include "engine/progress.h"

namespace keel {

// What was announced, or why it was not.
struct Saved {
    Progress progress;
    std::filesystem::path path;
    std::string error;
    double seconds = 0;  // from the beginning of the save to the last byte
    Clock::time_point began{};
};

class Saver {
public:
    // `model` must outlive it, and so must `ranks`, the group of all.
    Saver(const Config& config, World& world, Group& ranks, Model& model, const std::filesystem::path& root);

    // Writes a checkpoint, or begins to. Returns what has been announced by then: this one, or an earlier one that was
    // still being written, or nothing. Throws where one that is not written behind the training fails.
    std::optional<Saved> save(Stream& stream, const Progress& progress, const std::string& state,
                              const std::vector<ExtraFile>& extra);

    // What became of a save under way, once all ranks have it; `wait` waits for it. No vote while none is under way.
    std::optional<Saved> settle(bool wait);
    bool under_way() const { return async_ && async_->in_flight(); }

    // What the last save of the run may take: the longest so far, from its beginning to its last byte, or before the first
    // what one should take; behind the training twice that, as one under way is waited for.
    double last_save_s() const { return (async_ ? 2 : 1) * longest_save_s_; }

    // The local checkpoint, where one is due at this step. Returns "" or why it failed: the older one is as good as
    // before.
    bool local_due(const Progress& progress) const;
    std::string save_locally(const Progress& progress, const std::string& state);

    // The newest local checkpoint that is whole and not older than `step`; parts of lost nodes are back then.
    std::optional<LocalCheckpoints::Found> find_local(std::int64_t step, const WarningSink& warn);
    void load(const LocalCheckpoints::Found& found);
    void discard_local_after(std::int64_t step);

private:
    void took(double seconds);

    Group& ranks_;
    Model& model_;
    std::filesystem::path root_;
    Retention retention_;
    std::int64_t local_interval_;
    double longest_save_s_;
    bool measured_ = false;
    Progress under_way_;
    Clock::time_point began_{};  // of what is under way
    std::unique_ptr<Group> writers_;  // of the writer's thread alone
    std::optional<AsyncSave> async_;
    std::optional<LocalCheckpoints> local_;
};

}  // namespace keel
