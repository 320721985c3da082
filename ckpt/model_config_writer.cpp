// The writing half of ckpt/model_config.h, and the checks both halves share.
#include <algorithm>
#include <array>
#include <cmath>

#include "ckpt/model_config.h"
#include "ckpt/model_family.h"
#include "ckpt/strict_json.h"
#include "kernels/base/error.h"

namespace keel {
namespace {

Json scaling_json(const ModelShape& s) {
    if (s.rope_scaling == "none") return nullptr;
    if (s.rope_scaling == "longrope") {  // nothing else: readers of Phi-3 count the fields
        Json object = {
            {"type", "longrope"}, {"short_factor", s.rope_short_factors}, {"long_factor", s.rope_long_factors}};
        if (s.rope_attention_factor != 0) object["attention_factor"] = s.rope_attention_factor;
        if (s.rope_factor != static_cast<double>(s.max_position) / s.rope_original_max_position)
            object["factor"] = s.rope_factor;
        return object;
    }
    // Both spellings of the type: readers before the newer one know only "type".
    Json object = {{"rope_type", s.rope_scaling}, {"type", s.rope_scaling}, {"factor", s.rope_factor}};
    const auto original = static_cast<std::int64_t>(s.rope_original_max_position);
    if (s.rope_scaling == "llama3") {
        object.update({{"original_max_position_embeddings", original},
                       {"low_freq_factor", s.rope_low_freq_factor},
                       {"high_freq_factor", s.rope_high_freq_factor}});
    } else if (s.rope_scaling == "yarn") {
        object.update({{"original_max_position_embeddings", original},
                       {"beta_fast", s.rope_beta_fast},
                       {"beta_slow", s.rope_beta_slow}});
        if (s.rope_attention_factor != 0) object["attention_factor"] = s.rope_attention_factor;
    }
    return object;
}

}  // namespace

std::string model_config_text(const ModelShape& s) {
    check_model_shape(s, "model folder");
    const FamilyTraits& family = traits(s.family);
    Json config = parse_strict_json(s.other_keys, "kept keys of config.json");
    config["architectures"] = {family.class_name};
    config["model_type"] = family.model_type;
    if (!s.dtype.empty())
        config["torch_dtype"] = s.dtype == "f32" ? "float32" : s.dtype == "bf16" ? "bfloat16" : "float16";
    config["vocab_size"] = s.vocab;
    config["hidden_size"] = s.hidden;
    config["num_hidden_layers"] = s.layers;
    config["num_attention_heads"] = s.heads;
    config["num_key_value_heads"] = s.kv_heads;
    config["head_dim"] = s.head_dim;
    config["intermediate_size"] = s.ffn;
    config["hidden_act"] = "silu";
    config["rms_norm_eps"] = s.norm_eps;
    config["rope_theta"] = s.rope_base;
    config["rope_scaling"] = scaling_json(s);
    if (s.rope_scaling == "longrope")
        config["original_max_position_embeddings"] = static_cast<std::int64_t>(s.rope_original_max_position);
    if (family.fused) config["partial_rotary_factor"] = s.rope_fraction;
    config["tie_word_embeddings"] = s.tied;
    config["initializer_range"] = s.init_std;
    config["max_position_embeddings"] = s.max_position;
    if (family.has_window) config["sliding_window"] = s.window > 0 ? Json(s.window) : Json(nullptr);
    if (family.window_by_flag) {
        config["use_sliding_window"] = s.window > 0;
        config["max_window_layers"] = s.window > 0 ? 0 : s.layers;  // the first windowed layer
    }
    if (s.family != Family::mistral && s.family != Family::qwen2) config["attention_bias"] = false;
    if (s.family == Family::llama) config["mlp_bias"] = false;
    config["bos_token_id"] = s.bos_id ? Json(*s.bos_id) : Json(nullptr);
    config["eos_token_id"] = s.eos_ids.empty()       ? Json(nullptr)
                             : s.eos_ids.size() == 1 ? Json(s.eos_ids[0])
                                                     : Json(s.eos_ids);
    if (s.pad_id) config["pad_token_id"] = *s.pad_id;
    // Where the key is absent, readers of Phi-3 take 32000, and do not open a model with fewer rows.
    else if (s.family == Family::phi3 && s.vocab <= 32000) config["pad_token_id"] = nullptr;
    return config.dump(2) + "\n";
}

void check_model_shape(const ModelShape& s, const std::string& what) {
    // The limits keep the parameter count inside 63 bits, and the list of tensors inside memory.
    struct Size {
        const char* name;
        std::int64_t value, limit;
    };
    for (const Size& size : std::array<Size, 7>{{{"vocab_size", s.vocab, 1 << 28},
                                                 {"hidden_size", s.hidden, 1 << 20},
                                                 {"num_hidden_layers", s.layers, 1 << 14},
                                                 {"num_attention_heads", s.heads, 1 << 12},
                                                 {"num_key_value_heads", s.kv_heads, 1 << 12},
                                                 {"head_dim", s.head_dim, 1 << 10},
                                                 {"intermediate_size", s.ffn, 1 << 22}}})
        if (size.value < 1 || size.value > size.limit)
            fail(what, ": ", size.name, " is ", size.value, "; it must be in 1…", size.limit);
    if (s.heads % s.kv_heads != 0)
        fail(what, ": ", s.heads, " query heads (num_attention_heads) do not divide among ", s.kv_heads,
             " key/value heads (num_key_value_heads)");
    if (s.head_dim % 2 != 0) fail(what, ": head_dim is ", s.head_dim, "; rotary positions need an even number");
    if (!std::isfinite(s.norm_eps) || s.norm_eps <= 0)
        fail(what, ": rms_norm_eps is ", s.norm_eps, "; it must be positive");
    if (!std::isfinite(s.init_std) || s.init_std < 0)
        fail(what, ": initializer_range is ", s.init_std, "; it cannot be negative");
    if (s.max_position < 0) fail(what, ": max_position_embeddings is ", s.max_position, "; it cannot be negative");
    if (s.window < 0) fail(what, ": sliding_window is ", s.window, "; it cannot be negative");

    constexpr std::array scalings{"none", "linear", "llama3", "yarn", "longrope"};
    if (std::ranges::count(scalings, s.rope_scaling) == 0)
        fail(what, ": rope_scaling is \"", s.rope_scaling, "\"; it must be none, linear, llama3, yarn or longrope");
    if (!(s.rope_fraction > 0 && s.rope_fraction <= 1))
        fail(what, ": partial_rotary_factor is ", s.rope_fraction, "; it must be more than 0 and at most 1");
    const auto rotated = static_cast<std::int64_t>(static_cast<double>(s.head_dim) * s.rope_fraction);
    if (rotated < 2 || rotated % 2 != 0)
        fail(what, ": partial_rotary_factor is ", s.rope_fraction, ", so ", rotated, " of the ", s.head_dim,
             " elements of a head are rotated; it must be an even number, at least 2");
    if (s.rope_scaling == "longrope")
        for (const auto* factors : {&s.rope_short_factors, &s.rope_long_factors})
            if (static_cast<std::int64_t>(factors->size()) != rotated / 2)
                fail(what, ": longrope has a list of ", factors->size(), " factors; ", rotated,
                     " rotated elements of a head need ", rotated / 2);
    if (s.rope_original_max_position < 0 || s.rope_original_max_position > 1e12)
        fail(what, ": original_max_position_embeddings is ", s.rope_original_max_position, "; it must be in 0…1e12");

    const auto check_id = [&](const char* key, std::int64_t id) {
        if (id < 0 || id >= s.vocab) fail(what, ": ", key, " is ", id, ", outside the vocabulary of ", s.vocab);
    };
    if (s.bos_id) check_id("bos_token_id", *s.bos_id);
    if (s.pad_id && *s.pad_id >= 0) check_id("pad_token_id", *s.pad_id);  // some files write -1 for none
    for (const std::int64_t id : s.eos_ids) check_id("eos_token_id", id);

    const FamilyTraits& family = traits(s.family);
    if (s.qkv_bias != family.qkv_bias || s.qk_norm != family.qk_norm || (s.window > 0 && !family.has_window))
        fail(what, ": a ", family.model_type, " model ", family.qkv_bias ? "has" : "has no", " biases on q, k, v, ",
             family.qk_norm ? "has" : "has no", " norm of q and k, and ", family.has_window ? "may have a" : "has no",
             " window; this model has qkv_bias ", s.qkv_bias, ", qk_norm ", s.qk_norm, ", window ", s.window);
    if (s.post_norm != family.post_norm || s.qk_norm_whole != family.post_norm)
        fail(what, ": a ", family.model_type, " model has ", family.post_norm ? "" : "no ",
             "norms behind attention and feed-forward, and of all of q and k; this model has post_norm ", s.post_norm,
             ", qk_norm_whole ", s.qk_norm_whole);
    if (family.fused && s.rope_scaling != "none" && s.rope_scaling != "longrope")
        fail(what, ": files of ", family.model_type, " know no rope_scaling ", s.rope_scaling, "; it must be none or longrope");
    if (!family.fused && (s.rope_fraction != 1 || s.rope_scaling == "longrope"))
        fail(what, ": a ", family.model_type,
             " model rotates whole heads, without longrope; this model has rope_fraction ", s.rope_fraction,
             ", rope_scaling ", s.rope_scaling);
}

void choose_family(ModelShape& s) {
    const auto refuse = [](const char* mixture) {
        fail("no supported family has ", mixture,
             "; such a model can be kept as a checkpoint, but not written as a model folder");
    };
    if (s.qkv_bias && s.qk_norm) refuse("both biases on q, k, v (Qwen2) and a norm of q and k (Qwen3, OLMo-2)");
    const bool phi = s.rope_fraction != 1 || s.rope_scaling == "longrope", olmo = s.post_norm || s.qk_norm_whole;
    if (olmo && !(s.post_norm && s.qk_norm_whole))
        refuse("one of post_norm and qk_norm_whole (OLMo-2) without the other");
    if (olmo && s.window > 0) refuse("norms behind its branches (OLMo-2) and a window");
    if (phi && (olmo || s.qkv_bias || s.qk_norm))
        refuse("a partial rotation or longrope (Phi-3) and biases or norms of q and k");
    s.family = olmo           ? Family::olmo2
               : phi          ? Family::phi3
               : s.qk_norm    ? Family::qwen3
               : s.qkv_bias   ? Family::qwen2
               : s.window > 0 ? Family::mistral
                              : Family::llama;
}

}  // namespace keel
