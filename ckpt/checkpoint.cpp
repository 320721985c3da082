// ckpt/checkpoint.h: saving. Reading is in checkpoint_reader.cpp, what concerns the folder of all in
// checkpoint_root.cpp.
#include "ckpt/checkpoint.h"

#include <algorithm>

#include "ckpt/checkpoint_tensors.h"
#include "ckpt/draft.h"
#include "ckpt/manifest.h"
#include "ckpt/safetensors.h"
#include "ckpt/strict_json.h"
#include "ckpt/together.h"
#include "comm/agree.h"
#include "kernels/base/error.h"

namespace keel {
namespace fs = std::filesystem;
namespace {

void check_extra_names(const std::vector<ExtraFile>& extra) {
    for (const ExtraFile& f : extra)
        if (f.name.empty() || f.name.front() == '.' || f.name.find('/') != std::string::npos ||
            f.name == manifest_name || f.name == state_name || is_tensor_file(f.name, TensorKind::weights) ||
            is_tensor_file(f.name, TensorKind::optimizer))
            fail("a checkpoint cannot hold a file named \"", f.name, "\"; give a bare name that is not taken");
}

std::string list_text(const std::vector<CheckpointFile>& files) {
    Json list = Json::array();
    for (const CheckpointFile& f : files) list.push_back({f.name, f.size_bytes, f.hash});
    return list.dump();
}

std::vector<CheckpointFile> parse_list(const std::string& text) {
    std::vector<CheckpointFile> files;
    for (const Json& f : Json::parse(text)) files.push_back({f[0], f[1], f[2]});
    return files;
}

// Rank 0 must see what the others say they wrote: a folder that is another one on each machine is found here.
void check_visible(const Draft& draft, const CheckpointFile& file, int rank) {
    std::error_code error;
    const auto size = fs::file_size(draft.path() / file.name, error);
    if (error || static_cast<std::int64_t>(size) != file.size_bytes)
        fail("rank ", rank, " wrote ", file.size_bytes, " bytes of ", (draft.path() / file.name).string(),
             ", but rank 0 sees ", error ? std::string("no such file") : concat(size),
             "; the folder of checkpoints must be one that all ranks share");
}

}  // namespace

fs::path save_checkpoint(Group& world, const fs::path& root, std::int64_t step, const std::string& state,
                         std::span<const TensorPiece> owned, const std::vector<ExtraFile>& extra,
                         const Retention& retention) {
    const std::string what = concat("saving the checkpoint of step ", step);
    const bool first = world.rank() == 0;
    std::optional<Draft> draft;
    together(world, what, [&] {
        for (const TensorPiece& p : owned) check_piece(p);
        if (!first) return;
        if (step < 0) fail("cannot save a checkpoint of step ", step);
        parse_strict_json(state, "state of the checkpoint");
        check_extra_names(extra);
        draft.emplace(root, step);
    });
    const fs::path folder = text_of_rank_0(world, first ? draft->path().string() : std::string());

    std::vector<CheckpointFile> mine;
    together(world, what, [&] {
        for (const TensorKind kind : {TensorKind::weights, TensorKind::optimizer})
            for (CheckpointFile& file : write_tensor_file(folder, kind, world.rank(), world.size(), owned))
                mine.push_back(std::move(file));
    });
    const std::vector<std::string> lists = gather_strings(world, list_text(mine));

    std::string published;
    together(world, what, [&] {
        if (!first) return;
        for (int rank = 0; rank < world.size(); ++rank)
            for (CheckpointFile& file : parse_list(lists[static_cast<std::size_t>(rank)])) {
                check_visible(*draft, file, world.members()[static_cast<std::size_t>(rank)]);
                draft->add(std::move(file));
            }
        CheckpointTensors(draft->path(), draft->files(), true, true);  // refuses holes and overlaps
        for (const ExtraFile& f : extra) draft->write_text(f.name, f.bytes);
        draft->write_text(state_name, state);
        published = draft->publish().string();
        draft.reset();
        apply_retention(root, step, retention);
    });
    return text_of_rank_0(world, published);
}

fs::path save_checkpoint(const fs::path& root, std::int64_t step, const std::string& state,
                         std::span<const NamedTensor> tensors, const std::vector<ExtraFile>& extra,
                         const Retention& retention) {
    SoloGroup solo;
    return save_checkpoint(solo, root, step, state, whole(tensors), extra, retention);
}

fs::path save_streamed_checkpoint(const fs::path& root, std::int64_t step, const std::string& state,
                                  std::vector<TensorSource> weights, const std::vector<ExtraFile>& extra) {
    check_extra_names(extra);
    Draft draft(root, step);
    draft.add(write_hashed(draft.path(), tensor_file_name(TensorKind::weights, 0, 1),
                           [&](const ByteSink& out) { write_safetensors(std::move(weights), {}, out); }));
    for (const ExtraFile& f : extra) draft.write_text(f.name, f.bytes);
    draft.write_text(state_name, state);
    return draft.publish();
}

}  // namespace keel
