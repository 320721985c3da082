// ckpt/checkpoint.h: checkpoints of a run: root/step-00001234, published whole by one rename.
//
// A checkpoint holds the parameters by the engine's names, NAME.m, NAME.v and NAME.master of the optimizer, state.json
// (progress and the resolved configuration), extra files (the tokenizer), and manifest.json, written last: size and
// XXH3-128 of every file. One rank writes weights.safetensors and optimizer.safetensors; of several, each writes what
// it owns, as rectangles of the global tensors, into weights-rank-00003-of-00008.safetensors and its optimizer's like.
// How a checkpoint was cut does not matter to whoever reads it: any layout loads any other, each bit where it belongs.
//
// All is fsynced under root/.tmp-… before the rename, and the rename before save_checkpoint returns. What it returned
// can be loaded, whatever was killed when; whatever is damaged is found by its hash. `root` is one folder that all
// ranks see. Memory: one block of 8 MiB. Not for concurrent saves into one root.
//
// Functions that take a Group are collectives: all ranks call them, and all leave with the same answer or the same
// Error, which names the rank that it came from.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ckpt/piece.h"
#include "ckpt/tensor.h"
#include "comm/group.h"

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

// Makes `root`, proves that it can be written, and removes what an interrupted save left. One rank, once, before
// training.
void prepare_checkpoint_root(const std::filesystem::path& root);
// Whether the folder `root` holds nothing but what killed processes left, which prepare_checkpoint_root removes.
bool is_free_checkpoint_root(const std::filesystem::path& root);

// Each rank gives what it writes: together, every element of every tensor once, or nothing is published. Rank 0's
// `state` (the text of a JSON object), `extra` and `retention` count. Returns the path of the published checkpoint,
// which takes the place of an older one of the same step atomically. Throws with the checkpoint absent and older ones
// untouched, for example when one rank's disk is full.
std::filesystem::path save_checkpoint(Group& world, const std::filesystem::path& root, std::int64_t step,
                                      const std::string& state, std::span<const TensorPiece> owned,
                                      const std::vector<ExtraFile>& extra = {}, const Retention& retention = {});

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

// The same, and reads every byte to check every hash; of n ranks each reads its part of the files.
CheckpointInfo verify_checkpoint(Group& world, const std::filesystem::path& path);
CheckpointInfo verify_checkpoint(const std::filesystem::path& path);

// Newest checkpoint under `root` that verifies, damaged ones reported to rank 0's `warn` and skipped; nullopt when
// there is none, also when `root` does not exist. Rank 0 looks, and all ranks leave with what it found.
std::optional<CheckpointInfo> find_newest_checkpoint(Group& world, const std::filesystem::path& root,
                                                     const WarningSink& warn);
std::optional<CheckpointInfo> find_newest_checkpoint(const std::filesystem::path& root, const WarningSink& warn);

// Moves checkpoints of steps past `step` into a folder of their own beside the others, where find_newest_checkpoint
// does not look; returns it, or nullopt if there are none. One rank.
std::optional<std::filesystem::path> set_aside_checkpoints(const std::filesystem::path& root, std::int64_t step);

// Fills every wanted rectangle from the pieces that cover it, converting to its dtype, and checks the hash of every
// file that holds weights (or optimizer state) if some rank wants weights (or optimizer state): of n ranks each checks
// its part. Tensors with holes, overlaps, or other shapes than wanted are refused by name before any is read, and so
// are tensors of those files that no rank wants. Ask for the parameters alone and no file of the optimizer is read. On
// an exception the contents of the destinations are undefined.
void load_checkpoint(Group& world, const std::filesystem::path& path, std::span<const TensorPiece> wanted);

// The bytes of one extra file, verified; nullopt if the checkpoint has none of this name.
std::optional<std::string> read_checkpoint_file(const std::filesystem::path& path, const std::string& name);

// Of whole tensors, by one rank.
std::filesystem::path save_checkpoint(const std::filesystem::path& root, std::int64_t step, const std::string& state,
                                      std::span<const NamedTensor> tensors, const std::vector<ExtraFile>& extra = {},
                                      const Retention& retention = {});
void load_checkpoint(const std::filesystem::path& path, std::span<const NamedTensor> tensors);

// Of weights that are not in memory: each is produced while it is written.
struct TensorSource;
std::filesystem::path save_streamed_checkpoint(const std::filesystem::path& root, std::int64_t step,
                                               const std::string& state, std::vector<TensorSource> weights,
                                               const std::vector<ExtraFile>& extra);

}  // namespace keel
