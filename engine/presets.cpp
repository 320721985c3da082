#include "engine/presets.h"

#include "engine/config_names.h"
#include "kernels/base/error.h"

namespace keel {

const std::vector<Preset>& presets() {
    constexpr std::string_view none = "none", llama3 = "llama3";
    // clang-format off
    static const std::vector<Preset> table = {
        // name, about                                           V       H     L   A   K   D    I      eps   base    scaling      tied   bias   qknorm window parameters
        {"tiny",           "minutes on two cores",             4096,    256,  5,  4,  4,  64,   704, 1e-5, 10000,  none, 1,    true,  false, false, 0,     5'065'472},
        {"small",          "an afternoon on a workstation",    8192,    512,  8,  8,  8,  64,  1376, 1e-5, 10000,  none, 1,    false, false, false, 0,    33'694'208},
        {"base",           "the size of GPT-2",               32000,    768, 12, 12, 12,  64,  2048, 1e-5, 10000,  none, 1,    false, false, false, 0,   134'105'856},
        {"llama-2-7b",     "Llama 2",                         32000,   4096, 32, 32, 32, 128, 11008, 1e-5, 10000,  none, 1,    false, false, false, 0, 6'738'415'616},
        {"llama-3-8b",     "Llama 3",                        128256,   4096, 32, 32,  8, 128, 14336, 1e-5, 5e5,    none, 1,    false, false, false, 0, 8'030'261'248},
        {"llama-3.1-8b",   "Llama 3.1",                      128256,   4096, 32, 32,  8, 128, 14336, 1e-5, 5e5,    llama3, 8,  false, false, false, 0, 8'030'261'248},
        {"llama-3.2-1b",   "Llama 3.2",                      128256,   2048, 16, 32,  8,  64,  8192, 1e-5, 5e5,    llama3, 32, true,  false, false, 0, 1'235'814'400},
        {"llama-3.2-3b",   "Llama 3.2",                      128256,   3072, 28, 24,  8, 128,  8192, 1e-5, 5e5,    llama3, 32, true,  false, false, 0, 3'212'749'824},
        {"mistral-7b-v0.1","Mistral, sliding window",         32000,   4096, 32, 32,  8, 128, 14336, 1e-5, 10000,  none, 1,    false, false, false, 4096, 7'241'732'096},
        {"mistral-7b-v0.3","Mistral",                         32768,   4096, 32, 32,  8, 128, 14336, 1e-5, 1e6,    none, 1,    false, false, false, 0, 7'248'023'552},
        {"tinyllama-1.1b", "TinyLlama",                       32000,   2048, 22, 32,  4,  64,  5632, 1e-5, 10000,  none, 1,    false, false, false, 0, 1'100'048'384},
        {"smollm2-135m",   "SmolLM2",                         49152,    576, 30,  9,  3,  64,  1536, 1e-5, 1e5,    none, 1,    true,  false, false, 0,   134'515'008},
        {"smollm2-360m",   "SmolLM2",                         49152,    960, 32, 15,  5,  64,  2560, 1e-5, 1e5,    none, 1,    true,  false, false, 0,   361'821'120},
        {"smollm2-1.7b",   "SmolLM2",                         49152,   2048, 24, 32, 32,  64,  8192, 1e-5, 1.3e5,  none, 1,    true,  false, false, 0, 1'711'376'384},
        {"qwen2.5-0.5b",   "Qwen2.5, biases on q, k and v",  151936,    896, 24, 14,  2,  64,  4864, 1e-6, 1e6,    none, 1,    true,  true,  false, 0,   494'032'768},
        {"qwen2.5-7b",     "Qwen2.5, biases on q, k and v",  152064,   3584, 28, 28,  4, 128, 18944, 1e-6, 1e6,    none, 1,    false, true,  false, 0, 7'615'616'512},
        {"qwen3-0.6b",     "Qwen3, q/k norm",                151936,   1024, 28, 16,  8, 128,  3072, 1e-6, 1e6,    none, 1,    true,  false, true,  0,   596'049'920},
        {"qwen3-8b",       "Qwen3, q/k norm",                151936,   4096, 36, 32,  8, 128, 12288, 1e-6, 1e6,    none, 1,    false, false, true,  0, 8'190'735'360},
        {"qwen3-32b",      "Qwen3, q/k norm",                151936,   5120, 64, 64,  8, 128, 25600, 1e-6, 1e6,    none, 1,    false, false, true,  0, 32'762'123'264},
    };
    // clang-format on
    return table;
}

void apply_preset(ModelSection& model, std::string_view name) {
    std::vector<std::string> names;
    for (const Preset& p : presets()) {
        names.emplace_back(p.name);
        if (p.name != name) continue;
        const ModelSection before = model;
        model = ModelSection();
        model.preset = name;
        model.dtype = before.dtype;
        model.init_std = before.init_std;
        model.vocab = p.vocab;
        model.hidden = p.hidden;
        model.layers = p.layers;
        model.heads = p.heads;
        model.kv_heads = p.kv_heads;
        model.head_dim = p.head_dim;
        model.ffn = p.ffn;
        model.norm_eps = p.norm_eps;
        model.rope_base = p.rope_base;
        model.rope_scaling = p.rope_scaling;
        model.rope_factor = p.rope_factor;
        if (p.rope_scaling == "llama3") model.rope_original_max_position = 8192;
        model.tied = p.tied;
        model.qkv_bias = p.qkv_bias;
        model.qk_norm = p.qk_norm;
        model.window = p.window;
        return;
    }
    const auto hint = nearest_name(name, names);
    fail_usage("--model.preset ", name, ": there is no such preset",
               hint ? "; did you mean " + *hint + "?" : "; `keel estimate --presets` lists them");
}

}  // namespace keel
