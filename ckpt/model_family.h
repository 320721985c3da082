// ckpt/model_family.h: what each supported family assumes where its config.json is silent, and which keys no supported
// family may carry. Used by the reader and the writer of config.json only.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "ckpt/model_config.h"

namespace keel {

struct FamilyTraits {
    Family family;
    std::string_view model_type, class_name;
    std::optional<std::int64_t> kv_heads = {};  // where num_key_value_heads is absent; nullopt: as many as heads
    std::optional<std::int64_t> head_dim = {};  // where head_dim is absent; nullopt: hidden / heads
    std::int64_t max_position = 2048;           // where max_position_embeddings is absent
    double norm_eps = 1e-6;                     // where rms_norm_eps is absent
    bool qkv_bias = false, qk_norm = false;
    bool has_window = false, window_by_flag = false;  // window_by_flag: off unless use_sliding_window
    bool post_norm = false;                           // OLMo-2: norms behind the branches, and of all of q and of k
    bool fused = false;  // Phi-3: qkv and gate_up in one tensor each, part of a head rotated, longrope
};

const FamilyTraits& traits(Family family);
const FamilyTraits* find_family(std::string_view model_type);  // nullptr if unsupported
std::string supported_families();
std::string why_unsupported(std::string_view model_type);

// A key that leaves the mathematics as it is only while it holds `neutral` (0 stands for false and empty too).
struct NeutralKey {
    std::string_view key;
    double neutral;
    std::string_view why;
};
std::span<const NeutralKey> neutral_keys();

}  // namespace keel
