#include "engine/model/bind.h"

#include <vector>

namespace keel {

RopeConfig rope_config(const ModelSection& m, std::int64_t positions) {
    RopeConfig rope{.base = m.rope_base, .factor = m.rope_factor, .original_max_position = m.rope_original_max_position,
                    .low_freq_factor = m.rope_low_freq_factor, .high_freq_factor = m.rope_high_freq_factor,
                    .beta_fast = m.rope_beta_fast, .beta_slow = m.rope_beta_slow,
                    .attention_factor = m.rope_attention_factor, .divisors = {}};
    if (m.rope_scaling == "none") rope.scaling = RopeScaling::none;
    else if (m.rope_scaling == "linear") rope.scaling = RopeScaling::linear;
    else if (m.rope_scaling == "llama3") rope.scaling = RopeScaling::llama3;
    else if (m.rope_scaling == "yarn") rope.scaling = RopeScaling::yarn;
    else if (m.rope_scaling == "longrope") {
        rope.scaling = RopeScaling::longrope;
        rope.divisors = static_cast<double>(positions) > m.rope_original_max_position ? m.rope_long_factors : m.rope_short_factors;
    } else fail_usage("--model.rope_scaling is \"" + m.rope_scaling + "\"; it can be none, linear, llama3, yarn or longrope");
    return rope;
}

void make_rope_table(const Backend& backend, const RopeConfig& rope, View<float> table) {
    if (!backend.gpu) return rope_table(rope, table);
    std::vector<float> made(static_cast<std::size_t>(table.size()));
    rope_table(rope, View<float>(made.data(), {table.dim(0), table.dim(1)}));
    backend.copy_in(table.data(), made.data(), table.bytes());
}

BlockGrads block_grads(const ParamTable& table, View<float> flat, int i, const ModelSection& m) {
    const auto at = [&](const char* name) { return table.view(flat, "layers." + std::to_string(i) + "." + name); };
    BlockGrads g{.attn_norm = at("attn_norm"), .qkv = at("qkv"), .out = at("out"), .ffn_norm = at("ffn_norm"),
                 .gate_up = at("gate_up"), .down = at("down"), .qkv_bias = {}, .q_norm = {}, .k_norm = {}};
    if (m.qkv_bias) g.qkv_bias = at("qkv_bias");
    if (m.qk_norm) g.q_norm = at("q_norm"), g.k_norm = at("k_norm");
    return g;
}

}  // namespace keel
