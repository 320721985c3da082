// config.json: defaults per family, both generations, refusals, and what is kept.
#include "ckpt/model_config.h"

#include <nlohmann/json.hpp>

#include "ckpt/model_folder.h"
#include "tests/ckpt/support.h"

namespace keel::test {
namespace {

using Json = nlohmann::json;

Json tiny(const std::string& type, const std::string& class_name) {
    return {{"model_type", type},       {"architectures", {class_name}}, {"vocab_size", 64},
            {"hidden_size", 32},        {"num_hidden_layers", 2},        {"num_attention_heads", 4},
            {"num_key_value_heads", 2}, {"intermediate_size", 48},       {"hidden_act", "silu"},
            {"rms_norm_eps", 1e-5},     {"rope_theta", 10000.0},         {"max_position_embeddings", 512},
            {"torch_dtype", "float32"}};
}
Json llama() { return tiny("llama", "LlamaForCausalLM"); }
Json mistral() { return tiny("mistral", "MistralForCausalLM"); }
Json qwen2() { return tiny("qwen2", "Qwen2ForCausalLM"); }
Json qwen3() { return tiny("qwen3", "Qwen3ForCausalLM"); }

Json olmo2() { return tiny("olmo2", "Olmo2ForCausalLM"); }
Json phi3() { return tiny("phi3", "Phi3ForCausalLM"); }

Json with(Json config, const Json& changes) {
    config.update(changes);
    return config;
}
Json without(Json config, std::initializer_list<const char*> keys) {
    for (const char* key : keys) config.erase(key);
    return config;
}
ModelShape parse(const Json& config) { return parse_model_config(config.dump(), "config.json"); }
void expect_refused(const Json& config, std::initializer_list<std::string> says) {
    SCOPED_TRACE(config.dump());
    expect_error([&] { parse(config); }, {"config.json"});
    expect_error([&] { parse(config); }, says);
}

TEST(ModelConfig, AbsentKeysTakeTheDefaultsOfTheirFamily) {
    const auto bare = [](Json config) {
        return parse(without(std::move(config), {"num_key_value_heads", "rms_norm_eps", "rope_theta", "head_dim",
                                                 "torch_dtype", "max_position_embeddings", "architectures"}));
    };
    const ModelShape l = bare(llama());
    EXPECT_EQ(l.kv_heads, 4);
    EXPECT_EQ(l.head_dim, 8);
    EXPECT_EQ(l.norm_eps, 1e-6);
    EXPECT_EQ(l.rope_base, 10000);
    EXPECT_EQ(l.window, 0);
    EXPECT_EQ(l.max_position, 2048);
    EXPECT_EQ(l.init_std, 0.02);
    EXPECT_FALSE(l.tied || l.qkv_bias || l.qk_norm);
    EXPECT_EQ(l.dtype, "");
    const ModelShape m = bare(with(mistral(), {{"num_attention_heads", 16}}));
    EXPECT_EQ(m.kv_heads, 8);
    EXPECT_EQ(m.window, 4096);
    const ModelShape q2 = bare(with(qwen2(), {{"num_attention_heads", 32}, {"hidden_size", 64}}));
    EXPECT_EQ(q2.kv_heads, 32);
    EXPECT_EQ(q2.head_dim, 2);
    EXPECT_EQ(q2.window, 0);
    EXPECT_TRUE(q2.qkv_bias);
    const ModelShape q3 = bare(with(qwen3(), {{"num_attention_heads", 64}}));
    EXPECT_EQ(q3.kv_heads, 32);
    EXPECT_EQ(q3.head_dim, 128);
    EXPECT_TRUE(q3.qk_norm);
    EXPECT_FALSE(q3.qkv_bias || q3.post_norm || q3.qk_norm_whole);
    const ModelShape o = bare(olmo2());
    EXPECT_EQ(o.kv_heads, 4);
    EXPECT_EQ(o.norm_eps, 1e-5);
    EXPECT_EQ(o.max_position, 2048);
    EXPECT_TRUE(o.post_norm && o.qk_norm && o.qk_norm_whole);
    const ModelShape p = bare(phi3());
    EXPECT_EQ(p.kv_heads, 4);
    EXPECT_EQ(p.norm_eps, 1e-5);
    EXPECT_EQ(p.max_position, 4096);
    EXPECT_EQ(p.window, 0);
    EXPECT_EQ(p.rope_fraction, 1);
}

// longrope under both of its names and in both generations of the file; what is written has the fields of old files
// alone.
TEST(ModelConfig, LongropeBelongsToPhi3) {
    const Json lists = {{"short_factor", {1.0, 1.1, 1.2, 1.3}}, {"long_factor", {1.0, 2.0, 3.0, 4.0}}};
    const Json older =
        with(phi3(), {{"original_max_position_embeddings", 128}, {"rope_scaling", with(lists, {{"type", "su"}})}});
    Json newer = without(phi3(), {"rope_theta"});
    newer["rope_parameters"] = with(lists, {{"rope_type", "longrope"},
                                            {"rope_theta", 10000.0},
                                            {"partial_rotary_factor", 1.0},
                                            {"factor", 4.0},
                                            {"original_max_position_embeddings", 128}});
    for (const Json& config : {older, newer}) {
        const ModelShape s = parse(config);
        EXPECT_EQ(s.rope_scaling, "longrope");
        EXPECT_EQ(s.rope_factor, 4);  // 512 / 128
        EXPECT_EQ(s.rope_original_max_position, 128);
        EXPECT_EQ(s.rope_long_factors, (std::vector<double>{1, 2, 3, 4}));
        EXPECT_EQ(s.rope_attention_factor, 0);
        const Json written = Json::parse(model_config_text(s));
        EXPECT_EQ(written["rope_scaling"], with(lists, {{"type", "longrope"}}));
        EXPECT_EQ(written["original_max_position_embeddings"], 128);
        EXPECT_EQ(model_config_text(parse(written)), model_config_text(s));
    }
    const auto scaled = [&](const Json& changes) {
        return with(older, {{"rope_scaling", with(with(lists, {{"type", "longrope"}}), changes)}});
    };
    EXPECT_EQ(parse(scaled({{"attention_factor", 1.5}, {"factor", 3.0}})).rope_attention_factor, 1.5);
    expect_refused(scaled({{"factor", 3.0}}), {"readers disagree", "\"attention_factor\""});
    expect_refused(scaled({{"long_factor", {1.0, 2.0}}}), {"a list of 2 factors", "need 4"});
    expect_refused(scaled({{"long_factor", {1.0, 2.0, 0, 4.0}}}),
                   {"\"long_factor\" must be a list of positive numbers"});
    expect_refused(scaled({{"short_factor", nullptr}}), {"\"short_factor\" must be a list of positive numbers"});
    expect_refused(without(older, {"original_max_position_embeddings"}),
                   {"longrope needs \"original_max_position_embeddings\""});
    expect_refused(with(llama(), {{"rope_scaling", with(lists, {{"type", "longrope"}})}}),
                   {"longrope of Phi-3, not longrope"});
}

TEST(ModelConfig, PartOfAHeadIsRotatedInPhi3Alone) {
    EXPECT_EQ(parse(with(phi3(), {{"partial_rotary_factor", 0.5}})).rope_fraction, 0.5);
    // Its readers take "yarn" for longrope, and refuse the others.
    expect_refused(with(phi3(), {{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}}), {"know no rope_scaling linear"});
    EXPECT_EQ(
        Json::parse(model_config_text(parse(with(phi3(), {{"partial_rotary_factor", 0.5}}))))["partial_rotary_factor"],
        0.5);
    const Json newer = {
        {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e4}, {"partial_rotary_factor", 0.75}}}};
    EXPECT_EQ(parse(with(phi3(), newer)).rope_fraction, 0.75);
    expect_refused(with(with(phi3(), newer), {{"partial_rotary_factor", 0.5}}),
                   {"rope_parameters.partial_rotary_factor is 0.75"});
    expect_refused(with(phi3(), {{"partial_rotary_factor", 0.4}}), {"so 3 of the 8 elements", "even"});
    expect_refused(with(phi3(), {{"partial_rotary_factor", 0}}), {"partial_rotary_factor is 0; it must be more than 0"});
    expect_refused(with(phi3(), {{"partial_rotary_factor", 1.5}}), {"partial_rotary_factor is 1.5"});
    expect_refused(with(olmo2(), {{"partial_rotary_factor", 0.5}}), {"\"partial_rotary_factor\""});
}

TEST(ModelConfig, NullIsOffAndNotAbsent) {
    EXPECT_EQ(parse(with(mistral(), {{"sliding_window", nullptr}})).window, 0);
    EXPECT_EQ(parse(with(qwen3(), {{"head_dim", nullptr}})).head_dim, 8);
    EXPECT_EQ(parse(with(mistral(), {{"num_key_value_heads", nullptr}})).kv_heads, 4);
    EXPECT_EQ(parse(with(llama(), {{"rope_scaling", nullptr}})).rope_scaling, "none");
    EXPECT_EQ(parse(with(llama(), {{"eos_token_id", nullptr}})).eos_ids.size(), 0u);
    EXPECT_FALSE(parse(with(llama(), {{"bos_token_id", nullptr}})).bos_id);
}

TEST(ModelConfig, HeadDimIsUsedWhenPresent) { EXPECT_EQ(parse(with(qwen3(), {{"head_dim", 16}})).head_dim, 16); }

TEST(ModelConfig, BothGenerationsGiveEqualShapes) {
    const Json scaling = {{"rope_type", "llama3"},
                          {"factor", 8.0},
                          {"low_freq_factor", 1.0},
                          {"high_freq_factor", 4.0},
                          {"original_max_position_embeddings", 8192}};
    const ModelShape older =
        parse(with(llama(), {{"rope_theta", 5e5}, {"rope_scaling", scaling}, {"torch_dtype", "bfloat16"}}));
    Json newer =
        with(without(llama(), {"rope_theta", "torch_dtype"}), {{"dtype", "bfloat16"}, {"rope_parameters", scaling}});
    newer["rope_parameters"]["rope_theta"] = 5e5;
    const ModelShape got = parse(newer);
    for (const ModelShape& s : {older, got}) {
        EXPECT_EQ(s.rope_base, 5e5);
        EXPECT_EQ(s.rope_scaling, "llama3");
        EXPECT_EQ(s.rope_factor, 8);
        EXPECT_EQ(s.rope_low_freq_factor, 1);
        EXPECT_EQ(s.rope_high_freq_factor, 4);
        EXPECT_EQ(s.rope_original_max_position, 8192);
        EXPECT_EQ(s.dtype, "bf16");
    }
    EXPECT_EQ(model_config_text(older), model_config_text(got));
    newer["rope_theta"] = 5e5;
    newer["torch_dtype"] = "torch.bfloat16";
    newer["rope_scaling"] = scaling;
    EXPECT_NO_THROW(parse(newer));
    expect_refused(with(newer, {{"rope_theta", 10000.0}}),
                   {"\"rope_theta\"", "rope_parameters.rope_theta is 500000.0"});
    expect_refused(with(newer, {{"torch_dtype", "float16"}}), {"\"dtype\"", "\"torch_dtype\" says otherwise"});
    expect_refused(with(newer, {{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}}),
                   {"rope_parameters says otherwise"});
    expect_refused(with(without(llama(), {"rope_theta"}), {{"rope_parameters", {{"rope_type", "default"}}}}),
                   {"no \"rope_theta\", and no default is safe"});
    expect_refused(with(llama(), {{"rope_parameters", {{"rope_theta", 1e4}}}}), {"must name its \"rope_type\""});
}

TEST(ModelConfig, ReadsEveryScalingKeelHasAndRefusesTheOthers) {
    const auto scaled = [](const Json& scaling) { return with(llama(), {{"rope_scaling", scaling}}); };
    EXPECT_EQ(parse(scaled({{"type", "default"}})).rope_scaling, "none");
    EXPECT_EQ(parse(scaled({{"type", "linear"}, {"factor", 4.0}})).rope_factor, 4);
    const ModelShape yarn = parse(scaled(
        {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}, {"attention_factor", 1.2}}));
    EXPECT_EQ(yarn.rope_scaling, "yarn");
    EXPECT_EQ(yarn.rope_original_max_position, 32768);
    EXPECT_EQ(yarn.rope_beta_fast, 32);
    EXPECT_EQ(yarn.rope_beta_slow, 1);
    EXPECT_EQ(yarn.rope_attention_factor, 1.2);
    EXPECT_EQ(parse(scaled({{"type", "yarn"}, {"factor", 4.0}})).rope_original_max_position, 512);
    for (const char* type : {"dynamic", "longrope", "su", "mrope"})
        expect_refused(scaled({{"type", type}, {"factor", 2.0}}), {"\"rope_scaling\"", concat("not ", type)});
    expect_refused(scaled({{"factor", 2.0}}), {"must name its \"rope_type\""});
    expect_refused(scaled({{"type", "linear"}}), {"\"factor\" is required for linear"});
    expect_refused(scaled({{"type", "linear"}, {"factor", 0}}), {"\"factor\" must be a positive number"});
    expect_refused(scaled({{"type", "linear"}, {"factor", 2}, {"rope_type", "yarn"}}), {"disagree"});
    expect_refused(scaled({{"type", "llama3"}, {"factor", 8.0}}),
                   {"\"original_max_position_embeddings\" is required for llama3"});
    expect_refused(scaled({{"type", "yarn"}, {"factor", 2}, {"mscale", 0.7}}), {"\"mscale\" is unknown for yarn"});
    expect_refused(scaled("linear"), {"must be an object or null"});
    expect_refused(scaled({{"type", "default"}, {"partial_rotary_factor", 0.5}}),
                   {"\"partial_rotary_factor\" must be 1"});
}

TEST(ModelConfig, WindowsFollowTheFamilyAndMixedLayersAreRefused) {
    EXPECT_EQ(parse(with(mistral(), {{"sliding_window", 7}})).window, 7);
    const Json off =
        with(qwen2(), {{"sliding_window", 131072}, {"use_sliding_window", false}, {"max_window_layers", 28}});
    EXPECT_EQ(parse(off).window, 0);
    const Json on = with(qwen2(), {{"sliding_window", 9}, {"use_sliding_window", true}});
    EXPECT_EQ(parse(with(on, {{"max_window_layers", 0}})).window, 9);
    EXPECT_EQ(parse(with(on, {{"max_window_layers", 2}})).window, 0);
    EXPECT_EQ(parse(on).window, 0);  // max_window_layers is 28 where absent
    expect_refused(with(on, {{"max_window_layers", 1}}), {"1 of 2 layers use a sliding window of 9"});
    EXPECT_EQ(parse(with(on, {{"layer_types", {"sliding_attention", "sliding_attention"}}})).window, 9);
    EXPECT_EQ(
        parse(with(mistral(), {{"sliding_window", 7}, {"layer_types", {"full_attention", "full_attention"}}})).window,
        0);
    expect_refused(with(on, {{"layer_types", {"full_attention", "sliding_attention"}}}), {"1 of 2 layers"});
    expect_refused(with(on, {{"layer_types", {"full_attention"}}}), {"one entry for each of the 2 layers"});
    expect_refused(with(on, {{"layer_types", {"full_attention", "linear_attention"}}}), {"not \"linear_attention\""});
    expect_refused(
        with(mistral(), {{"sliding_window", nullptr}, {"layer_types", {"sliding_attention", "sliding_attention"}}}),
        {"no sliding_window is given"});
    expect_refused(with(mistral(), {{"sliding_window", 0}}), {"must be a positive number of keys"});
    expect_refused(with(mistral(), {{"sliding_window", -4}}), {"must be a positive number of keys"});
    expect_refused(with(llama(), {{"sliding_window", 64}}), {"a llama model has none"});
}

TEST(ModelConfig, RefusesFamiliesItCannotTrainByName) {
    const std::pair<const char*, const char*> table[] = {{"gemma2", "Gemma"},
                                                         {"gemma3_text", "Gemma"},
                                                         {"mixtral", "mixture of experts"},
                                                         {"phi", "Phi 1 and 2"},
                                                         {"phi3small", "block-sparse"},
                                                         {"phi3_v", "multimodal"},
                                                         {"phimoe", "this Phi is a mixture of experts"},
                                                         {"olmo", "OLMo 1"},
                                                         {"olmo3", "OLMo 3 mixes"},
                                                         {"gemma", "Gemma"},
                                                         {"gemma3", "Gemma"},
                                                         {"qwen3_moe", "this Qwen is a mixture of experts"},
                                                         {"qwen2_moe", "this Qwen is"},
                                                         {"deepseek_v3", "DeepSeek"},
                                                         {"smollm3", "SmolLM3"},
                                                         {"my_model", "qwen3"}};
    for (const auto& [type, why] : table)
        expect_refused(with(llama(), {{"model_type", type}}), {type, why, "keel trains llama (Llama 2"});
    expect_refused(without(llama(), {"model_type"}), {"\"model_type\" is absent"});
    expect_refused(with(llama(), {{"model_type", 3}}), {"\"model_type\" is 3"});
    expect_refused(with(llama(), {{"architectures", {"MistralForCausalLM"}}}),
                   {"\"architectures\"", "LlamaForCausalLM"});
    expect_refused(with(llama(), {{"architectures", "LlamaForCausalLM"}}), {"a list of class names"});
    EXPECT_NO_THROW(parse(with(llama(), {{"auto_map", {{"AutoConfig", "x.y"}}}})));  // code is never run
}

TEST(ModelConfig, RefusesKeysThatChangeTheMathematics) {
    const Json changes[] = {{{"attention_bias", true}},
                            {{"mlp_bias", true}},
                            {{"attn_logit_softcapping", 50.0}},
                            {{"final_logit_softcapping", 30.0}},
                            {{"query_pre_attn_scalar", 256}},
                            {{"quantization_config", {{"bits", 4}}}},
                            {{"attention_dropout", 0.1}},
                            {{"partial_rotary_factor", 0.5}},
                            {{"num_local_experts", 8}},
                            {{"rope_interleaved", true}},
                            {{"clip_qkv", 8.0}},
                            {{"embedding_multiplier", 12.0}},
                            {{"sliding_window_pattern", 6}},
                            {{"no_rope_layers", {1, 0}}},
                            {{"hidden_act", "gelu"}},
                            {{"rope_local_base_freq", 1e4}}};
    for (const Json& change : changes) expect_refused(with(llama(), change), {"\"" + change.begin().key() + "\" is "});
    const Json neutral = {{"attention_bias", false},   {"mlp_bias", false},
                          {"attention_dropout", 0.0},  {"quantization_config", nullptr},
                          {"clip_qkv", nullptr},       {"partial_rotary_factor", 1.0},
                          {"rope_interleaved", false}, {"mlp_only_layers", Json::array()},
                          {"num_experts", 0}};
    EXPECT_NO_THROW(parse(with(llama(), neutral)));
    expect_refused(with(qwen3(), {{"attention_bias", true}}), {"\"attention_bias\""});
}

TEST(ModelConfig, RefusesImpossibleSizesAndWrongTypes) {
    for (const char* key :
         {"hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size", "num_attention_heads"}) {
        expect_refused(without(llama(), {key}), {concat("\"", key, "\" is absent")});
        expect_refused(with(llama(), {{key, 0}}), {key});
        expect_refused(with(llama(), {{key, -3}}), {key});
        expect_refused(with(llama(), {{key, "32"}}), {key, "a whole number"});
        expect_refused(with(llama(), {{key, 2.5}}), {key, "a whole number"});
        expect_refused(with(llama(), {{key, 1ull << 62}}), {key});
    }
    expect_refused(with(llama(), {{"num_key_value_heads", 3}}), {"4 query heads", "3 key/value heads"});
    expect_refused(with(llama(), {{"num_attention_heads", 5}, {"num_key_value_heads", 5}}),
                   {"not a multiple of num_attention_heads 5"});
    expect_refused(with(qwen2(), {{"use_sliding_window", true}, {"max_window_layers", INT64_MIN}}), {"too large"});
    expect_refused(with(llama(), {{"head_dim", 7}}), {"head_dim is 7", "even"});
    expect_refused(with(llama(), {{"rms_norm_eps", 0}}), {"rms_norm_eps is 0"});
    expect_refused(with(llama(), {{"rope_theta", 0.5}}), {"rope_theta must exceed 1"});
    expect_refused(with(llama(), {{"rope_theta", "1e4"}}), {"\"rope_theta\" is \"1e4\""});
    expect_refused(with(llama(), {{"tie_word_embeddings", 1}}), {"must be true or false"});
    expect_refused(with(llama(), {{"torch_dtype", "int8"}}), {"float32, bfloat16 or float16"});
    expect_refused(with(llama(), {{"eos_token_id", 64}}), {"eos_token_id is 64, outside the vocabulary of 64"});
    expect_refused(with(llama(), {{"eos_token_id", {1, 99}}}), {"99, outside the vocabulary"});
    expect_refused(with(llama(), {{"eos_token_id", {"x"}}}), {"a whole number or a list"});
    expect_refused(with(llama(), {{"bos_token_id", -1}}), {"bos_token_id is -1"});
    expect_refused(with(llama(), {{"pad_token_id", 64}}), {"pad_token_id is 64"});
}

TEST(ModelConfig, RefusesTextThatIsNotOneObject) {
    const auto refused = [](std::string_view text, const std::string& says) {
        expect_error([&] { parse_model_config(text, "config.json"); }, {"config.json", says});
    };
    refused("", "not valid JSON");
    refused("[]", "expected a JSON object, found array");
    refused("{\"a\":1,\"a\":2}", "key \"a\" is given twice");
    refused("{\"x\":{\"a\":1,\"a\":2}}", "key \"a\" is given twice");
    refused("{} x", "not valid JSON");
    refused(std::string_view("{}\0", 3), "is zero");
    refused("\xef\xbb\xbf{}", "byte order mark");
    refused("{\"a\":" + std::string(100, '[') + std::string(100, ']') + "}", "nested more than");
}

TEST(ModelConfig, KeepsUnknownKeysAndWritesTheOlderSpelling) {
    Json config = with(
        qwen3(),
        {{"head_dim", 16},
         {"eos_token_id", {3, 5}},
         {"bos_token_id", 2},
         {"use_cache", true},
         {"transformers_version", "4.51.0"},
         {"my_key", {{"deep", {1, 2.5, nullptr}}}},
         {"rope_parameters",
          {{"rope_type", "yarn"}, {"rope_theta", 1e6}, {"factor", 4.0}, {"original_max_position_embeddings", 128}}}});
    config.erase("rope_theta");
    const ModelShape shape = parse(config);
    const Json written = Json::parse(model_config_text(shape));
    EXPECT_EQ(written["my_key"], config["my_key"]);
    EXPECT_EQ(written["use_cache"], true);
    EXPECT_EQ(written["transformers_version"], "4.51.0");
    EXPECT_EQ(written["torch_dtype"], "float32");
    EXPECT_EQ(written["rope_theta"], 1e6);
    EXPECT_EQ(written["rope_scaling"]["type"], "yarn");
    EXPECT_EQ(written["rope_scaling"]["original_max_position_embeddings"], 128);
    EXPECT_EQ(written["eos_token_id"], Json({3, 5}));
    EXPECT_EQ(written["model_type"], "qwen3");
    EXPECT_FALSE(written.contains("rope_parameters"));
    EXPECT_FALSE(written.contains("dtype"));
    EXPECT_EQ(model_config_text(parse(written)), model_config_text(shape));
}

TEST(ModelConfig, WritesTheWindowBackAndNotOneLess) {
    const ModelShape m = parse(with(mistral(), {{"sliding_window", 4}}));
    EXPECT_EQ(Json::parse(model_config_text(m))["sliding_window"], 4);
    EXPECT_TRUE(Json::parse(model_config_text(parse(with(mistral(), {{"sliding_window", nullptr}}))))["sliding_window"]
                    .is_null());
    const ModelShape q =
        parse(with(qwen2(), {{"sliding_window", 9}, {"use_sliding_window", true}, {"max_window_layers", 0}}));
    EXPECT_EQ(parse(Json::parse(model_config_text(q))).window, 9);
}

// 32000 is the default of Phi-3's readers: where it is no row, the key must say that there is none.
TEST(ModelConfig, AnAbsentPadIdOfASmallPhi3IsWrittenAsNone) {
    const auto written = [](Json config) { return Json::parse(model_config_text(parse(config))); };
    EXPECT_TRUE(written(phi3()).at("pad_token_id").is_null());
    EXPECT_EQ(written(with(phi3(), {{"pad_token_id", 3}}))["pad_token_id"], 3);
    EXPECT_FALSE(written(with(phi3(), {{"vocab_size", 32064}})).contains("pad_token_id"));
    EXPECT_FALSE(written(llama()).contains("pad_token_id"));
}

TEST(ModelConfig, ChoosesAFamilyThatCanExpressTheModel) {
    ModelShape s = parse(llama());
    const auto chosen = [&](bool bias, bool norm, std::int64_t window) {
        s.qkv_bias = bias, s.qk_norm = norm, s.window = window;
        choose_family(s);
        return s.family;
    };
    EXPECT_EQ(chosen(false, false, 0), Family::llama);
    EXPECT_EQ(chosen(false, false, 16), Family::mistral);
    EXPECT_EQ(chosen(true, false, 16), Family::qwen2);
    EXPECT_EQ(chosen(false, true, 0), Family::qwen3);
    expect_error([&] { chosen(true, true, 0); }, {"no supported family", "checkpoint"});
    s.post_norm = s.qk_norm_whole = true;
    EXPECT_EQ(chosen(false, true, 0), Family::olmo2);
    expect_error([&] { chosen(false, true, 16); }, {"OLMo-2", "a window"});
    s.qk_norm_whole = false;
    expect_error([&] { chosen(false, true, 0); }, {"one of post_norm and qk_norm_whole"});
    s.post_norm = false, s.rope_fraction = 0.5;
    EXPECT_EQ(chosen(false, false, 16), Family::phi3);
    expect_error([&] { chosen(true, false, 0); }, {"Phi-3"});
    s = parse(llama());
    s.post_norm = true;
    expect_error([&] { model_config_text(s); }, {"a llama model has no norms behind", "post_norm 1"});
    s = parse(llama());
    s.rope_fraction = 0.5;
    expect_error([&] { model_config_text(s); }, {"rotates whole heads", "rope_fraction 0.5"});
    s = parse(llama());
    s.qk_norm = true;
    expect_error([&] { model_config_text(s); }, {"a llama model has no biases", "qk_norm 1"});
}

TEST(ModelConfig, ReleasedShapesHaveTheirExactParameterCounts) {
    struct Row {
        const char* name;
        Family family;
        std::int64_t vocab, hidden, layers, ffn, heads, kv_heads, head_dim;
        bool tied;
        std::int64_t parameters;
    };
    const Row table[] = {
        {"Llama-2-7B", Family::llama, 32000, 4096, 32, 11008, 32, 32, 128, false, 6738415616},
        {"Llama-3.1-8B", Family::llama, 128256, 4096, 32, 14336, 32, 8, 128, false, 8030261248},
        {"Llama-3.2-1B", Family::llama, 128256, 2048, 16, 8192, 32, 8, 64, true, 1235814400},
        {"Llama-3.2-3B", Family::llama, 128256, 3072, 28, 8192, 24, 8, 128, true, 3212749824},
        {"Mistral-7B-v0.1", Family::mistral, 32000, 4096, 32, 14336, 32, 8, 128, false, 7241732096},
        {"Mistral-7B-v0.3", Family::mistral, 32768, 4096, 32, 14336, 32, 8, 128, false, 7248023552},
        {"TinyLlama-1.1B", Family::llama, 32000, 2048, 22, 5632, 32, 4, 64, false, 1100048384},
        {"SmolLM2-135M", Family::llama, 49152, 576, 30, 1536, 9, 3, 64, true, 134515008},
        {"SmolLM2-360M", Family::llama, 49152, 960, 32, 2560, 15, 5, 64, true, 361821120},
        {"SmolLM2-1.7B", Family::llama, 49152, 2048, 24, 8192, 32, 32, 64, true, 1711376384},
        {"Qwen2.5-0.5B", Family::qwen2, 151936, 896, 24, 4864, 14, 2, 64, true, 494032768},
        {"Qwen2.5-7B", Family::qwen2, 152064, 3584, 28, 18944, 28, 4, 128, false, 7615616512},
        {"Qwen3-0.6B", Family::qwen3, 151936, 1024, 28, 3072, 16, 8, 128, true, 596049920},
        {"Qwen3-8B", Family::qwen3, 151936, 4096, 36, 12288, 32, 8, 128, false, 8190735360},
        {"Qwen3-32B", Family::qwen3, 151936, 5120, 64, 25600, 64, 8, 128, false, 32762123264},
        {"OLMo-2-7B", Family::olmo2, 100352, 4096, 32, 11008, 32, 32, 128, false, 7298617344},
        {"Phi-3-mini-4k", Family::phi3, 32064, 3072, 32, 8192, 32, 32, 96, false, 3821079552},
    };
    for (const Row& r : table) {
        ModelShape s;
        s.family = r.family;
        s.vocab = r.vocab, s.hidden = r.hidden, s.layers = r.layers, s.ffn = r.ffn;
        s.heads = r.heads, s.kv_heads = r.kv_heads, s.head_dim = r.head_dim, s.tied = r.tied;
        s.qkv_bias = r.family == Family::qwen2;
        s.qk_norm = r.family == Family::qwen3 || r.family == Family::olmo2;
        s.qk_norm_whole = s.post_norm = r.family == Family::olmo2;
        EXPECT_EQ(parameter_count(s), r.parameters) << r.name;
        std::int64_t fused = 0;
        for (const ParamSpec& p : param_specs(s)) fused += element_count(p.shape);
        EXPECT_EQ(fused, r.parameters) << r.name;
        EXPECT_EQ(parameter_count(parse_model_config(model_config_text(s), r.name)), r.parameters) << r.name;
    }
}

}  // namespace
}  // namespace keel::test
