#include "engine/open_model.h"

#include <cstdio>
#include <cstring>

#include "ckpt/checkpoint.h"
#include "ckpt/foreign_model.h"
#include "ckpt/model_folder.h"
#include "engine/added_rows.h"
#include "engine/state.h"
#include "kernels/base/file.h"

namespace keel {
namespace fs = std::filesystem;
namespace {

ModelSource open_checkpoint_source(const CheckpointInfo& info) {
    SavedState state = parse_state(info.state, (info.path / "state.json").string());
    state.config.parallel = {};  // how it was trained is nothing to whoever reads it now
    ModelSource source{.kind = ModelSource::Kind::checkpoint, .path = info.path, .config = std::move(state.config),
                       .tokenizer = {}, .tokenizer_hash = state.tokenizer_hash, .tokenizer_json = {}, .config_json = {},
                       .description = "checkpoint " + info.path.string()};
    source.config_json = read_checkpoint_file(info.path, "config.json").value_or("");
    if (auto text = read_checkpoint_file(info.path, "tokenizer.json")) {
        source.tokenizer_json = std::move(*text);
        source.tokenizer = Tokenizer::load(info.path);  // with the special tokens named beside it
    } else if (Tokenizer::found_in(info.path)) {  // a tokenizer.model, which no tokenizer.json can say
        source.tokenizer = Tokenizer::load(info.path);
    }
    return source;
}

ModelSource open_folder_source(const fs::path& path) {
    ModelSource source{.kind = ModelSource::Kind::folder, .path = path, .config = {}, .tokenizer = {},
                       .tokenizer_hash = 0, .tokenizer_json = {}, .config_json = read_file(path / "config.json"), .description = "model folder " + path.string()};
    source.config.model = model_section(read_model_shape(path));
    if (Tokenizer::found_in(path)) {
        source.tokenizer = Tokenizer::load(path);
        source.tokenizer_hash = source.tokenizer->hash();
        source.tokenizer_json = source.tokenizer->to_json();
    }
    return source;
}

// The two structs name their common fields alike (ckpt/model_config.h): one list serves both directions.
template <class From, class To> void copy_shape(const From& from, To& to) {
    to.vocab = from.vocab, to.hidden = from.hidden, to.layers = from.layers, to.heads = from.heads;
    to.kv_heads = from.kv_heads, to.head_dim = from.head_dim, to.ffn = from.ffn, to.norm_eps = from.norm_eps;
    to.rope_base = from.rope_base, to.rope_scaling = from.rope_scaling, to.rope_factor = from.rope_factor;
    to.rope_original_max_position = from.rope_original_max_position;
    to.rope_low_freq_factor = from.rope_low_freq_factor, to.rope_high_freq_factor = from.rope_high_freq_factor;
    to.rope_beta_fast = from.rope_beta_fast, to.rope_beta_slow = from.rope_beta_slow;
    to.rope_attention_factor = from.rope_attention_factor, to.rope_fraction = from.rope_fraction;
    to.rope_short_factors = from.rope_short_factors, to.rope_long_factors = from.rope_long_factors;
    to.tied = from.tied, to.qkv_bias = from.qkv_bias, to.qk_norm = from.qk_norm, to.window = from.window;
    to.qk_norm_whole = from.qk_norm_whole, to.post_norm = from.post_norm, to.init_std = from.init_std;
}

void tell_rounding(const ModelSource& source, const Model& model) {
    if (source.kind == ModelSource::Kind::folder && model.dtype() == Dtype::bf16 && read_model_shape(source.path).dtype == "f16")
        std::fprintf(stderr, "keel: warning: %s\n", rounded_from_f16(source.path).c_str());
}

}  // namespace

ModelSource open_model(const fs::path& path) {
    if (const std::string foreign = foreign_model(path); !foreign.empty()) fail(foreign);
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
    tell_rounding(source, model);
    const std::vector<NamedTensor> params = param_tensors(model);
    if (source.kind == ModelSource::Kind::checkpoint) load_checkpoint(source.path, params);
    else load_weights(source.path, read_model_shape(source.path), params);
}

void load_params(const ModelSource& source, Model& model, Group& world) {
    model.fetch_state();  // of which parameters are then overwritten
    std::vector<TensorPiece> pieces;
    for (TensorPiece& piece : state_pieces(model, Pieces::to_load))
        if (model.params().has(piece.name)) pieces.push_back(std::move(piece));
    if (world.rank() == 0) tell_rounding(source, model);
    const std::vector<TensorPiece> added = take_added_rows(pieces, source.config.model.vocab);
    if (source.kind == ModelSource::Kind::checkpoint) load_checkpoint(world, source.path, pieces);
    else FolderWeights(source.path, read_model_shape(source.path)).read(pieces);
    fill_added_rows(source, added);
    model.share_params();
}

std::string rounded_from_f16(const fs::path& folder) {
    return folder.string() + " is in float16; in bf16 3 of the 11 bits of each weight are rounded away; f16 and f32 keep them all";
}

ModelSection model_section(const ModelShape& s) {
    ModelSection m;
    copy_shape(s, m);
    m.dtype = s.dtype.empty() ? "bf16" : s.dtype;
    return m;
}

ModelShape model_shape(const ModelSection& m) {
    ModelShape s;
    copy_shape(m, s);
    s.dtype = m.dtype;
    choose_family(s);
    return s;
}

}  // namespace keel
