// ckpt/manifest.h: the file that makes a folder a checkpoint, and the names inside one. Between the sources of
// checkpoint only.
//
// manifest.json is {"manifest": {format, version, step, files: [{name, size_bytes, xxh3_128}]}, "xxh3_128": hash of
// that object's text} on one line. It is compared byte for byte with what its own content would be written as.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/checkpoint.h"

struct XXH3_state_s;

namespace keel {

inline constexpr const char* manifest_name = "manifest.json";
inline constexpr const char* state_name = "state.json";

// XXH3-128 of bytes that arrive in pieces: 21 GB/s from memory, so that it hides behind any disk.
class FileHash {
public:
    FileHash();
    void add(std::span<const std::byte> bytes);
    std::string hex() const;

private:
    struct Freed {
        void operator()(XXH3_state_s* state) const;
    };
    std::unique_ptr<XXH3_state_s, Freed> state_;
};
std::string hash_of(std::string_view text);

std::string manifest_text(std::int64_t step, const std::vector<CheckpointFile>& files);
CheckpointInfo parse_manifest(const std::string& text, const std::filesystem::path& checkpoint);

std::string step_folder_name(std::int64_t step);                         // "step-00001234"
std::optional<std::int64_t> parse_step_folder(const std::string& name);  // nullopt for any other name

// Folders named step-… under `root` with their step, newest first. A root that does not exist has none.
struct StepFolder {
    std::int64_t step;
    std::filesystem::path path;
};
std::vector<StepFolder> step_folders(const std::filesystem::path& root);

}  // namespace keel
