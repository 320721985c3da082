// engine/state.h: a run's state as a checkpoint holds it: global tensors by name, progress, configuration, tokenizer.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "ckpt/checkpoint.h"
#include "ckpt/tensor.h"
#include "engine/config.h"
#include "engine/model/model.h"
#include "engine/progress.h"

namespace keel {

// Every parameter, in the model's dtype; with `optimizer` also NAME.m, NAME.v and, for bf16, NAME.master.
std::vector<NamedTensor> state_tensors(Model& model, bool optimizer);

// The JSON text kept as state.json: progress, and the resolved configuration as TOML text.
std::string state_text(const Progress& progress, const Config& config, std::uint64_t tokenizer_hash);

struct SavedState {
    Progress progress;
    Config config;
    std::uint64_t tokenizer_hash = 0;
};
SavedState parse_state(const std::string& text, const std::string& where);

}  // namespace keel
