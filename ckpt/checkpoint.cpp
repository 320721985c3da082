// ckpt/checkpoint.h: saving and retention. Reading is in checkpoint_reader.cpp.
#include "ckpt/checkpoint.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>

#include "ckpt/manifest.h"
#include "ckpt/safetensors.h"
#include "ckpt/strict_json.h"
#include "kernels/base/error.h"
#include "kernels/base/file.h"

namespace keel {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view temporary_prefix = ".tmp-";

fs::path temporary_path(const fs::path& root, const std::string& name) {
    return root / concat(temporary_prefix, name, "-", ::getpid());
}

// Left by a process that is gone. One with our own number is from before this process began: a save never outlives its
// call.
bool is_stale(const std::string& name) {
    if (!name.starts_with(temporary_prefix)) return false;
    pid_t owner = 0;
    const auto dash = name.rfind('-');
    const char* end = name.data() + name.size();
    if (std::from_chars(name.data() + dash + 1, end, owner).ptr != end || owner <= 0) return true;
    return owner == ::getpid() || (::kill(owner, 0) != 0 && errno == ESRCH);
}

// The folder that becomes the checkpoint. It is removed unless it was published.
class Draft {
public:
    Draft(const fs::path& root, std::int64_t step)
        : root_(root), final_(root / step_folder_name(step)), path_(temporary_path(root, step_folder_name(step))) {
        std::error_code error;
        fs::remove_all(path_, error);
        if (!fs::create_directory(path_, error)) fail("cannot make folder ", path_.string(), ": ", error.message());
    }
    ~Draft() {
        std::error_code ignored;
        if (!path_.empty()) fs::remove_all(path_, ignored);
    }
    Draft(const Draft&) = delete;

    template <class Produce>
    void write(const std::string& name, Produce produce) {
        OutputFile file(path_ / name);
        FileHash hash;
        produce([&](std::span<const std::byte> bytes) {
            // Hash each piece while it is still in the cache from being copied into the block.
            while (!bytes.empty()) {
                const auto piece = bytes.first(std::min(bytes.size(), std::size_t{1} << 18));
                file.write(piece);
                hash.add(piece);
                bytes = bytes.subspan(piece.size());
            }
        });
        files_.push_back({name, file.size_bytes(), hash.hex()});
        file.close();
    }
    void write_text(const std::string& name, std::string_view text) {
        write(name, [&](const ByteSink& out) { out(std::as_bytes(std::span(text))); });
    }

    const fs::path& publish(std::int64_t step) {
        const std::string manifest = manifest_text(step, files_);
        write_text(manifest_name, manifest);
        sync_directory(path_);
        if (fs::exists(final_))
            replace();
        else if (::rename(path_.c_str(), final_.c_str()) != 0)
            fail_rename();
        else
            path_.clear();
        sync_directory(root_);
        return final_;
    }

private:
    // A folder with content cannot be renamed over. Swapping the two names leaves no moment without a checkpoint.
    void replace() {
        if (::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, final_.c_str(), RENAME_EXCHANGE) == 0)
            return;  // path_ is the old one
        const fs::path aside = temporary_path(root_, "replaced-" + final_.filename().string());
        if (::rename(final_.c_str(), aside.c_str()) != 0 || ::rename(path_.c_str(), final_.c_str()) != 0) fail_rename();
        path_ = aside;
    }
    [[noreturn]] void fail_rename() const {
        fail("cannot rename ", path_.string(), " to ", final_.string(), ": ", std::strerror(errno));
    }

    fs::path root_, final_, path_;
    std::vector<CheckpointFile> files_;
};

void check_extra_names(const std::vector<ExtraFile>& extra) {
    for (const ExtraFile& f : extra)
        if (f.name.empty() || f.name.front() == '.' || f.name.find('/') != std::string::npos ||
            f.name == manifest_name || f.name == state_name || f.name == weights_name || f.name == optimizer_name)
            fail("a checkpoint cannot hold a file named \"", f.name, "\"; give a bare name that is not taken");
}

void write_tensors(Draft& draft, std::span<const NamedTensor> tensors, const char* file) {
    std::vector<TensorSource> sources;
    for (const NamedTensor& t : tensors)
        if (file_of_tensor(t.name) == std::string_view(file))
            sources.push_back(
                {t.name, stored(t.dtype), t.shape, converted_bytes(t.data, t.dtype, t.dtype, element_count(t.shape))});
    if (sources.empty()) return;
    draft.write(file, [&](const ByteSink& out) { write_safetensors(std::move(sources), {}, out); });
}

bool looks_complete(const fs::path& checkpoint) {
    try {
        open_checkpoint(checkpoint);
        return true;
    } catch (const Error&) {
        return false;
    }
}

// Deleting renames first, so that a kill in between leaves a leftover and not a damaged checkpoint.
void apply_retention(const fs::path& root, std::int64_t saved, const Retention& retention) {
    if (retention.keep_last <= 0) return;
    std::int64_t kept = 0;
    for (const StepFolder& folder : step_folders(root)) {
        std::error_code error;
        if (folder.step == saved) {
            ++kept;
            continue;
        }
        if (fs::is_symlink(folder.path, error) || !looks_complete(folder.path)) continue;
        if (kept < retention.keep_last) {
            ++kept;
            continue;
        }
        if (retention.keep_every > 0 && folder.step % retention.keep_every == 0) continue;
        const fs::path doomed = temporary_path(root, "deleted-" + folder.path.filename().string());
        fs::rename(folder.path, doomed, error);
        if (!error) fs::remove_all(doomed, error);
    }
}

}  // namespace

void prepare_checkpoint_root(const fs::path& root) {
    std::error_code error;
    fs::create_directories(root, error);
    if (error) fail("cannot make folder ", root.string(), ": ", error.message());
    std::vector<fs::path> stale;
    for (const auto& entry : fs::directory_iterator(root, error))
        if (is_stale(entry.path().filename().string())) stale.push_back(entry.path());
    if (error) fail("cannot list ", root.string(), ": ", error.message());
    for (const fs::path& path : stale) fs::remove_all(path, error);

    const fs::path probe = temporary_path(root, "probe");
    try {
        OutputFile file(probe);
        file.write("x");
        file.close();
    } catch (...) {
        fs::remove(probe, error);
        throw;
    }
    fs::remove(probe, error);
}

std::optional<fs::path> set_aside_checkpoints(const fs::path& root, std::int64_t step) {
    std::optional<fs::path> aside;
    for (const StepFolder& folder : step_folders(root)) {
        if (folder.step <= step) continue;
        std::error_code error;
        if (!aside) {
            for (int n = 1; !aside; ++n)
                if (const fs::path free = root / concat("set-aside-", n); fs::create_directory(free, error)) aside = free;
                else if (error) fail("cannot make folder ", free.string(), ": ", error.message());
        }
        fs::rename(folder.path, *aside / folder.path.filename(), error);
        if (error) fail("cannot move ", folder.path.string(), " to ", aside->string(), ": ", error.message());
    }
    if (aside) sync_directory(root);
    return aside;
}

fs::path save_checkpoint(const fs::path& root, std::int64_t step, const std::string& state,
                         std::span<const NamedTensor> tensors, const std::vector<ExtraFile>& extra,
                         const Retention& retention) {
    if (step < 0) fail("cannot save a checkpoint of step ", step);
    parse_strict_json(state, "state of the checkpoint");
    check_extra_names(extra);
    std::error_code error;
    fs::create_directories(root, error);
    if (error) fail("cannot make folder ", root.string(), ": ", error.message());

    fs::path published;
    {
        Draft draft(root, step);
        write_tensors(draft, tensors, weights_name);
        write_tensors(draft, tensors, optimizer_name);
        for (const ExtraFile& f : extra) draft.write_text(f.name, f.bytes);
        draft.write_text(state_name, state);
        published = draft.publish(step);
    }
    apply_retention(root, step, retention);
    return published;
}

}  // namespace keel
