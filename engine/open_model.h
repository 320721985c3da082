// engine/open_model.h: a model from whatever path a user has: a run, a checkpoint, or a model folder.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "ckpt/model_config.h"
#include "data/tokenizer.h"
#include "engine/config.h"
#include "engine/model/model.h"

namespace keel {

// What stands at a path, read far enough to know the model's shape; weights are not read yet.
struct ModelSource {
    enum class Kind : std::uint8_t { checkpoint, folder };
    Kind kind;
    std::filesystem::path path;          // of the checkpoint or folder itself
    Config config;                       // of a checkpoint, as it was trained; of a folder, its shape alone
    std::optional<Tokenizer> tokenizer;  // that came with it
    std::uint64_t tokenizer_hash = 0;    // of the one the model was trained with; 0 if unknown
    std::string tokenizer_json;          // its text, to travel on with new checkpoints
    std::string config_json;             // a folder's config.json, which may hold more than keel reads; it travels on too
    std::string description;             // "checkpoint runs/a/step-00000100", for the log
};

// `path` may be a run (its newest good checkpoint is taken, damaged ones are told on stderr), a checkpoint, or a folder.
ModelSource open_model(const std::filesystem::path& path);

// Fills the parameters of `model`, which is whole, from the source.
void load_params(const ModelSource& source, Model& model);
// The same, of what each rank of `world` holds of a model in training; a collective. Each rank reads the rows that it holds
// something of. A vocabulary larger than the source's is filled up (engine/added_rows.h).
void load_params(const ModelSource& source, Model& model, Group& world);

// The sentence for a model folder in float16 whose weights are asked for in bf16, which rounds them.
std::string rounded_from_f16(const std::filesystem::path& folder);

// config.json's fields ↔ the [model] section.
ModelSection model_section(const ModelShape& shape);
ModelShape model_shape(const ModelSection& model);

}  // namespace keel
