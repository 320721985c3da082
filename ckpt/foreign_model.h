// ckpt/foreign_model.h: checkpoints of other systems: what they are, and the same model as keel has it.
//
// Read are the original folders of Meta and Mistral (params.json, consolidated.*), checkpoints of Megatron-LM, and model
// files of llm.c and llama2.c. Pickles among them are read without running any of what they ask for (ckpt/foreign/pickle.h).
// Others are recognised, and the way from them to a model folder is told. Opening reads descriptions alone; weights are
// read in place when they are wanted.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/foreign/file_tensor.h"
#include "ckpt/foreign/weights.h"
#include "ckpt/model_config.h"

namespace keel {

class TorchFile;

enum class ForeignKind : std::uint8_t { meta, megatron, llmc, llama2c };
std::string_view name(ForeignKind kind);  // as --from spells it
std::optional<ForeignKind> parse_foreign_kind(std::string_view name);

struct ForeignOptions {
    std::int64_t vocab = 0;         // of the padded rows of a Megatron embedding, so many are tokens; 0: as its args say
    double rope_factor = 0;         // of a Meta folder with use_scaled_rope; 0: known from the released shapes
    bool allow_unexpected = false;  // tensors and settings nobody here knows are then only warned about
    WarningSink warn{};
};

struct ForeignModel {
    std::string description;  // "Meta's form, 2 shards"
    ModelShape shape;
    ForeignWeights weights;
    std::vector<TensorTable> tables;         // what the files hold, by their own names
    std::filesystem::path tokenizer_from{};  // a folder with tokenizer files; empty if none was found
    std::vector<std::shared_ptr<TorchFile>> torch{};  // behind the tables, where they are files of torch.save
};

// Which readable form lies at `path`, a file or a folder; nullopt if none. A folder with a config.json is none: keel
// reads that.
std::optional<ForeignKind> find_foreign(const std::filesystem::path& path);
// Refuses with what is there instead, if `path` is not of this kind.
ForeignModel open_foreign(const std::filesystem::path& path, ForeignKind kind, const ForeignOptions& options);

// Compares the checksums beside the weights, where the form has them: reads them whole.
void check_bytes(const ForeignModel& model);

// What lies at `path`, and the way from it to a model folder, in a sentence; "" if nobody here knows it.
std::string foreign_model(const std::filesystem::path& path);

}  // namespace keel
