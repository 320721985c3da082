// ckpt/draft.h: the folder that becomes a checkpoint by one rename. Between the sources of ckpt only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/checkpoint.h"
#include "ckpt/tensor.h"

namespace keel {

// root/.tmp-NAME-PID: no reader looks there, and prepare_checkpoint_root removes what a killed process left.
std::filesystem::path temporary_path(const std::filesystem::path& root, const std::string& name);
bool is_stale_temporary(const std::string& name);

// Writes a new file, brings it to disk, and hashes what passes.
CheckpointFile write_hashed(const std::filesystem::path& folder, const std::string& name,
                            const std::function<void(const ByteSink&)>& produce);

// It is removed unless it was published. Several ranks may write into path(); one owns the Draft.
class Draft {
public:
    Draft(const std::filesystem::path& root, std::int64_t step);
    ~Draft();
    Draft(const Draft&) = delete;

    const std::filesystem::path& path() const { return path_; }
    void add(CheckpointFile file) { files_.push_back(std::move(file)); }
    void write_text(const std::string& name, std::string_view text);
    const std::vector<CheckpointFile>& files() const { return files_; }

    // Writes the manifest of the files added, and takes the place of an older checkpoint of this step. Returns its
    // path.
    const std::filesystem::path& publish();

private:
    void replace();
    void rename(const std::filesystem::path& from, const std::filesystem::path& to) const;

    std::filesystem::path root_, final_, path_;
    std::int64_t step_;
    std::vector<CheckpointFile> files_;
};

// Deletes what `retention` does not keep. By rename first, so that a kill in between leaves a leftover and not a
// damaged checkpoint.
void apply_retention(const std::filesystem::path& root, std::int64_t saved, const Retention& retention);

}  // namespace keel
