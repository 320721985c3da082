// The folder of all checkpoints of a run: ckpt/checkpoint.h.
#include "ckpt/checkpoint.h"
#include "ckpt/draft.h"
#include "ckpt/manifest.h"
#include "kernels/base/error.h"
#include "kernels/base/file.h"

namespace keel {
namespace fs = std::filesystem;

void prepare_checkpoint_root(const fs::path& root) {
    std::error_code error;
    fs::create_directories(root, error);
    if (error) fail("cannot make folder ", root.string(), ": ", error.message());
    std::vector<fs::path> stale;
    for (const auto& entry : fs::directory_iterator(root, error))
        if (is_stale_temporary(entry.path().filename().string())) stale.push_back(entry.path());
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

bool is_free_checkpoint_root(const fs::path& root) {
    for (const auto& entry : fs::directory_iterator(root))
        if (!is_stale_temporary(entry.path().filename().string())) return false;
    return true;
}

std::optional<fs::path> set_aside_checkpoints(const fs::path& root, std::int64_t step) {
    std::optional<fs::path> aside;
    for (const StepFolder& folder : step_folders(root)) {
        if (folder.step <= step) continue;
        std::error_code error;
        if (!aside) {
            for (int n = 1; !aside; ++n)
                if (const fs::path free = root / concat("set-aside-", n); fs::create_directory(free, error))
                    aside = free;
                else if (error)
                    fail("cannot make folder ", free.string(), ": ", error.message());
        }
        fs::rename(folder.path, *aside / folder.path.filename(), error);
        if (error) fail("cannot move ", folder.path.string(), " to ", aside->string(), ": ", error.message());
    }
    if (aside) sync_directory(root);
    return aside;
}

}  // namespace keel
