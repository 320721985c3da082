#include "engine/saver.h"

#include <algorithm>
#include <chrono>

#include "engine/state.h"

namespace keel {
namespace {

constexpr double slow_storage = 100e6;  // bytes per second and rank, until a save was measured: a disk of the slow kind

}  // namespace

Saver::Saver(const Config& config, World& world, Group& ranks, Model& model, const std::filesystem::path& root)
    : ranks_(ranks),
      model_(model),
      root_(root),
      retention_{.keep_last = config.ckpt.keep_last, .keep_every = config.ckpt.keep_every},
      local_interval_(config.ckpt.local_interval),
      longest_save_s_(static_cast<double>(AsyncSave::snapshot_bytes(state_pieces(model, Pieces::to_save))) / slow_storage) {
    if (config.ckpt.async) {
        writers_ = world.everyone("writers");
        const View<std::byte> memory = model.snapshot();
        async_.emplace(*writers_, state_pieces(model, Pieces::to_save),
                       std::span(memory.data(), static_cast<std::size_t>(memory.size())));
    }
    if (!config.ckpt.local_dir.empty())
        local_.emplace(ranks, config.ckpt.local_dir, root, static_cast<int>(config.ckpt.local_distance));
}

std::optional<Saved> Saver::save(Stream& stream, const Progress& progress, const std::string& state,
                                 const std::vector<ExtraFile>& extra) {
    const auto write = [root = root_, step = progress.steps, retention = retention_, state, extra](
                           Group& writers, std::span<const TensorPiece> pieces) {
        return save_checkpoint(writers, root, step, state, pieces, extra, retention);
    };
    if (async_) {
        std::optional<Saved> before = settle(true);
        began_ = Clock::now();
        model_.fetch_state();
        async_->begin(stream, progress.steps, write);
        under_way_ = progress;
        return before;
    }
    const auto start = Clock::now();
    model_.fetch_state();
    const std::filesystem::path path = write(ranks_, state_pieces(model_, Pieces::to_save));
    took(std::chrono::duration<double>(Clock::now() - start).count());
    return Saved{progress, path, {}, std::chrono::duration<double>(Clock::now() - start).count(), start};
}

void Saver::took(double seconds) {
    longest_save_s_ = measured_ ? std::max(longest_save_s_, seconds) : seconds;
    measured_ = true;
}

std::optional<Saved> Saver::settle(bool wait) {
    if (!under_way()) return std::nullopt;
    auto outcome = wait ? async_->wait() : async_->poll(ranks_);
    if (!outcome) return std::nullopt;
    took(outcome->seconds);
    return Saved{under_way_, std::move(outcome->path), std::move(outcome->error), outcome->seconds, began_};
}

bool Saver::local_due(const Progress& progress) const {
    return local_ && local_interval_ > 0 && progress.steps % local_interval_ == 0;
}

// A rank's part is all that it holds, copies too: unlike a checkpoint for any layout it goes back to the same rank.
std::string Saver::save_locally(const Progress& progress, const std::string& state) {
    try {
        model_.fetch_state();
        local_->save(ranks_, progress.steps, state, state_pieces(model_, Pieces::to_load));
        return {};
    } catch (const Error& e) {
        if (e.code() == ExitCode::peer) throw;
        return e.what();
    }
}

std::optional<LocalCheckpoints::Found> Saver::find_local(std::int64_t step, const WarningSink& warn) {
    if (!local_) return std::nullopt;
    auto found = local_->find_newest(ranks_, state_pieces(model_, Pieces::to_load), warn);
    if (found && found->step < step) return std::nullopt;
    return found;
}

void Saver::load(const LocalCheckpoints::Found& found) {
    local_->load(ranks_, found, state_pieces(model_, Pieces::to_load));
}

void Saver::discard_local_after(std::int64_t step) {
    if (local_) local_->discard_after(ranks_, step);
}

}  // namespace keel
