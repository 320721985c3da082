// Presets: the shapes of released models have exactly their parameter counts.
#include "engine/presets.h"

#include <gtest/gtest.h>

#include <map>

#include "engine/config_check.h"
#include "engine/model_shape.h"
#include "kernels/base/error.h"

using namespace keel;

TEST(Presets, HaveTheParameterCountsOfTheReleasedModels) {
    const std::map<std::string, std::int64_t> released = {
        {"llama-2-7b", 6'738'415'616},     {"llama-3.1-8b", 8'030'261'248},    {"llama-3.2-1b", 1'235'814'400},
        {"llama-3.2-3b", 3'212'749'824},   {"mistral-7b-v0.1", 7'241'732'096}, {"mistral-7b-v0.3", 7'248'023'552},
        {"tinyllama-1.1b", 1'100'048'384}, {"smollm2-135m", 134'515'008},      {"smollm2-360m", 361'821'120},
        {"smollm2-1.7b", 1'711'376'384},   {"qwen2.5-0.5b", 494'032'768},      {"qwen2.5-7b", 7'615'616'512},
        {"qwen3-0.6b", 596'049'920},       {"qwen3-8b", 8'190'735'360},        {"qwen3-32b", 32'762'123'264}};
    for (const auto& [name, parameters] : released) {
        ModelSection model;
        apply_preset(model, name);
        resolve_model(model);
        EXPECT_EQ(parameter_count(model).total(), parameters) << name;
    }
}

TEST(Presets, StateTheCountThatFollowsFromTheirShape) {
    for (const Preset& preset : presets()) {
        ModelSection model;
        apply_preset(model, preset.name);
        resolve_model(model);
        EXPECT_EQ(parameter_count(model).total(), preset.parameters) << preset.name;
    }
}

TEST(Presets, CarryEverythingThatDecidesTheForwardPass) {
    ModelSection m;
    m.dtype = "f32";
    apply_preset(m, "llama-3.2-1b");
    EXPECT_EQ(m.dtype, "f32");  // how to compute is not part of a shape
    EXPECT_EQ(m.rope_scaling, "llama3");
    EXPECT_EQ(m.rope_factor, 32);
    EXPECT_EQ(m.rope_original_max_position, 8192);
    EXPECT_EQ(m.rope_base, 5e5);
    EXPECT_EQ(m.norm_eps, 1e-5);
    EXPECT_TRUE(m.tied);
    apply_preset(m, "qwen2.5-0.5b");  // nothing of the shape before it stays
    EXPECT_EQ(m.rope_scaling, "none");
    EXPECT_EQ(m.rope_factor, 1);
    EXPECT_TRUE(m.qkv_bias);
    EXPECT_EQ(m.norm_eps, 1e-6);
    apply_preset(m, "qwen3-0.6b");
    EXPECT_TRUE(m.qk_norm);
    EXPECT_EQ(m.head_dim, 128);  // not hidden / heads
    apply_preset(m, "mistral-7b-v0.1");
    EXPECT_EQ(m.window, 4096);
}

TEST(ParameterCount, CountsBiasesAndHeadNorms) {
    ModelSection m;
    m.vocab = 10, m.hidden = 8, m.layers = 3, m.heads = 4, m.kv_heads = 2, m.head_dim = 6, m.ffn = 5;
    // per layer: q 24x8, k and v 12x8 each, o 8x24, ffn 3*8*5, two norms of 8
    const std::int64_t layer = 24 * 8 + 2 * 12 * 8 + 8 * 24 + 3 * 8 * 5 + 2 * 8;
    EXPECT_EQ(parameter_count(m).total(), 3 * layer + 8 + 2 * 80);
    m.tied = true;
    EXPECT_EQ(parameter_count(m).total(), 3 * layer + 8 + 80);
    m.qkv_bias = true;
    EXPECT_EQ(parameter_count(m).total(), 3 * (layer + 24 + 12 + 12) + 8 + 80);
    m.qk_norm = true;
    EXPECT_EQ(parameter_count(m).total(), 3 * (layer + 24 + 12 + 12 + 6 + 6) + 8 + 80);
}
