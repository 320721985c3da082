// The reading half of ckpt/checkpoint.h.
#include <algorithm>
#include <map>

#include "ckpt/checkpoint.h"
#include "ckpt/manifest.h"
#include "ckpt/safetensors.h"
#include "ckpt/strict_json.h"
#include "kernels/base/error.h"
#include "kernels/base/file.h"

namespace keel {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t block_bytes = std::int64_t{4} << 20;

const CheckpointFile* find_file(const CheckpointInfo& info, std::string_view name) {
    const auto at = std::find_if(info.files.begin(), info.files.end(), [&](const auto& f) { return f.name == name; });
    return at == info.files.end() ? nullptr : &*at;
}

void check_hash(const CheckpointInfo& info, const CheckpointFile& file, const FileHash& hash) {
    if (const std::string found = hash.hex(); found != file.hash)
        fail((info.path / file.name).string(), " is damaged: XXH3-128 should be ", file.hash, ", found ", found);
}

std::string read_verified(const CheckpointInfo& info, const CheckpointFile& file) {
    std::string text = read_file(info.path / file.name);
    FileHash hash;
    hash.add(std::as_bytes(std::span(text)));
    check_hash(info, file, hash);
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

// Reads one file front to back, once: hashed as it passes, and scattered to the tensors that were asked for.
class ScatteringReader {
public:
    ScatteringReader(const CheckpointInfo& info, const CheckpointFile& file)
        : info_(info), listed_(file), file_(info.path / file.name), where_(file_.path().string()) {
        block_.resize(static_cast<std::size_t>(std::min(block_bytes, file.size_bytes)));
    }

    void read(std::map<std::string_view, const NamedTensor*>& wanted) {
        const SafetensorsHeader header = read_header();
        check(header, wanted);
        for (const StoredTensor& t : header.tensors) read_tensor(t, *wanted.at(t.name));
        check_hash(info_, listed_, hash_);
    }

private:
    SafetensorsHeader read_header() {
        const std::vector<std::byte> start = read_safetensors_start(file_);
        hash_.add(start);
        offset_ = static_cast<std::int64_t>(start.size());
        return parse_safetensors_header(start, file_.size_bytes(), where_);
    }

    void check(const SafetensorsHeader& header, const std::map<std::string_view, const NamedTensor*>& wanted) {
        std::string wrong;
        std::size_t found = 0;
        for (const StoredTensor& t : header.tensors) {
            const auto at = wanted.find(t.name);
            if (at == wanted.end()) {
                wrong += "\n  unexpected " + t.name + " " + shape_text(t.shape);
            } else {
                ++found;
                if (at->second->shape != t.shape)
                    wrong += "\n  misshapen  " + t.name + " is " + shape_text(t.shape) + ", the run's is " +
                             shape_text(at->second->shape);
                if (!is_convertible(t.dtype)) wrong += "\n  unreadable " + t.name + " is " + std::string(name(t.dtype));
            }
        }
        if (found != wanted.size())
            for (const auto& [tensor, destination] : wanted)
                if (std::none_of(header.tensors.begin(), header.tensors.end(),
                                 [&](const auto& t) { return t.name == tensor; }))
                    wrong += "\n  missing    " + std::string(tensor) + " " + shape_text(destination->shape);
        if (!wrong.empty()) fail(where_, " does not hold the tensors of this run:", wrong);
    }

    void read_tensor(const StoredTensor& t, const NamedTensor& to) {
        const std::int64_t from_bytes = size_bits(t.dtype) / 8, to_bytes = size_bytes(to.dtype);
        const bool direct = t.dtype == stored(to.dtype);
        for (std::int64_t done = 0, count = t.elements(); done < count;) {
            const std::int64_t now = std::min(count - done, block_bytes / from_bytes);
            std::byte* out = to.data + done * to_bytes;
            const std::span in(direct ? out : block_.data(), static_cast<std::size_t>(now * from_bytes));
            file_.read_at(offset_, in);
            hash_.add(in);
            if (!direct) convert(t.dtype, in.data(), to.dtype, out, now);
            offset_ += static_cast<std::int64_t>(in.size());
            done += now;
        }
    }

    const CheckpointInfo& info_;
    const CheckpointFile& listed_;
    InputFile file_;
    std::string where_;
    FileHash hash_;
    std::int64_t offset_ = 0;
    std::vector<std::byte> block_;
};

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

CheckpointInfo verify_checkpoint(const fs::path& path) {
    CheckpointInfo info = open_checkpoint(path);
    std::vector<std::byte> block(static_cast<std::size_t>(block_bytes));
    for (const CheckpointFile& listed : info.files) {
        const InputFile file(path / listed.name);
        FileHash hash;
        for (std::int64_t done = 0; done < listed.size_bytes;) {
            const auto piece =
                std::span(block).first(static_cast<std::size_t>(std::min(block_bytes, listed.size_bytes - done)));
            file.read_at(done, piece);
            hash.add(piece);
            done += static_cast<std::int64_t>(piece.size());
        }
        check_hash(info, listed, hash);
    }
    return info;
}

std::optional<CheckpointInfo> find_newest_checkpoint(const fs::path& root, const WarningSink& warn) {
    for (const StepFolder& folder : step_folders(root)) {
        try {
            return verify_checkpoint(folder.path);
        } catch (const std::exception& e) {
            if (warn) warn("skipping " + folder.path.string() + ": " + e.what());
        }
    }
    return std::nullopt;
}

void load_checkpoint(const fs::path& path, std::span<const NamedTensor> tensors) {
    const CheckpointInfo info = open_checkpoint(path);
    std::map<std::string_view, std::map<std::string_view, const NamedTensor*>> by_file;
    for (const NamedTensor& t : tensors)
        if (!by_file[file_of_tensor(t.name)].emplace(t.name, &t).second)
            fail("tensor \"", t.name, "\" is asked for twice");
    for (auto& [name, wanted] : by_file) {
        const CheckpointFile* file = find_file(info, name);
        if (!file) fail(path.string(), " has no ", name, ", from which ", wanted.size(), " tensors were to be loaded");
        ScatteringReader(info, *file).read(wanted);
    }
}

std::optional<std::string> read_checkpoint_file(const fs::path& path, const std::string& name) {
    const CheckpointInfo info = open_checkpoint(path);
    const CheckpointFile* file = find_file(info, name);
    return file ? std::optional(read_verified(info, *file)) : std::nullopt;
}

}  // namespace keel
