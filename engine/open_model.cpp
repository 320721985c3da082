#include "engine/open_model.h"

#include <cstdio>

#include "ckpt/checkpoint.h"
#include "ckpt/model_folder.h"
#include "engine/state.h"
#include "kernels/base/file.h"

namespace keel {
namespace fs = std::filesystem;
namespace {

ModelSource open_checkpoint_source(const CheckpointInfo& info) {
    SavedState state = parse_state(info.state, (info.path / "state.json").string());
    ModelSource source{.kind = ModelSource::Kind::checkpoint, .path = info.path, .config = std::move(state.config),
                       .tokenizer = {}, .tokenizer_hash = state.tokenizer_hash, .tokenizer_json = {}, .config_json = {},
                       .description = "checkpoint " + info.path.string()};
    source.config_json = read_checkpoint_file(info.path, "config.json").value_or("");
    if (auto text = read_checkpoint_file(info.path, "tokenizer.json")) {
        source.tokenizer_json = std::move(*text);
        source.tokenizer = Tokenizer::load(info.path);  // with the special tokens named beside it
    }
    return source;
}

ModelSource open_folder_source(const fs::path& path) {
    ModelSource source{.kind = ModelSource::Kind::folder, .path = path, .config = {}, .tokenizer = {},
                       .tokenizer_hash = 0, .tokenizer_json = {}, .config_json = read_file(path / "config.json"), .description = "model folder " + path.string()};
    source.config.model = model_section(read_model_shape(path));
    if (fs::exists(path / "tokenizer.json")) {
        source.tokenizer = Tokenizer::load(path);
        source.tokenizer_hash = source.tokenizer->hash();
        source.tokenizer_json = source.tokenizer->to_json();
    }
    return source;
}

}  // namespace

ModelSource open_model(const fs::path& path) {
    if (std::error_code none; fs::exists(path, none) && !fs::is_directory(path, none)) {
        const fs::path parent = path.has_parent_path() ? path.parent_path() : fs::path(".");
        const bool inside = is_checkpoint(parent) || fs::exists(parent / "config.json", none);
        fail(path.string(), " is a file; ", inside ? "did you mean its folder, " + parent.string() + "?"
                                                   : "give the folder of a run, a checkpoint or a model");
    }
    if (is_checkpoint(path)) return open_checkpoint_source(open_checkpoint(path));
    if (fs::exists(path / "config.json")) return open_folder_source(path);
    const auto warn = [](const std::string& text) { std::fprintf(stderr, "keel: warning: %s\n", text.c_str()); };
    for (const fs::path& root : {path / "checkpoints", path})
        if (auto newest = find_newest_checkpoint(root, warn)) return open_checkpoint_source(*newest);
    if (!fs::exists(path)) fail(path.string() + ": no such file or folder; give a run, a checkpoint or a model folder");
    fail(path.string() + ": neither a run with a good checkpoint, nor a checkpoint (manifest.json), nor a model folder (config.json)");
}

void load_params(const ModelSource& source, Model& model) {
    const std::vector<NamedTensor> params = state_tensors(model, false);
    if (source.kind == ModelSource::Kind::checkpoint) load_checkpoint(source.path, params);
    else load_weights(source.path, model_shape(source.config.model), params);
}

ModelSection model_section(const ModelShape& s) {
    ModelSection m;
    m.dtype = s.dtype == "f32" ? "f32" : "bf16";
    m.vocab = s.vocab, m.hidden = s.hidden, m.layers = s.layers, m.heads = s.heads, m.kv_heads = s.kv_heads;
    m.head_dim = s.head_dim, m.ffn = s.ffn, m.norm_eps = s.norm_eps, m.rope_base = s.rope_base;
    m.rope_scaling = s.rope_scaling, m.rope_factor = s.rope_factor;
    m.rope_original_max_position = s.rope_original_max_position;
    m.rope_low_freq_factor = s.rope_low_freq_factor, m.rope_high_freq_factor = s.rope_high_freq_factor;
    m.rope_beta_fast = s.rope_beta_fast, m.rope_beta_slow = s.rope_beta_slow;
    m.rope_attention_factor = s.rope_attention_factor;
    m.tied = s.tied, m.qkv_bias = s.qkv_bias, m.qk_norm = s.qk_norm, m.window = s.window, m.init_std = s.init_std;
    return m;
}

ModelShape model_shape(const ModelSection& m) {
    ModelShape s;
    s.dtype = m.dtype;
    s.vocab = m.vocab, s.hidden = m.hidden, s.layers = m.layers, s.heads = m.heads, s.kv_heads = m.kv_heads;
    s.head_dim = m.head_dim, s.ffn = m.ffn, s.norm_eps = m.norm_eps, s.rope_base = m.rope_base;
    s.rope_scaling = m.rope_scaling, s.rope_factor = m.rope_factor;
    s.rope_original_max_position = m.rope_original_max_position;
    s.rope_low_freq_factor = m.rope_low_freq_factor, s.rope_high_freq_factor = m.rope_high_freq_factor;
    s.rope_beta_fast = m.rope_beta_fast, s.rope_beta_slow = m.rope_beta_slow;
    s.rope_attention_factor = m.rope_attention_factor;
    s.tied = m.tied, s.qkv_bias = m.qkv_bias, s.qk_norm = m.qk_norm, s.window = m.window, s.init_std = m.init_std;
    choose_family(s);
    return s;
}

}  // namespace keel
