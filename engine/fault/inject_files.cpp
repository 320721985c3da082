#include "engine/fault/inject_files.h"

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <string>

#include "engine/observe/print.h"
#include "kernels/base/error.h"
#include "kernels/base/file_faults.h"

namespace keel {

namespace fs = std::filesystem;

struct FileTroubles::Shared {
    struct Rank {
        int rank, ranks;
        bool fails_next = false, full = false;

        // weights-rank-00003-of-00008.safetensors, part-00003-of-00008/…
        bool owns(const std::string& path) const {
            if (ranks == 1) return true;
            const bool of_one = path.find(print("-of-%05d", ranks)) != std::string::npos;
            return of_one ? path.find(print("-%05d-of-%05d", rank, ranks)) != std::string::npos : rank == 0;
        }
    };

    explicit Shared(const std::vector<fs::path>& where)
        : folders(where), faults([this](FileStep step, const fs::path& path) { return decide(step, path.string()); }) {}

    int decide(FileStep step, const std::string& path) {
        if (std::ranges::none_of(folders, [&](const fs::path& folder) { return path.starts_with(folder.string()); })) return 0;
        const std::lock_guard lock(mutex);
        for (Rank& r : troubled) {
            if (!r.owns(path)) continue;
            if (r.full && (step == FileStep::create || step == FileStep::write)) return ENOSPC;
            if (r.fails_next && step == FileStep::write) return r.fails_next = false, EIO;
        }
        return 0;
    }
    Rank& of(int rank, int ranks) {
        const auto at = std::ranges::find(troubled, rank, &Rank::rank);
        return at != troubled.end() ? *at : troubled.emplace_back(Rank{.rank = rank, .ranks = ranks});
    }

    std::mutex mutex;  // of troubled
    std::vector<Rank> troubled;
    std::vector<fs::path> folders;
    FileFaults faults;
};

FileTroubles::FileTroubles(const std::vector<fs::path>& folders) {
    static std::mutex mutex;
    static std::weak_ptr<Shared> of_process;
    const std::lock_guard lock(mutex);
    shared_ = of_process.lock();
    if (!shared_) of_process = shared_ = std::make_shared<Shared>(folders);
    if (shared_->folders != folders) fail("faults of the disk are injected into another run of this process already");
}

FileTroubles::~FileTroubles() = default;

void FileTroubles::fail_next_write(int rank, int ranks) {
    const std::lock_guard lock(shared_->mutex);
    shared_->of(rank, ranks).fails_next = true;
}

void FileTroubles::fill_disk(int rank, int ranks, bool full) {
    const std::lock_guard lock(shared_->mutex);
    shared_->of(rank, ranks).full = full;
}

}  // namespace keel
