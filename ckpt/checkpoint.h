// ckpt/checkpoint.h: checkpoints of a run: root/step-00001234, published whole by one rename.
//
// A checkpoint holds weights.safetensors (parameters by the engine's names), optimizer.safetensors (NAME.m, NAME.v,
// NAME.master), state.json (progress and the resolved configuration), extra files (the tokenizer), and manifest.json,
// written last: size and XXH3-128 of every file. All is fsynced under root/.tmp-… before the rename, and the rename
// before save_checkpoint returns. What it returned can be loaded, whatever was killed when; whatever is damaged is
// found by its hash. Memory: one block of 8 MiB. Not for concurrent saves into one root.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ckpt/tensor.h"

namespace keel {

// Which older checkpoints stay after a save. The one just saved always does; damaged ones neither count nor go.
struct Retention {
    std::int64_t keep_last = 2;   // newest to keep; 0 keeps all
    std::int64_t keep_every = 0;  // also those whose step is a multiple; 0 turns it off
};

struct ExtraFile {
    std::string name;  // a bare file name
    std::string bytes;
};

// Makes `root`, proves that it can be written, and removes what an interrupted save left. Call once, before training.
void prepare_checkpoint_root(const std::filesystem::path& root);

// Returns the path of the published checkpoint. Throws with the checkpoint absent and older ones untouched, for example
// when the disk is full. `state` is the text of a JSON object. An existing checkpoint of the same step is replaced
// atomically.
std::filesystem::path save_checkpoint(const std::filesystem::path& root, std::int64_t step, const std::string& state,
                                      std::span<const NamedTensor> tensors, const std::vector<ExtraFile>& extra = {},
                                      const Retention& retention = {});

struct CheckpointFile {
    std::string name;
    std::int64_t size_bytes;
    std::string hash;  // XXH3-128, 32 hex digits
};

struct CheckpointInfo {
    std::filesystem::path path;
    std::int64_t step;
    std::string state;  // the text of state.json, verified
    std::vector<CheckpointFile> files;
};

// Whether `path` looks like one checkpoint (it has a manifest.json), for commands that take any path.
bool is_checkpoint(const std::filesystem::path& path);

// Reads manifest and state and checks every file's size. Throws, naming the file, what was expected and what was found.
CheckpointInfo open_checkpoint(const std::filesystem::path& path);

// The same, and reads every byte to check every hash.
CheckpointInfo verify_checkpoint(const std::filesystem::path& path);

// Newest checkpoint under `root` that verifies, damaged ones reported to `warn` and skipped; nullopt when there is
// none, also when `root` does not exist.
std::optional<CheckpointInfo> find_newest_checkpoint(const std::filesystem::path& root, const WarningSink& warn);

// Moves checkpoints of steps past `step` into a folder of their own beside the others, where find_newest_checkpoint does
// not look; returns it, or nullopt if there are none.
std::optional<std::filesystem::path> set_aside_checkpoints(const std::filesystem::path& root, std::int64_t step);

// Fills `tensors` from the files that hold them, converting to each destination's dtype and checking each file's hash
// on the way. Ask for the parameters alone and optimizer.safetensors is not read; of a file that is read every tensor
// must be asked for. On an exception the contents of the destinations are undefined.
void load_checkpoint(const std::filesystem::path& path, std::span<const NamedTensor> tensors);

// The bytes of one extra file, verified; nullopt if the checkpoint has none of this name.
std::optional<std::string> read_checkpoint_file(const std::filesystem::path& path, const std::string& name);

}  // namespace keel
