#include "ckpt/model_family.h"

#include <array>

#include "kernels/base/error.h"

namespace keel {
namespace {

constexpr std::array<FamilyTraits, 4> families{{
    {Family::llama, "llama", "LlamaForCausalLM", {}, {}, 2048, false, false, false, false},
    {Family::mistral, "mistral", "MistralForCausalLM", 8, {}, 131072, false, false, true, false},
    {Family::qwen2, "qwen2", "Qwen2ForCausalLM", 32, {}, 32768, true, false, true, true},
    {Family::qwen3, "qwen3", "Qwen3ForCausalLM", 32, 128, 32768, false, true, true, true},
}};

// Families that people will try, with the reason in a phrase.
struct Unsupported {
    std::string_view prefix, why;
};
constexpr std::array<Unsupported, 11> unsupported{{
    {"gemma", "Gemma scales its embeddings, adds norms after each branch and multiplies by 1 + weight"},
    {"mixtral", "Mixtral is a mixture of experts"},
    {"qwen2_moe", "this Qwen is a mixture of experts"},
    {"qwen3_moe", "this Qwen is a mixture of experts"},
    {"qwen3_next", "this Qwen has linear attention layers"},
    {"deepseek", "DeepSeek has latent attention and experts"},
    {"phi", "Phi fuses its projections and rotates part of a head"},
    {"olmo", "OLMo normalises after each branch"},
    {"smollm3", "SmolLM3 leaves out the rotation in some layers"},
    {"gpt", "GPT models have learned positions or other blocks"},
    {"llama4", "Llama 4 is a mixture of experts"},
}};

constexpr std::string_view no_bias = "keel has biases on q, k and v of Qwen2 only";
constexpr std::string_view no_cap = "keel does not cap logits";
constexpr std::string_view no_quant = "keel trains unquantised weights; dequantise the model first";
constexpr std::string_view no_experts = "keel does not train mixtures of experts yet";
constexpr std::string_view no_dropout = "keel trains without dropout; set it to 0";
constexpr std::string_view no_scale = "keel does not scale this part of the model";
constexpr std::string_view no_rope = "keel rotates whole heads, in every layer, half-split";
constexpr std::array<NeutralKey, 38> neutral{{
    {"attention_bias", 0, no_bias},
    {"mlp_bias", 0, no_bias},
    {"use_bias", 0, no_bias},
    {"lm_head_bias", 0, no_bias},
    {"attn_logit_softcapping", 0, no_cap},
    {"final_logit_softcapping", 0, no_cap},
    {"query_pre_attn_scalar", 0, no_scale},
    {"embedding_multiplier", 1, no_scale},
    {"residual_multiplier", 1, no_scale},
    {"attention_multiplier", 0, no_scale},
    {"logits_scaling", 1, no_scale},
    {"logit_scale", 1, no_scale},
    {"scale_emb", 1, no_scale},
    {"scale_depth", 0, no_scale},
    {"clip_qkv", 0, "keel does not clip q, k and v"},
    {"quantization_config", 0, no_quant},
    {"compression_config", 0, no_quant},
    {"num_experts", 0, no_experts},
    {"num_local_experts", 0, no_experts},
    {"n_routed_experts", 0, no_experts},
    {"mlp_only_layers", 0, no_experts},
    {"attention_dropout", 0, no_dropout},
    {"hidden_dropout", 0, no_dropout},
    {"resid_pdrop", 0, no_dropout},
    {"embd_pdrop", 0, no_dropout},
    {"attn_pdrop", 0, no_dropout},
    {"dropout", 0, no_dropout},
    {"partial_rotary_factor", 1, no_rope},
    {"rotary_pct", 1, no_rope},
    {"rope_interleaved", 0, no_rope},
    {"rope_local_base_freq", 0, no_rope},
    {"no_rope_layers", 0, no_rope},
    {"no_rope_layer_interval", 0, no_rope},
    {"sliding_window_pattern", 0, "keel's layers all use the window, or none"},
    {"attention_chunk_size", 0, "keel does not chunk attention"},
    {"use_qk_norm", 0, "keel normalises q and k of Qwen3 only"},
    {"add_cross_attention", 0, "keel trains decoders"},
    {"is_encoder_decoder", 0, "keel trains decoders"},
}};

}  // namespace

std::string_view name(Family family) { return traits(family).model_type; }
const FamilyTraits& traits(Family family) { return families[static_cast<std::size_t>(family)]; }

const FamilyTraits* find_family(std::string_view model_type) {
    for (const FamilyTraits& f : families)
        if (f.model_type == model_type) return &f;
    return nullptr;
}

std::string supported_families() {
    return "llama (Llama 2, 3, 3.1, 3.2, TinyLlama, SmolLM2), mistral, qwen2 (Qwen 2, 2.5), qwen3";
}

std::string why_unsupported(std::string_view model_type) {
    const Unsupported* best = nullptr;  // the longest prefix knows best: qwen2_moe is not qwen2
    for (const Unsupported& u : unsupported)
        if (model_type.starts_with(u.prefix) && (!best || u.prefix.size() > best->prefix.size())) best = &u;
    return concat("keel trains ", supported_families(), best ? "; " : "", best ? best->why : "");
}

std::span<const NeutralKey> neutral_keys() { return neutral; }

}  // namespace keel
