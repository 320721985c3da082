// ckpt/model_config.h: config.json of a model folder, and the shape it describes.
//
// Read with each family's own defaults (an absent key is not a null), in both generations of the file, which must
// agree. A key that would change the mathematics in a way keel does not implement is refused; a key without effect is
// kept and written back. Written with the older keys: new readers take them, and old readers would ignore the new ones.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace keel {

enum class Family : std::uint8_t { llama, mistral, qwen2, qwen3, olmo2, phi3 };
std::string_view name(Family family);  // the spelling of model_type

// Names as in the [model] section of a run's configuration, where a field exists there.
struct ModelShape {
    Family family = Family::llama;
    std::string dtype;  // f32, bf16, f16, or empty where the file does not say
    std::int64_t vocab = 0, hidden = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0;
    double norm_eps = 1e-6;
    double rope_base = 10000;
    std::string rope_scaling = "none";  // none, linear, llama3, yarn or longrope
    double rope_factor = 1, rope_original_max_position = 0, rope_low_freq_factor = 1, rope_high_freq_factor = 4;
    double rope_beta_fast = 32, rope_beta_slow = 1, rope_attention_factor = 0;  // 0: what the scaling makes of factor
    double rope_fraction = 1;                                                   // of each head, from its beginning on
    std::vector<double> rope_short_factors, rope_long_factors;                  // longrope
    bool tied = false, qkv_bias = false, qk_norm = false, qk_norm_whole = false, post_norm = false;
    std::int64_t window = 0;  // keys a query sees, itself included; 0 is full attention; all layers alike
    double init_std = 0.02;

    std::int64_t max_position = 0;  // max_position_embeddings
    std::optional<std::int64_t> bos_id, pad_id;
    std::vector<std::int64_t> eos_ids;  // generation stops at any of them
    std::string other_keys = "{}";      // a JSON object: the keys keel has no field for
};

// Refuses with a message that names `file` and the key.
ModelShape parse_model_config(std::string_view text, const std::string& file);
std::string model_config_text(const ModelShape& shape);

// Sizes positive and consistent, ids inside the vocabulary, features expressible in shape.family. `what` starts the
// message.
void check_model_shape(const ModelShape& shape, const std::string& what);

// The family whose files can express these features: post_norm is olmo2, a partial rotation or longrope is phi3,
// qk_norm is qwen3, qkv_bias is qwen2, a window is mistral, else llama. Sets shape.family, or refuses a mixture no
// family has.
void choose_family(ModelShape& shape);

}  // namespace keel
