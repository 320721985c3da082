#include "ckpt/model_family.h"

#include <array>

#include "kernels/base/error.h"

namespace keel {
namespace {

constexpr FamilyTraits family_of(Family family, std::string_view model_type, std::string_view class_name) {
    return {.family = family, .model_type = model_type, .class_name = class_name};
}
constexpr std::array families = [] {
    FamilyTraits llama = family_of(Family::llama, "llama", "LlamaForCausalLM");
    FamilyTraits mistral = family_of(Family::mistral, "mistral", "MistralForCausalLM");
    mistral.kv_heads = 8, mistral.max_position = 131072, mistral.has_window = true;
    FamilyTraits qwen2 = family_of(Family::qwen2, "qwen2", "Qwen2ForCausalLM");
    qwen2.kv_heads = 32, qwen2.max_position = 32768, qwen2.has_window = qwen2.window_by_flag = true;
    FamilyTraits qwen3 = qwen2;
    qwen3.family = Family::qwen3, qwen3.model_type = "qwen3", qwen3.class_name = "Qwen3ForCausalLM";
    qwen2.qkv_bias = true;
    qwen3.head_dim = 128, qwen3.qk_norm = true;
    FamilyTraits olmo2 = family_of(Family::olmo2, "olmo2", "Olmo2ForCausalLM");
    olmo2.norm_eps = 1e-5, olmo2.qk_norm = olmo2.post_norm = true;
    FamilyTraits phi3 = family_of(Family::phi3, "phi3", "Phi3ForCausalLM");
    phi3.norm_eps = 1e-5, phi3.max_position = 4096, phi3.has_window = phi3.fused = true;
    return std::array{llama, mistral, qwen2, qwen3, olmo2, phi3};  // in the order of Family
}();

// Families that people will try, with the reason in a phrase.
struct Unsupported {
    std::string_view prefix, why;
};
constexpr std::array<Unsupported, 17> unsupported{{
    {"gemma", "Gemma scales its embeddings, adds norms after each branch and multiplies by 1 + weight"},
    {"mixtral", "Mixtral is a mixture of experts"},
    {"qwen2_moe", "this Qwen is a mixture of experts"},
    {"qwen3_moe", "this Qwen is a mixture of experts"},
    {"qwen3_next", "this Qwen has linear attention layers"},
    {"deepseek", "DeepSeek has latent attention and experts"},
    {"phi", "Phi 1 and 2 have layer norms with biases and run attention and feed-forward side by side"},
    {"phi3small", "Phi-3 small has block-sparse attention and other activations"},
    {"phimoe", "this Phi is a mixture of experts"},
    {"phi3_v", "multimodal models are more than a decoder"},
    {"phi4", "multimodal models are more than a decoder"},
    {"olmo", "OLMo 1 has layer norms without weights"},
    {"olmo3", "OLMo 3 mixes layers with and without a window"},
    {"olmoe", "OLMoE is a mixture of experts"},
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
constexpr std::string_view no_rope = "keel rotates heads in every layer, half-split, and part of them in Phi-3 only";
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
    {"use_qk_norm", 0, "keel normalises q and k of Qwen3 and OLMo-2 only"},
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
    return "llama (Llama 2, 3, 3.1, 3.2, TinyLlama, SmolLM2), mistral, qwen2 (Qwen 2, 2.5), qwen3, olmo2, phi3";
}

std::string why_unsupported(std::string_view model_type) {
    const Unsupported* best = nullptr;  // the longest prefix knows best: qwen2_moe is not qwen2
    for (const Unsupported& u : unsupported)
        if (model_type.starts_with(u.prefix) && (!best || u.prefix.size() > best->prefix.size())) best = &u;
    return concat("keel trains ", supported_families(), best ? "; " : "", best ? best->why : "");
}

std::span<const NeutralKey> neutral_keys() { return neutral; }

}  // namespace keel
