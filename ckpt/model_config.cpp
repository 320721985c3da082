// ckpt/model_config.h: reading. Writing is in model_config_writer.cpp.
#include "ckpt/model_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "ckpt/model_family.h"
#include "ckpt/strict_json.h"
#include "kernels/base/error.h"

namespace keel {
namespace {

// One config.json while it is read. Every key that is asked for is remembered; what is left over is kept for writing
// back.
class ConfigReader {
public:
    ConfigReader(const Json& tree, const std::string& file) : tree_(tree), file_(file) {}

    // nullptr where the key is absent. An explicit null is a value: "off".
    const Json* find(const std::string& key) {
        taken_.insert(key);
        const auto at = tree_.find(key);
        return at == tree_.end() ? nullptr : &*at;
    }

    template <class... Parts>
    [[noreturn]] void refuse(const std::string& key, const Parts&... parts) const {
        const auto at = tree_.find(key);
        std::string found = at == tree_.end() ? "absent" : at->dump();
        if (found.size() > 100) found = found.substr(0, 100) + "…";
        fail(file_, ": \"", key, "\" is ", found, "; ", parts...);
    }

    std::int64_t whole(const std::string& key, std::optional<std::int64_t> when_absent = std::nullopt) {
        const Json* value = find(key);
        if (!value) {
            if (!when_absent) refuse(key, "a whole number is required");
            return *when_absent;
        }
        if (!value->is_number_integer()) refuse(key, "it must be a whole number");
        constexpr double limit = 1ull << 53;  // sums and differences of sizes stay inside 63 bits
        if (std::fabs(value->get<double>()) > limit) refuse(key, "it is too large");
        return value->get<std::int64_t>();
    }
    double real(const std::string& key, double when_absent) {
        const Json* value = find(key);
        if (!value) return when_absent;
        if (!value->is_number()) refuse(key, "it must be a number");
        return value->get<double>();
    }
    bool flag(const std::string& key, bool when_absent) {
        const Json* value = find(key);
        if (!value) return when_absent;
        if (!value->is_boolean()) refuse(key, "it must be true or false");
        return value->get<bool>();
    }
    std::optional<std::int64_t> id(const std::string& key) {
        const Json* value = find(key);
        if (!value || value->is_null()) return std::nullopt;
        return whole(key);
    }

    std::string rest() const {
        Json other = Json::object();
        for (const auto& [key, value] : tree_.items())
            if (!taken_.contains(key)) other[key] = value;
        return other.dump();
    }
    const std::string& file() const { return file_; }
    const Json& tree() const { return tree_; }

private:
    const Json& tree_;
    const std::string& file_;
    std::set<std::string> taken_;
};

const FamilyTraits& pick_family(ConfigReader& config) {
    const Json* type = config.find("model_type");
    if (!type || !type->is_string()) config.refuse("model_type", "it must name the family: ", supported_families());
    const FamilyTraits* family = find_family(type->get<std::string>());
    if (!family) config.refuse("model_type", why_unsupported(type->get<std::string>()));
    const Json* classes = config.find("architectures");
    if (classes && !classes->is_null()) {
        if (!classes->is_array() || classes->empty() || !(*classes)[0].is_string())
            config.refuse("architectures", "it must be a list of class names");
        if ((*classes)[0] != family->class_name)
            config.refuse("architectures", "a ", family->model_type, " model that keel can train is a ",
                          family->class_name);
    }
    return *family;
}

// Keys that change the mathematics when they hold anything but these. Absent and null are always neutral.
void refuse_other_mathematics(const ConfigReader& config, const FamilyTraits& family) {
    for (const NeutralKey& rule : neutral_keys()) {
        const auto at = config.tree().find(std::string(rule.key));
        if (at == config.tree().end() || at->is_null()) continue;
        if (rule.key == "attention_bias" && family.family == Family::qwen2) continue;  // its biases are fixed
        if (rule.key == "partial_rotary_factor" && family.fused) continue;             // read_rope does
        const bool off = (at->is_boolean() && !at->get<bool>() && rule.neutral == 0) ||
                         (at->is_number() && at->get<double>() == rule.neutral) ||
                         (rule.neutral == 0 && (at->is_array() || at->is_object()) && at->empty());
        if (!off) config.refuse(std::string(rule.key), rule.why);
    }
    for (const char* key : {"hidden_act", "hidden_activation"}) {
        const auto at = config.tree().find(key);
        if (at != config.tree().end() && *at != "silu")
            config.refuse(key, "a ", family.model_type, " model here uses silu");
    }
}

std::string read_dtype(ConfigReader& config) {
    std::string found;
    for (const char* key : {"torch_dtype", "dtype"}) {
        const Json* value = config.find(key);
        if (!value || value->is_null()) continue;
        if (!value->is_string()) config.refuse(key, "it must be float32, bfloat16 or float16");
        auto text = value->get<std::string>();
        if (text.starts_with("torch.")) text = text.substr(6);
        const char* dtype = text == "float32"    ? "f32"
                            : text == "bfloat16" ? "bf16"
                            : text == "float16"  ? "f16"
                                                 : nullptr;
        if (!dtype) config.refuse(key, "it must be float32, bfloat16 or float16");
        if (!found.empty() && found != dtype) config.refuse(key, "\"torch_dtype\" says otherwise; correct one of them");
        found = dtype;
    }
    return found;
}

// A rope_scaling or rope_parameters object. Unknown fields are refused: each may change every angle.
struct Scaling {
    std::string type = "none";
    double factor = 1, original_max_position = 0, low = 1, high = 4, beta_fast = 32, beta_slow = 1, attention = 0;
    std::vector<double> short_factors{}, long_factors{};
    bool operator==(const Scaling&) const = default;
};

Scaling read_scaling(ConfigReader& config, const FamilyTraits& family, const std::string& key, const Json& object,
                     std::int64_t max_position) {
    if (!object.is_object()) config.refuse(key, "it must be an object or null");
    const auto text = [&](const char* field) -> std::optional<std::string> {
        const auto at = object.find(field);
        if (at == object.end()) return std::nullopt;
        if (!at->is_string()) config.refuse(key, "\"", field, "\" must be a string");
        return at->get<std::string>();
    };
    const auto rope_type = text("rope_type"), type = text("type");
    if (rope_type && type && *rope_type != *type) config.refuse(key, "\"type\" and \"rope_type\" disagree");
    std::string kind = rope_type.value_or(type.value_or(""));
    if (kind == "su" && family.fused) kind = "longrope";  // as the first files spelled it
    if (kind.empty()) config.refuse(key, "it must name its \"rope_type\"");

    std::set<std::string> allowed{"rope_type", "type", "rope_theta", "partial_rotary_factor", "finetuned"};
    const auto number = [&](const char* field, std::optional<double> when_absent) {
        allowed.insert(field);
        const auto at = object.find(field);
        const bool absent = at == object.end() || at->is_null();
        if (absent && !when_absent) config.refuse(key, "\"", field, "\" is required for ", kind);
        if (absent) return *when_absent;
        if (!at->is_number() || !std::isfinite(at->get<double>()) || at->get<double>() <= 0)
            config.refuse(key, "\"", field, "\" must be a positive number");
        return at->get<double>();
    };
    Scaling s;
    if (kind == "linear") {
        s = {.type = kind, .factor = number("factor", {})};
    } else if (kind == "llama3") {
        s = {.type = kind,
             .factor = number("factor", {}),
             .original_max_position = number("original_max_position_embeddings", {}),
             .low = number("low_freq_factor", {}),
             .high = number("high_freq_factor", {})};
        if (s.high <= s.low) config.refuse(key, "\"high_freq_factor\" must exceed \"low_freq_factor\"");
    } else if (kind == "yarn") {
        s = {.type = kind,
             .factor = number("factor", {}),
             .original_max_position = number("original_max_position_embeddings", static_cast<double>(max_position)),
             .beta_fast = number("beta_fast", 32),
             .beta_slow = number("beta_slow", 1),
             .attention = number("attention_factor", 0)};
        if (s.beta_fast <= s.beta_slow) config.refuse(key, "\"beta_fast\" must exceed \"beta_slow\"");
    } else if (kind == "longrope" && family.fused) {
        const auto factors = [&](const char* field) {
            allowed.insert(field);
            const auto at = object.find(field);
            std::vector<double> out;
            if (at != object.end() && at->is_array())
                for (const Json& x : *at) out.push_back(x.is_number() ? x.get<double>() : 0);
            if (out.empty() || !std::ranges::all_of(out, [](double x) { return x > 0 && std::isfinite(x); }))
                config.refuse(key, "\"", field, "\" must be a list of positive numbers for longrope");
            return out;
        };
        // Files of this family keep the original length beside the object, and factor is the ratio of the two lengths.
        double original = number("original_max_position_embeddings", 0);
        if (const Json* beside = config.find("original_max_position_embeddings");
            beside && original == 0 && beside->is_number())
            original = beside->get<double>();
        if (!(original > 1))
            config.refuse(key, "longrope needs \"original_max_position_embeddings\", here or beside it");
        const double ratio = static_cast<double>(max_position) / original;
        s = {.type = kind,
             .factor = number("factor", ratio),
             .original_max_position = original,
             .attention = number("attention_factor", 0),
             .short_factors = factors("short_factor"),
             .long_factors = factors("long_factor")};
        if (s.factor != ratio && s.attention == 0)
            config.refuse(key,
                          "its \"factor\" is not max_position_embeddings / original_max_position_embeddings = ", ratio,
                          ", and readers disagree which of them scales cos and sin; give \"attention_factor\"");
    } else if (kind != "default") {
        config.refuse(key, "keel trains with rope_type default, linear, llama3 and yarn, and longrope of Phi-3, not ",
                      kind);
    }
    if (const auto at = object.find("partial_rotary_factor"); at != object.end() && *at != 1 && !family.fused)
        config.refuse(key, "\"partial_rotary_factor\" must be 1: keel rotates part of a head in Phi-3 only");
    for (const auto& [field, value] : object.items())
        if (!allowed.contains(field))
            config.refuse(key, "\"", field, "\" is unknown for ", kind, " and may change the angles");
    return s;
}

void read_rope(ConfigReader& config, const FamilyTraits& family, ModelShape& shape) {
    const Json* older = config.find("rope_theta");
    const Json* parameters = config.find("rope_parameters");
    if (parameters && parameters->is_null()) parameters = nullptr;
    shape.rope_base = config.real("rope_theta", 10000);
    const Json* older_fraction = family.fused ? config.find("partial_rotary_factor") : nullptr;
    if (older_fraction && !older_fraction->is_null()) shape.rope_fraction = config.real("partial_rotary_factor", 1);
    if (parameters) {
        if (!parameters->is_object()) config.refuse("rope_parameters", "it must be an object");
        const auto newer = parameters->find("rope_theta");
        if (newer == parameters->end() && !older)
            config.refuse("rope_parameters", "it has no \"rope_theta\", and no default is safe to assume");
        if (newer != parameters->end()) {
            if (!newer->is_number()) config.refuse("rope_parameters", "\"rope_theta\" must be a number");
            if (older && newer->get<double>() != shape.rope_base)
                config.refuse("rope_theta", "but rope_parameters.rope_theta is ", newer->dump(),
                              "; correct one of them");
            shape.rope_base = newer->get<double>();
        }
        if (const auto fraction = parameters->find("partial_rotary_factor");
            fraction != parameters->end() && family.fused) {
            if (!fraction->is_number()) config.refuse("rope_parameters", "\"partial_rotary_factor\" must be a number");
            if (older_fraction && fraction->get<double>() != shape.rope_fraction)
                config.refuse("partial_rotary_factor", "but rope_parameters.partial_rotary_factor is ",
                              fraction->dump(), "; correct one of them");
            shape.rope_fraction = fraction->get<double>();
        }
    }
    if (!std::isfinite(shape.rope_base) || shape.rope_base <= 1)
        fail(config.file(), ": rope_theta must exceed 1, found ", shape.rope_base);

    std::optional<Scaling> scaling;
    if (const Json* object = config.find("rope_scaling"); object && !object->is_null())
        scaling = read_scaling(config, family, "rope_scaling", *object, shape.max_position);
    if (parameters) {
        const Scaling newer = read_scaling(config, family, "rope_parameters", *parameters, shape.max_position);
        if (scaling && *scaling != newer)
            config.refuse("rope_scaling", "but rope_parameters says otherwise; correct one of them");
        scaling = newer;
    }
    const Scaling s = scaling.value_or(Scaling{});
    shape.rope_scaling = s.type;
    shape.rope_factor = s.factor;
    shape.rope_original_max_position = s.original_max_position;
    shape.rope_low_freq_factor = s.low;
    shape.rope_high_freq_factor = s.high;
    shape.rope_beta_fast = s.beta_fast;
    shape.rope_beta_slow = s.beta_slow;
    shape.rope_attention_factor = s.attention;
    shape.rope_short_factors = s.short_factors;
    shape.rope_long_factors = s.long_factors;
}

// All layers share one window here; a file that mixes windowed and full layers is refused.
void read_window(ConfigReader& config, const FamilyTraits& family, ModelShape& shape) {
    const Json* value = config.find("sliding_window");
    std::int64_t window = family.family == Family::mistral ? 4096 : 0;
    if (value) window = value->is_null() ? 0 : config.whole("sliding_window");
    if (window < 0 || (value && !value->is_null() && window == 0))
        config.refuse("sliding_window", "it must be a positive number of keys, or null for full attention");

    std::int64_t windowed = shape.layers;  // how many layers the window covers, counted from the last
    if (family.window_by_flag) {
        const bool on = config.flag("use_sliding_window", false);
        const std::int64_t first = config.whole("max_window_layers", 28);
        windowed = on ? std::clamp<std::int64_t>(shape.layers - first, 0, shape.layers) : 0;
        if (on && !value) window = 4096;  // this family's default
    }
    if (const Json* types = config.find("layer_types"); types && !types->is_null()) {
        if (!types->is_array() || static_cast<std::int64_t>(types->size()) != shape.layers)
            config.refuse("layer_types", "it must be a list with one entry for each of the ", shape.layers, " layers");
        windowed = 0;
        for (const Json& type : *types) {
            if (type == "sliding_attention")
                ++windowed;
            else if (type != "full_attention")
                config.refuse("layer_types", "keel knows full_attention and sliding_attention, not ", type.dump());
        }
        if (windowed > 0 && window == 0) config.refuse("layer_types", "but no sliding_window is given");
    }
    if (window > 0 && windowed != 0 && windowed != shape.layers)
        fail(config.file(), ": ", windowed, " of ", shape.layers, " layers use a sliding window of ", window,
             "; keel trains models whose layers all use it, or none");
    shape.window = windowed == 0 ? 0 : window;
    if (shape.window > 0 && !family.has_window)
        config.refuse("sliding_window", "a ", family.model_type,
                      " model has none; a windowed model of this shape is mistral");
}

void read_ids(ConfigReader& config, ModelShape& shape) {
    shape.bos_id = config.id("bos_token_id");
    shape.pad_id = config.id("pad_token_id");
    const Json* eos = config.find("eos_token_id");
    if (!eos || eos->is_null()) return;
    if (!eos->is_array()) {
        shape.eos_ids = {config.whole("eos_token_id")};
        return;
    }
    for (const Json& id : *eos) {
        if (!id.is_number_integer()) config.refuse("eos_token_id", "it must be a whole number or a list of them");
        shape.eos_ids.push_back(id.get<std::int64_t>());
    }
}

}  // namespace

ModelShape parse_model_config(std::string_view text, const std::string& file) {
    const Json tree = parse_strict_json(text, file);
    ConfigReader config(tree, file);
    const FamilyTraits& family = pick_family(config);
    refuse_other_mathematics(config, family);

    ModelShape shape;
    shape.family = family.family;
    shape.dtype = read_dtype(config);
    shape.vocab = config.whole("vocab_size");
    shape.hidden = config.whole("hidden_size");
    shape.layers = config.whole("num_hidden_layers");
    shape.heads = config.whole("num_attention_heads");
    shape.ffn = config.whole("intermediate_size");
    const Json* kv_heads = config.find("num_key_value_heads");
    shape.kv_heads = !kv_heads             ? family.kv_heads.value_or(shape.heads)
                     : kv_heads->is_null() ? shape.heads
                                           : config.whole("num_key_value_heads");
    const Json* head_dim = config.find("head_dim");
    if (head_dim && !head_dim->is_null()) {
        shape.head_dim = config.whole("head_dim");
    } else if (!head_dim && family.head_dim) {
        shape.head_dim = *family.head_dim;
    } else {
        if (shape.heads <= 0 || shape.hidden % shape.heads != 0)
            config.refuse("head_dim", "and hidden_size ", shape.hidden, " is not a multiple of num_attention_heads ",
                          shape.heads);
        shape.head_dim = shape.hidden / shape.heads;
    }
    shape.norm_eps = config.real("rms_norm_eps", family.norm_eps);
    shape.tied = config.flag("tie_word_embeddings", false);
    shape.qkv_bias = family.qkv_bias;
    shape.qk_norm = family.qk_norm;
    shape.qk_norm_whole = shape.post_norm = family.post_norm;
    shape.init_std = config.real("initializer_range", 0.02);
    shape.max_position = config.whole("max_position_embeddings", family.max_position);
    read_rope(config, family, shape);
    read_window(config, family, shape);
    read_ids(config, shape);
    shape.other_keys = config.rest();
    check_model_shape(shape, file);
    return shape;
}

}  // namespace keel
