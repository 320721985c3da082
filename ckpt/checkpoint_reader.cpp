// The reading half of ckpt/checkpoint.h.
#include <algorithm>
#include <map>

#include "ckpt/checkpoint.h"
#include "ckpt/checkpoint_tensors.h"
#include "ckpt/manifest.h"
#include "ckpt/together.h"
#include "comm/agree.h"
#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/stream.h"

namespace keel {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t block_bytes = std::int64_t{4} << 20;

const CheckpointFile* find_file(const CheckpointInfo& info, std::string_view name) {
    const auto at = std::find_if(info.files.begin(), info.files.end(), [&](const auto& f) { return f.name == name; });
    return at == info.files.end() ? nullptr : &*at;
}

void check_hash(const fs::path& folder, const CheckpointFile& file, const FileHash& hash) {
    if (const std::string found = hash.hex(); found != file.hash)
        fail((folder / file.name).string(), " is damaged: XXH3-128 should be ", file.hash, ", found ", found);
}

std::string read_verified(const CheckpointInfo& info, const CheckpointFile& file) {
    std::string text = read_file(info.path / file.name);
    FileHash hash;
    hash.add(std::as_bytes(std::span(text)));
    check_hash(info.path, file, hash);
    return text;
}

void check_sizes(const CheckpointInfo& info) {
    for (const CheckpointFile& file : info.files) {
        const fs::path path = info.path / file.name;
        std::error_code error;
        const auto size = fs::file_size(path, error);
        if (error) fail(path.string(), " is listed in the manifest, but cannot be read: ", error.message());
        if (static_cast<std::int64_t>(size) != file.size_bytes)
            fail(path.string(), " is damaged: it should have ", file.size_bytes, " bytes, found ", size);
    }
}

void verify_file(const fs::path& folder, const CheckpointFile& listed, std::vector<std::byte>& block) {
    const InputFile file(folder / listed.name);
    FileHash hash;
    for (std::int64_t done = 0; done < listed.size_bytes;) {
        const auto piece =
            std::span(block).first(static_cast<std::size_t>(std::min(block_bytes, listed.size_bytes - done)));
        file.read_at(done, piece);
        hash.add(piece);
        done += static_cast<std::int64_t>(piece.size());
    }
    check_hash(folder, listed, hash);
}

// What one rank wants, by tensor.
using Wanted = std::map<std::string_view, std::vector<const TensorPiece*>>;

// What is wrong between the tensors stored and those wanted here, one line each.
std::string mismatches(const CheckpointTensors& stored, const Wanted& wanted) {
    std::string wrong;
    for (const auto& [tensor, pieces] : wanted) {
        const CheckpointTensors::Tensor* t = stored.find(tensor);
        if (!t) {
            wrong += concat("\n  missing    ", tensor, " ", shape_text(pieces.front()->shape));
            continue;
        }
        for (const TensorPiece* p : pieces)
            if (p->shape != t->shape) {
                wrong += concat("\n  misshapen  ", tensor, " is ", shape_text(t->shape), ", the run's is ",
                                shape_text(p->shape));
                break;
            }
        if (!is_convertible(t->dtype)) wrong += concat("\n  unreadable ", tensor, " is ", name(t->dtype));
    }
    return wrong;
}

// Stored tensors that no rank wants. Every rank has read the same headers, so tensors are told apart by their number.
std::string unexpected(Group& world, const CheckpointTensors& stored, const Wanted& wanted) {
    std::vector<std::int64_t> votes;
    for (const auto& [tensor, t] : stored.tensors()) votes.push_back(wanted.contains(tensor) ? 1 : 0);
    Stream stream(1, 0, 0);
    world.all_reduce(stream, View<std::int64_t>(votes.data(), {static_cast<std::int64_t>(votes.size())}));
    std::string wrong;
    std::size_t i = 0;
    for (const auto& [tensor, t] : stored.tensors())
        if (votes[i++] == 0) wrong += concat("\n  unexpected ", tensor, " ", shape_text(t.shape));
    return wrong;
}

// Reads one file front to back: hashed as it passes if `hash`, else only rows that hold something wanted; and scattered
// to where it is wanted.
void read_file_into(const fs::path& folder, const CheckpointTensors::File& file, const Wanted& wanted, bool hash,
                    std::vector<std::byte>& block) {
    const InputFile in(folder / file.listed.name);
    FileHash sum;
    if (hash) sum.add(read_safetensors_start(in));
    for (std::size_t i = 0; i < file.header.tensors.size(); ++i) {
        const StoredTensor& t = file.header.tensors[i];
        const Rect from = file.rects[i];
        std::vector<const TensorPiece*> targets;
        std::int64_t first_row = from.row + from.rows, end_row = from.row;
        if (const auto at = wanted.find(file.tensor_of[i]); at != wanted.end())
            for (const TensorPiece* p : at->second)
                if (const Rect part = intersect(from, p->rect()); !part.empty()) {
                    targets.push_back(p);
                    first_row = std::min(first_row, part.row);
                    end_row = std::max(end_row, part.row + part.rows);
                }
        if (!hash && targets.empty()) continue;
        std::int64_t at = 0, end = t.size_bytes();
        const std::int64_t element = std::max<std::int64_t>(1, size_bits(t.dtype) / 8);
        if (!hash) {
            at = (first_row - from.row) * from.cols * element;
            end = (end_row - from.row) * from.cols * element;
        }
        while (at < end) {
            const auto bytes = std::span(block).first(static_cast<std::size_t>(std::min(block_bytes, end - at)));
            in.read_at(file.header.data_offset + t.begin + at, bytes);
            if (hash) sum.add(bytes);
            const auto count = static_cast<std::int64_t>(bytes.size());
            for (const TensorPiece* p : targets)
                scatter(from, at / element, count / element, t.dtype, bytes.data(), *p);
            at += count;
        }
    }
    if (hash) check_hash(folder, file.listed, sum);
}

}  // namespace

bool is_checkpoint(const fs::path& path) {
    std::error_code ignored;
    return fs::is_regular_file(path / manifest_name, ignored);
}

CheckpointInfo open_checkpoint(const fs::path& path) {
    if (!is_checkpoint(path))
        fail(path.string(), " is not a complete checkpoint: it has no ", manifest_name, ", which is written last");
    CheckpointInfo info = parse_manifest(read_file(path / manifest_name), path);
    check_sizes(info);
    const CheckpointFile* state = find_file(info, state_name);
    if (!state) fail((path / manifest_name).string(), " lists no ", state_name);
    info.state = read_verified(info, *state);
    return info;
}

CheckpointInfo verify_checkpoint(Group& world, const fs::path& path) {
    CheckpointInfo info;
    together(world, "checking " + path.string(), [&] {
        info = open_checkpoint(path);
        std::vector<std::byte> block(static_cast<std::size_t>(block_bytes));
        for (std::size_t i = 0; i < info.files.size(); ++i)
            if (static_cast<int>(i % static_cast<std::size_t>(world.size())) == world.rank())
                verify_file(path, info.files[i], block);
    });
    return info;
}

CheckpointInfo verify_checkpoint(const fs::path& path) {
    SoloGroup solo;
    return verify_checkpoint(solo, path);
}

std::optional<CheckpointInfo> find_newest_checkpoint(Group& world, const fs::path& root, const WarningSink& warn) {
    std::string names;
    together(world, "looking for checkpoints in " + root.string(), [&] {
        if (world.rank() == 0)
            for (const StepFolder& folder : step_folders(root)) names += folder.path.filename().string() + "\n";
    });
    names = text_of_rank_0(world, names);
    for (std::size_t at = 0; at < names.size(); at = names.find('\n', at) + 1) {
        const fs::path path = root / names.substr(at, names.find('\n', at) - at);
        try {
            return verify_checkpoint(world, path);
        } catch (const Error& e) {
            if (e.code() == ExitCode::peer) throw;  // not the checkpoint's fault: a rank has left
            if (warn && world.rank() == 0) warn("skipping " + path.string() + ": " + e.what());
        }
    }
    return std::nullopt;
}

std::optional<CheckpointInfo> find_newest_checkpoint(const fs::path& root, const WarningSink& warn) {
    SoloGroup solo;
    return find_newest_checkpoint(solo, root, warn);
}

void load_checkpoint(Group& world, const fs::path& path, std::span<const TensorPiece> wanted) {
    const std::string what = "loading " + path.string();
    Wanted by_tensor;
    bool wants[2] = {false, false};  // by TensorKind
    for (const TensorPiece& p : wanted) {
        by_tensor[p.name].push_back(&p);
        wants[static_cast<std::size_t>(kind_of_tensor(p.name))] = true;
    }
    for (bool& wanted_kind : wants) wanted_kind = world.any(wanted_kind);

    std::optional<CheckpointInfo> info;
    std::optional<CheckpointTensors> stored;
    together(world, what, [&] {
        for (const TensorPiece& p : wanted) check_piece(p);
        info = open_checkpoint(path);
        stored.emplace(path, info->files, wants[0], wants[1]);
        for (const TensorKind kind : {TensorKind::weights, TensorKind::optimizer})
            if (wants[static_cast<std::size_t>(kind)] &&
                std::none_of(info->files.begin(), info->files.end(),
                             [&](const auto& f) { return is_tensor_file(f.name, kind); }))
                fail(path.string(), " has no ", tensor_file_name(kind, 0, 1), ", from which tensors were to be loaded");
    });
    const auto seen = gather_strings(world, hash_of(manifest_text(info->step, info->files)));
    for (std::size_t r = 1; r < seen.size(); ++r)
        if (seen[r] != seen[0])
            fail(what + " failed: rank ", world.members()[r], " finds another checkpoint there than rank ",
                 world.members()[0], "; all ranks must see the same folder");

    const std::string superfluous = unexpected(world, *stored, by_tensor);
    together(world, what, [&] {
        std::string wrong = mismatches(*stored, by_tensor);
        if (world.rank() == 0) wrong = superfluous + wrong;
        if (wrong.empty()) return;
        const bool one = stored->files().size() == 1;
        fail(one ? (path / stored->files()[0].listed.name).string() : path.string(),
             " does not hold the tensors of this run:", wrong);
    });
    together(world, what, [&] {
        std::vector<std::byte> block(static_cast<std::size_t>(block_bytes));
        for (std::size_t i = 0; i < stored->files().size(); ++i)
            read_file_into(path, stored->files()[i], by_tensor,
                           static_cast<int>(i % static_cast<std::size_t>(world.size())) == world.rank(), block);
    });
}

void load_checkpoint(const fs::path& path, std::span<const NamedTensor> tensors) {
    SoloGroup solo;
    load_checkpoint(solo, path, whole(tensors));
}

std::optional<std::string> read_checkpoint_file(const fs::path& path, const std::string& name) {
    const CheckpointInfo info = open_checkpoint(path);
    const CheckpointFile* file = find_file(info, name);
    return file ? std::optional(read_verified(info, *file)) : std::nullopt;
}

}  // namespace keel
