#include "ckpt/foreign/megatron_args.h"

#include <array>
#include <cmath>
#include <optional>

#include "kernels/base/error.h"

namespace keel {
namespace {

using Kind = PickleValue::Kind;

class Args {
public:
    explicit Args(const TorchFile& file) : where_(file.where()), args_(file.root().find("args")) {
        if (!args_ || !args_->is(Kind::object) || !args_->state || !args_->state->is(Kind::dict))
            fail(where_, " holds no \"args\", from which the model's shape would be known; save it with a Megatron-LM that writes them");
    }
    // nullptr where it is absent or None.
    const PickleValue* find(const char* name) const {
        const PickleValue* value = args_->find(name);
        return value && !value->is(Kind::none) ? value : nullptr;
    }
    template <class... Parts> [[noreturn]] void refuse(const char* name, const Parts&... parts) const {
        const PickleValue* value = args_->find(name);
        fail(where_, ": args.", name, " is ", value ? value->description() : "absent", "; ", parts...);
    }
    std::int64_t whole(const char* name, std::optional<std::int64_t> otherwise = {}) const {
        const PickleValue* value = find(name);
        if (!value && otherwise) return *otherwise;
        if (!value || !value->is(Kind::integer) || value->integer <= 0 || value->integer > (std::int64_t{1} << 40)) refuse(name, "a positive whole number is required");
        return value->integer;
    }
    double real(const char* name, double otherwise) const {
        const PickleValue* value = find(name);
        if (!value) return otherwise;
        if (value->is(Kind::integer)) return static_cast<double>(value->integer);
        if (!value->is(Kind::real) || !std::isfinite(value->real)) refuse(name, "a number is required");
        return value->real;
    }
    bool flag(const char* name, bool otherwise) const {
        const PickleValue* value = find(name);
        if (!value) return otherwise;
        if (!value->is(Kind::boolean)) refuse(name, "True or False is required");
        return value->integer != 0;
    }
    std::string text(const char* name, const char* otherwise) const {
        const PickleValue* value = find(name);
        return value && value->is(Kind::text) ? value->text : otherwise;
    }

private:
    std::string where_;
    const PickleValue* args_;
};

// What would make it another model than Llama, Qwen or Mistral. An argument that is absent was unknown to that version.
void refuse_other_mathematics(const Args& a) {
    if (a.text("normalization", "LayerNorm") != "RMSNorm") a.refuse("normalization", "keel's models have RMSNorm");
    if (!a.flag("swiglu", false)) a.refuse("swiglu", "keel's feed-forward layers are SwiGLU");
    if (a.flag("add_bias_linear", true)) a.refuse("add_bias_linear", "keel's linear layers have no biases but Qwen2's of q, k and v");
    const bool rope = a.text("position_embedding_type", "") == "rope" || (!a.find("position_embedding_type") && a.flag("use_rotary_position_embeddings", false));
    if (!rope) a.refuse("position_embedding_type", "keel's models have rotary positions (rope)");
    if (a.real("rotary_percent", 1) != 1) a.refuse("rotary_percent", "keel reads models that rotate whole heads");
    constexpr std::array<std::pair<const char*, const char*>, 6> off{{{"num_experts", "keel has no mixture of experts"},
                                           {"window_size", "a window is not read from Megatron's checkpoints"},
                                           {"multi_latent_attention", "keel has no latent attention"},
                                           {"apply_layernorm_1p", "norms that add 1 to their gain are not read"},
                                           {"apply_residual_connection_post_layernorm", "keel adds what was not normalised"},
                                           {"heterogeneous_layers_config_path", "keel's layers are all alike"}}};
    for (const auto& [name, why] : off) {
        const PickleValue* value = a.find(name);
        if (value && !(value->is(Kind::boolean) && value->integer == 0)) a.refuse(name, why);
    }
}

// Without padding. Its number of tokens is an argument only if it was given to the run.
std::int64_t real_vocab(const Args& a, std::int64_t padded, const std::string& where, const ForeignOptions& options) {
    std::int64_t vocab = options.vocab;
    if (vocab == 0 && a.find("vocab_size")) {
        vocab = a.whole("vocab_size");
        if (a.text("tokenizer_type", "") == "NullTokenizer") ++vocab;  // an end of document behind the ids
    }
    if (vocab > padded) fail(where, ": a vocabulary of ", vocab, " is larger than its embedding, which has ", padded, " rows");
    if (vocab == 0 && options.warn)
        options.warn(concat(where, " does not say how many of the ", padded, " rows of its embedding are tokens and how many padding; all are kept (--vocab says it)"));
    return vocab == 0 ? padded : vocab;
}

}  // namespace

MegatronArgs read_megatron_args(const TorchFile& file, StoredDtype dtype, std::int64_t padded_vocab, std::int64_t tp, const ForeignOptions& options) {
    const Args a(file);
    if (const PickleValue* version = file.root().find("checkpoint_version"))
        if (const double v = version->is(Kind::real) ? version->real : static_cast<double>(version->integer); v < 3)
            fail(file.where(), ": checkpoint_version ", v, " orders q, k and v in another way; keel reads 3");
    refuse_other_mathematics(a);
    MegatronArgs out;
    if (const PickleValue* iteration = file.root().find("iteration")) out.iteration = iteration->integer;
    ModelShape& s = out.shape;
    s.layers = a.whole("num_layers"), s.hidden = a.whole("hidden_size"), s.heads = a.whole("num_attention_heads");
    s.kv_heads = a.flag("group_query_attention", false) ? a.whole("num_query_groups") : s.heads;
    s.head_dim = a.whole("kv_channels", s.hidden / s.heads);
    s.ffn = a.whole("ffn_hidden_size", 4 * s.hidden);
    s.norm_eps = a.real("norm_epsilon", a.real("layernorm_epsilon", 1e-5));
    s.init_std = a.real("init_method_std", 0.02);
    s.tied = !a.flag("untie_embeddings_and_output_weights", false);
    s.qkv_bias = a.flag("add_qkv_bias", false), s.qk_norm = a.flag("qk_layernorm", false);
    s.max_position = a.whole("max_position_embeddings", a.whole("seq_length", 2048));
    s.rope_base = a.real("rotary_base", 10000);
    out.interleaved = a.flag("rotary_interleaved", false);
    if (a.flag("use_rope_scaling", false)) {
        s.rope_scaling = "llama3", s.rope_factor = a.real("rope_scaling_factor", 8);
        s.rope_original_max_position = 8192, s.rope_low_freq_factor = 1, s.rope_high_freq_factor = 4;
    }
    if (const double factor = a.real("rotary_seq_len_interpolation_factor", 1); factor != 1) {
        if (s.rope_scaling != "none") a.refuse("rotary_seq_len_interpolation_factor", "together with use_rope_scaling it is not read");
        s.rope_scaling = "linear", s.rope_factor = factor;
    }
    s.vocab = real_vocab(a, padded_vocab, file.where(), options);
    s.dtype = dtype == StoredDtype::BF16 ? "bf16" : dtype == StoredDtype::F16 ? "f16" : "f32";
    if (s.kv_heads % tp != 0 || s.heads % s.kv_heads != 0 || s.ffn % tp != 0)
        fail(file.where(), ": ", s.heads, " heads in ", s.kv_heads, " groups and a feed-forward size of ", s.ffn, " do not divide among ", tp, " ranks");
    choose_family(s);
    check_model_shape(s, file.where());
    return out;
}

}  // namespace keel
