// cli/convert.cpp: `keel convert`: a checkpoint, keel's or another system's, becomes a model folder, and a model folder a
// checkpoint.

#include <CLI/App.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ckpt/check.h"
#include "ckpt/checkpoint.h"
#include "ckpt/checkpoint_tensors.h"
#include "ckpt/foreign_model.h"
#include "ckpt/model_folder.h"
#include "cli/commands.h"
#include "engine/open_model.h"
#include "engine/state.h"
#include "kernels/base/file.h"

namespace keel {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t block_elements = std::int64_t{1} << 20;

struct ConvertOptions {
    std::string from, to, kind, dtype;
    double shard_limit_gb = 5, rope_factor = 0;
    std::int64_t vocab = 0;
    bool allow_unexpected = false;
};

void warn(const std::string& text) { std::fprintf(stderr, "keel: warning: %s\n", text.c_str()); }

Dtype chosen_dtype(const std::string& flag, const std::string& otherwise) {
    return dtype_named(flag.empty() ? otherwise : flag);
}

// f16 ends at 65504, and what other types hold beyond it would become infinity.
void check_range(const std::string& tensor, Dtype dtype, std::span<const std::byte> block) {
    if (dtype != Dtype::f16) return;
    const auto count = static_cast<std::int64_t>(block.size() / sizeof(f16));
    if (const std::int64_t bad = count_not_finite(StoredDtype::F16, block.data(), count); bad > 0)
        fail(tensor, ": ", bad, bad == 1 ? " weight is" : " weights are", " no finite number in f16, which ends at 65504; convert to bf16 or f32");
}

std::uint64_t tokenizer_hash(const fs::path& folder) {
    if (!Tokenizer::found_in(folder)) return 0;
    try {
        return Tokenizer::load(folder).hash();
    } catch (const Error& e) {
        warn(std::string("the tokenizer is copied, but keel cannot use it: ") + e.what());
        return 0;
    }
}

void folder_to_checkpoint(const fs::path& from, const fs::path& to, const ConvertOptions& o) {
    const ModelShape shape = read_model_shape(from);
    Config config;
    config.model = model_section(shape);
    const Dtype dtype = chosen_dtype(o.dtype, config.model.dtype);
    config.model.dtype = short_name(dtype);

    if (shape.dtype == "f16" && dtype == Dtype::bf16) warn(rounded_from_f16(from));
    const FolderWeights weights(from, shape, {.allow_unexpected = o.allow_unexpected, .warn = warn});
    std::vector<TensorSource> sources;  // produced block by block of rows: the model is never in memory
    for (const ParamSpec& p : param_specs(shape))
        sources.push_back({p.name, stored(dtype), p.shape, [&weights, p, dtype](const ByteSink& out) {
                               const Rect all = extent(p.shape);
                               const std::int64_t step = std::max<std::int64_t>(1, block_elements / all.cols);
                               std::vector<std::byte> block(
                                   static_cast<std::size_t>(std::min(step, all.rows) * all.cols * size_bytes(dtype)));
                               for (std::int64_t row = 0; row < all.rows; row += step) {
                                   const TensorPiece piece{
                                       p.name, dtype,    p.shape,      row,     std::min(step, all.rows - row),
                                       0,      all.cols, block.data(), all.cols};
                                   weights.read({&piece, 1});
                                   const auto read = std::span(block).first(static_cast<std::size_t>(piece.bytes()));
                                   check_range(p.name, dtype, read);
                                   out(read);
                               }
                           }});
    std::vector<ExtraFile> extra;
    for (const char* file : files_beside_weights())
        if (fs::exists(from / file)) extra.push_back({file, read_file(from / file)});
    prepare_checkpoint_root(to);
    const fs::path path = save_streamed_checkpoint(to, 0, state_text(Progress{}, config, tokenizer_hash(from)),
                                                   std::move(sources), extra);
    std::printf("%s: %lld parameters, %s, step 0, without optimizer state; start from it with --ckpt.init\n",
                path.c_str(), static_cast<long long>(parameter_count(shape)), config.model.dtype.c_str());
}

// What config.json says beyond the run's configuration: from the folder the model once came from, else from its
// tokenizer.
ModelShape exported_shape(const ModelSource& source) {
    ModelShape shape = model_shape(source.config.model);
    if (const auto text = read_checkpoint_file(source.path, "config.json")) {
        const ModelShape origin = parse_model_config(*text, (source.path / "config.json").string());
        shape.family = origin.family;
        shape.max_position = origin.max_position;
        shape.bos_id = origin.bos_id, shape.pad_id = origin.pad_id, shape.eos_ids = origin.eos_ids;
        shape.other_keys = origin.other_keys;
    } else {
        shape.max_position = shape.rope_scaling == "longrope"  // readers take the ratio of the two lengths for the factor
                                 ? std::llround(shape.rope_factor * shape.rope_original_max_position)
                                 : source.config.data.seq_len;
        if (source.tokenizer) {
            if (const auto bos = source.tokenizer->bos_id()) shape.bos_id = *bos;
            if (const auto eos = source.tokenizer->eos_id()) shape.eos_ids = {*eos};
        }
    }
    check_model_shape(shape, source.description);
    return shape;
}

void check_weights(const CheckpointTensors& weights, const ModelShape& shape) {
    std::string wrong;
    for (const ParamSpec& p : param_specs(shape)) {
        const CheckpointTensors::Tensor* t = weights.find(p.name);
        if (!t || t->shape != p.shape)
            wrong += "\n  " + p.name + " should be " + shape_text(p.shape) + ", found " +
                     (t ? shape_text(t->shape) : "nothing");
    }
    if (!wrong.empty()) fail(weights.folder().string() + " does not fit its configuration:" + wrong);
}

// A run in bf16 or f16 keeps the weights it trains in float32 (docs/numerics.md), unless its optimizer state was left out.
bool has_master_weights(const CheckpointTensors& weights, const ModelShape& shape) {
    const auto params = param_specs(shape);
    return std::all_of(params.begin(), params.end(), [&](const ParamSpec& p) {
        const CheckpointTensors::Tensor* master = weights.find(p.name + ".master");
        return master && master->dtype == StoredDtype::F32 && master->shape == p.shape;
    });
}

SaveFolderOptions folder_options(const ConvertOptions& o, Dtype dtype, const fs::path& tokenizer_from) {
    return {.tokenizer_from = tokenizer_from, .dtype = dtype, .shard_limit_bytes = static_cast<std::int64_t>(o.shard_limit_gb * 1e9)};
}

void tell_folder(const fs::path& to, const ModelShape& shape, Dtype dtype, const std::string& source) {
    std::printf("%s: %s, %lld parameters, %s, from %s\n", to.c_str(), std::string(name(shape.family)).c_str(),
                static_cast<long long>(parameter_count(shape)), std::string(short_name(dtype)).c_str(), source.c_str());
}

void checkpoint_to_folder(const ModelSource& source, const fs::path& to, const ConvertOptions& o) {
    const CheckpointInfo info = verify_checkpoint(source.path);
    const ModelShape shape = exported_shape(source);
    const Dtype dtype = chosen_dtype(o.dtype, source.config.model.dtype);
    const bool wants_master = dtype == Dtype::f32 && source.config.model.dtype != "f32";
    const CheckpointTensors weights(info.path, info.files, true, wants_master);
    check_weights(weights, shape);
    const bool master = wants_master && has_master_weights(weights, shape);
    const bool tokenizer = Tokenizer::found_in(source.path);
    if (!tokenizer) warn(source.description + " holds no tokenizer; the folder will have none");
    const auto read = [&](const std::string& param, std::int64_t first, std::int64_t count, Dtype as, std::byte* out) {
        weights.read(master ? param + ".master" : param, first, count, as, out);
        check_range(param, as, {out, static_cast<std::size_t>(count * size_bytes(as))});
    };
    save_model_folder(to, shape, read, folder_options(o, dtype, tokenizer ? source.path : fs::path()));
    tell_folder(to, shape, dtype, concat(source.description, master ? ", its float32 master weights" : wants_master ? ", whose " + source.config.model.dtype + " weights are widened" : ""));
}

void foreign_to_folder(const fs::path& from, ForeignKind kind, const fs::path& to, const ConvertOptions& o) {
    ForeignModel model = open_foreign(from, kind, {.vocab = o.vocab, .rope_factor = o.rope_factor, .allow_unexpected = o.allow_unexpected, .warn = warn});
    ModelShape& shape = model.shape;
    if (model.tokenizer_from.empty()) {
        warn(from.string() + " has no tokenizer beside it; the folder will have none");
    } else {
        try {
            const Tokenizer tokenizer = Tokenizer::load(model.tokenizer_from);
            if (const auto bos = tokenizer.bos_id(); bos && *bos < shape.vocab) shape.bos_id = *bos;
            if (const auto eos = tokenizer.eos_id(); eos && *eos < shape.vocab) shape.eos_ids = {*eos};
        } catch (const Error& e) {
            warn(std::string("the tokenizer is copied, but keel cannot use it: ") + e.what());
        }
    }
    const Dtype dtype = chosen_dtype(o.dtype, shape.dtype);
    if (shape.dtype == "f16" && dtype == Dtype::bf16) warn(rounded_from_f16(from));
    check_bytes(model);
    const auto read = [&](const std::string& param, std::int64_t first, std::int64_t count, Dtype as, std::byte* out) {
        model.weights.read(param, first, count, as, out);
        check_range(param, as, {out, static_cast<std::size_t>(count * size_bytes(as))});
    };
    save_model_folder(to, shape, read, folder_options(o, dtype, model.tokenizer_from));
    tell_folder(to, shape, dtype, model.description);
}

void run_convert(const ConvertOptions& o) {
    if (!o.dtype.empty() && o.dtype != "bf16" && o.dtype != "f16" && o.dtype != "f32")
        fail_usage("--dtype is \"" + o.dtype + "\"; give bf16, f16 or f32");
    if (!(o.shard_limit_gb > 0) || o.shard_limit_gb > 1e6)
        fail_usage("--shard-limit is ", o.shard_limit_gb, "; give gigabytes, more than 0");
    const auto kind = o.kind.empty() ? std::nullopt : parse_foreign_kind(o.kind);
    if (!o.kind.empty() && !kind) fail_usage("--from is \"" + o.kind + "\"; give meta, megatron, llm.c or llama2.c");
    if (o.rope_factor != 0 && !(o.rope_factor >= 1 && o.rope_factor <= 1e6)) fail_usage("--rope-factor is ", o.rope_factor, "; give a number, 1 or more");
    if (o.vocab < 0) fail_usage("--vocab is ", o.vocab, "; give the number of tokens");
    if (!fs::exists(o.from)) fail(o.from + ": no such file or folder; give a run, a checkpoint or a model folder");
    if (fs::exists(o.to) && !(fs::is_directory(o.to) && is_free_checkpoint_root(o.to)))
        fail(o.to + " exists and is not an empty folder; name a new one");
    const auto found = kind ? kind : find_foreign(o.from);
    if (o.vocab != 0 && found != ForeignKind::megatron) fail_usage("--vocab is of a Megatron-LM checkpoint alone, and ", o.from, " is none; leave it out");
    if (o.rope_factor != 0 && found != ForeignKind::meta && found != ForeignKind::llmc)
        fail_usage("--rope-factor is of a model of Meta or llm.c alone, and ", o.from, " is none; leave it out");
    if (found)
        foreign_to_folder(o.from, *found, o.to, o);
    else if (!is_checkpoint(o.from) && fs::exists(fs::path(o.from) / "config.json"))
        folder_to_checkpoint(o.from, o.to, o);
    else
        checkpoint_to_folder(open_model(o.from), o.to, o);
}

}  // namespace

void add_convert(CLI::App& app) {
    CLI::App* command = app.add_subcommand("convert", "turn a checkpoint, also of other systems, into a model folder (safetensors), or back");
    auto o = std::make_shared<ConvertOptions>();
    command->add_option("from", o->from, "a run (its newest checkpoint), a checkpoint, a model folder, or what --from names")->required();
    command->add_option("to", o->to, "new folder: of a model, or of checkpoints where `from` is a model folder")
        ->required();
    command->add_option("--from", o->kind,
                        "take it for a model of meta (params.json, consolidated.*), megatron, llm.c or llama2.c; each is also "
                        "known by its content");
    command->add_option("--vocab", o->vocab, "rows of a Megatron embedding that are tokens; those behind them are padding, and go");
    command->add_option("--rope-factor", o->rope_factor, "of a model of Meta or llm.c with scaled positions whose file does not say it");
    command->add_option("--dtype", o->dtype, "type of the written weights: bf16, f16 or f32; default as in `from`");
    command->add_option("--shard-limit", o->shard_limit_gb, "gigabytes per file of a model folder; more makes shards")
        ->capture_default_str();
    command->add_flag("--allow-unexpected", o->allow_unexpected,
                      "leave out tensors that the model's shape does not know");
    command->callback([o] { run_convert(*o); });
}

}  // namespace keel
