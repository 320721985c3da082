// engine/state.h: a run's state as a checkpoint holds it: global tensors by name, progress, configuration, tokenizer.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/checkpoint.h"
#include "ckpt/tensor.h"
#include "engine/config.h"
#include "engine/fault/loss_scale.h"
#include "engine/fault/spikes.h"
#include "engine/model/model.h"
#include "engine/progress.h"

namespace keel {

// Both see the state as the host does (Model::host_state).
// Every parameter of a model on one rank, in the model's dtype, whole.
std::vector<NamedTensor> param_tensors(Model& model);

// What this rank keeps of a run's state: rectangles of parameters in the model's dtype, of NAME.m and NAME.v and, for two bytes, of
// NAME.master. To save, what it alone keeps: over all ranks every element once. To load, copies too.
enum class Pieces : std::uint8_t { to_save, to_load };
std::vector<TensorPiece> state_pieces(Model& model, Pieces pieces);

// The JSON text kept as state.json: progress, and the resolved configuration as TOML text.
using Scales = std::map<std::string, int>;  // of exact sums, by parameter (engine/parallel/exact.h)
struct LedgerState {
    Scales scales{};  // empty without
    StepSpikes spikes{};
    std::optional<LossScale::State> loss_scale{};  // of f16
};
std::string state_text(const Progress& progress, const Config& config, std::uint64_t tokenizer_hash, const LedgerState& ledgers = {});

// Those of a model that sums exactly; and put back, where a checkpoint has them.
Scales exact_scales(const Config& config, Model& model);
void set_exact_scales(const Config& config, Model& model, const Scales& scales);

struct SavedState : LedgerState {
    Progress progress;
    Config config;
    std::uint64_t tokenizer_hash = 0;
};
SavedState parse_state(const std::string& text, const std::string& where);

}  // namespace keel
