// engine/presets.h: shapes by name: released models, as their config.json states them, and small ones to begin with.
// A shape is data: nothing else in keel knows a model's name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/config.h"

namespace keel {

struct Preset {
    std::string_view name, about;
    std::int64_t vocab, hidden, layers, heads, kv_heads, head_dim, ffn;
    double norm_eps, rope_base;
    std::string_view rope_scaling;  // "none", or "llama3" with the factor that follows
    double rope_factor;
    bool tied, qkv_bias, qk_norm;
    std::int64_t window;
    std::int64_t parameters;        // exact; a test derives it from the fields before it
};

const std::vector<Preset>& presets();

// Sets every field of the shape, and leaves dtype and init_std. Fails with the nearest name if there is no such preset.
void apply_preset(ModelSection& model, std::string_view name);

}  // namespace keel
