#include "ckpt/draft.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "ckpt/manifest.h"
#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/file_faults.h"

namespace keel {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view temporary_prefix = ".tmp-";

bool looks_complete(const fs::path& checkpoint) {
    try {
        open_checkpoint(checkpoint);
        return true;
    } catch (const Error&) {
        return false;
    }
}

}  // namespace

fs::path temporary_path(const fs::path& root, const std::string& name) {
    return root / concat(temporary_prefix, name, "-", ::getpid());
}

// Left by a process that is gone. One with our own number is from before this process began: a save never outlives the
// call or the object that made it.
bool is_stale_temporary(const std::string& name) {
    if (!name.starts_with(temporary_prefix)) return false;
    pid_t owner = 0;
    const auto dash = name.rfind('-');
    const char* end = name.data() + name.size();
    if (std::from_chars(name.data() + dash + 1, end, owner).ptr != end || owner <= 0) return true;
    return owner == ::getpid() || (::kill(owner, 0) != 0 && errno == ESRCH);
}

CheckpointFile write_hashed(const fs::path& folder, const std::string& name,
                            const std::function<void(const ByteSink&)>& produce) {
    OutputFile file(folder / name);
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
    CheckpointFile written{name, file.size_bytes(), hash.hex()};
    file.close();
    return written;
}

Draft::Draft(const fs::path& root, std::int64_t step)
    : root_(root),
      final_(root / step_folder_name(step)),
      path_(temporary_path(root, step_folder_name(step))),
      step_(step) {
    std::error_code error;
    fs::create_directories(root, error);
    if (error) fail("cannot make folder ", root.string(), ": ", error.message());
    fs::remove_all(path_, error);
    if (!fs::create_directory(path_, error)) fail("cannot make folder ", path_.string(), ": ", error.message());
}

Draft::~Draft() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
}

void Draft::write_text(const std::string& name, std::string_view text) {
    add(write_hashed(path_, name, [&](const ByteSink& out) { out(std::as_bytes(std::span(text))); }));
}

const fs::path& Draft::publish() {
    write_text(manifest_name, manifest_text(step_, files_));
    sync_directory(path_);
    if (fs::exists(final_)) {
        replace();
    } else {
        rename(path_, final_);
        path_.clear();
    }
    sync_directory(root_);
    return final_;
}

// A folder with content cannot be renamed over. Swapping the two names leaves no moment without a checkpoint.
void Draft::replace() {
    if (file_fault(FileStep::rename, final_)) fail("cannot rename ", path_.string(), ": ", std::strerror(errno));
    if (::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, final_.c_str(), RENAME_EXCHANGE) == 0)
        return;  // path_ is the old one
    const fs::path aside = temporary_path(root_, "replaced-" + final_.filename().string());
    rename(final_, aside);
    rename(path_, final_);
    path_ = aside;
}

void Draft::rename(const fs::path& from, const fs::path& to) const {
    if (file_fault(FileStep::rename, to) || ::rename(from.c_str(), to.c_str()) != 0)
        fail("cannot rename ", from.string(), " to ", to.string(), ": ", std::strerror(errno));
}

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

}  // namespace keel
