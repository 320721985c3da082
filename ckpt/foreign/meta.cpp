// The form in which Meta publishes Llama, and Mistral its models: params.json and consolidated.00.pth, 01, … (or one
// consolidated.safetensors). Each file is one rank of a model-parallel run: wq, wk, wv, w1, w3 and output are cut by rows, wo
// and w2 by columns, tok_embeddings by columns (Llama 1 and 2) or rows (Llama 3), norms are copies. Rotary pairs are
// neighbours. Touvron et al. 2023, arXiv:2307.09288; Grattafiori et al. 2024, arXiv:2407.21783.
#include <algorithm>
#include <cmath>
#include <memory>
#include <set>

#include "ckpt/foreign/readers.h"
#include "ckpt/foreign/torch_file.h"
#include "ckpt/safetensors.h"
#include "ckpt/strict_json.h"
#include "kernels/base/error.h"

namespace keel {
namespace fs = std::filesystem;
namespace {

constexpr const char* safetensors_name = "consolidated.safetensors";

// params.json while it is read; what was asked for is known.
class Params {
public:
    explicit Params(const fs::path& path) : file_(path.string()), tree_(parse_strict_json(read_file(path), file_)) {}

    const Json* find(const char* key) {
        known_.insert(key);
        const auto at = tree_.find(key);
        return at == tree_.end() || at->is_null() ? nullptr : &*at;
    }
    double real(const char* key, double otherwise) {
        const Json* value = find(key);
        if (!value) return otherwise;
        if (!value->is_number() || !std::isfinite(value->get<double>())) fail(file_, ": \"", key, "\" is ", value->dump(), "; it must be a number");
        return value->get<double>();
    }
    std::int64_t whole(const char* key, std::int64_t otherwise) {
        const double value = real(key, static_cast<double>(otherwise));
        if (value != std::floor(value) || std::fabs(value) > 1e9) fail(file_, ": \"", key, "\" is ", value, "; it must be a whole number of reasonable size");
        return static_cast<std::int64_t>(value);
    }
    std::int64_t size(const char* key, std::int64_t otherwise = 0) {
        const std::int64_t value = whole(key, otherwise);
        if (value <= 0) fail(file_, ": \"", key, "\" is ", find(key) ? find(key)->dump() : "absent", "; a size is required");
        return value;
    }
    bool flag(const char* key) {
        const Json* value = find(key);
        if (value && !value->is_boolean()) fail(file_, ": \"", key, "\" is ", value->dump(), "; it must be true or false");
        return value && value->get<bool>();
    }
    void refuse_unknown(const ForeignOptions& options) const {
        for (const auto& [key, value] : tree_.items()) {
            if (known_.contains(key) || value.is_null()) continue;
            const std::string text = concat(file_, ": \"", key, "\" is ", value.dump().substr(0, 80));
            if (!options.allow_unexpected) fail(text, "; keel does not know whether it changes the mathematics, and leaves it out with --allow-unexpected");
            if (options.warn) options.warn(text + ", and is left out");
        }
    }
    const std::string& file() const { return file_; }

private:
    std::string file_;
    Json tree_;
    std::set<std::string> known_;
};

struct Files {
    std::vector<TensorTable> tables;  // by rank
    std::vector<std::shared_ptr<TorchFile>> torch;
};

Files open_files(const fs::path& folder) {
    Files files;
    if (fs::exists(folder / safetensors_name)) {
        const SafetensorsFile file(folder / safetensors_name);
        const auto bytes = std::make_shared<const InputFile>(file.path());
        TensorTable table{.where = file.path().string(), .tensors = {}};
        for (const StoredTensor& t : file.tensors()) {
            const std::int64_t rows = t.shape.empty() ? 1 : t.shape[0];
            table.tensors[t.name] = {bytes, t.dtype, t.shape, file.header().data_offset + t.begin, rows == 0 ? 1 : t.elements() / rows};
        }
        files.tables.push_back(std::move(table));
        return files;
    }
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder)) {
        const std::string name = entry.path().filename().string();
        if (name.starts_with("consolidated.") && name.ends_with(".pth")) names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    for (std::size_t i = 0; i < names.size(); ++i) {
        const std::string expected = concat("consolidated.", i < 10 ? "0" : "", i, ".pth");
        if (names[i] != expected) fail(folder.string(), ": ", expected, " is missing, but ", names[i], " is there; fetch all of them");
        const auto file = std::make_shared<TorchFile>(folder / names[i]);
        if (!file->root().is(PickleValue::Kind::dict)) fail(file->where(), " holds ", file->root().description(), ", not a dict of tensors");
        files.tables.push_back(file->tensors(file->root()));
        files.torch.push_back(file);
    }
    return files;
}

// use_scaled_rope does not say by how much: the code that came with each release did.
double rope_factor(Params& params, const ModelShape& s, const ForeignOptions& options) {
    if (options.rope_factor > 0) return options.rope_factor;
    if (const double stated = params.real("rope_scaling_factor", 0); stated > 0) return stated;
    const std::pair<std::int64_t, std::int64_t> shape{s.hidden, s.layers};
    if (shape == std::pair<std::int64_t, std::int64_t>{2048, 16} || shape == std::pair<std::int64_t, std::int64_t>{3072, 28}) return 32;  // 3.2
    for (const auto& released : {std::pair<std::int64_t, std::int64_t>{4096, 32}, {8192, 80}, {16384, 126}})  // 3.1, 3.3
        if (shape == released) return 8;
    fail(params.file(), ": \"use_scaled_rope\" is true, but by which factor is not said, and a model of ", s.layers, " layers of ", s.hidden,
         " is none of Meta's releases; give --rope-factor (Llama 3.1 and 3.3 have 8, 3.2 has 32)");
}

// The inner size that the reference computes from these keys; 0 where it is not computed.
std::int64_t computed_ffn(Params& params, std::int64_t dim) {
    const std::int64_t multiple = params.whole("multiple_of", 0);
    const double multiplier = params.real("ffn_dim_multiplier", 1);
    if (multiple <= 0 || !(multiplier > 0) || multiplier > 1000) return 0;
    const auto inner = static_cast<std::int64_t>(multiplier * static_cast<double>(4 * dim * 2 / 3));
    return (inner + multiple - 1) / multiple * multiple;
}

ModelShape read_shape(Params& params, const Files& files, const ForeignOptions& options) {
    const auto ranks = static_cast<std::int64_t>(files.tables.size());
    const TensorTable& first = files.tables[0];
    const auto tensor = [&](const char* name) -> const FileTensor& {
        const FileTensor* t = first.find(name);
        if (!t || t->shape.size() != 2) fail(first.where, ": no matrix ", name, "; it is not a Llama model in Meta's form");
        return *t;
    };
    ModelShape s;
    s.hidden = params.size("dim"), s.layers = params.size("n_layers"), s.heads = params.size("n_heads");
    s.kv_heads = params.size("n_kv_heads", s.heads);
    s.head_dim = params.size("head_dim", s.hidden / s.heads);
    s.norm_eps = params.real("norm_eps", 1e-5);
    s.rope_base = params.real("rope_theta", 10000);
    s.window = params.whole("sliding_window", 0);
    if (s.heads % ranks != 0 || s.kv_heads % ranks != 0)
        fail(first.where, ": ", s.heads, " heads and ", s.kv_heads, " of keys and values do not divide among ", ranks, " files; ",
             "files in which ranks share heads are not read: take the release with fewer");

    const FileTensor& embed = tensor("tok_embeddings.weight");
    s.vocab = embed.shape[1] == s.hidden ? embed.shape[0] * ranks : embed.shape[0];
    if (const std::int64_t stated = params.whole("vocab_size", -1); stated > 0 && stated != s.vocab)
        fail(params.file(), ": \"vocab_size\" is ", stated, ", but tok_embeddings.weight has ", s.vocab, " rows in ", ranks, " files");
    s.ffn = tensor("layers.0.feed_forward.w1.weight").shape[0] * ranks;
    const std::int64_t computed = computed_ffn(params, s.hidden), stated = params.whole("hidden_dim", computed);
    if (stated > 0 && stated != s.ffn)
        fail(params.file(), ": the keys make the feed-forward size ", stated, ", but layers.0.feed_forward.w1.weight has ", s.ffn, " rows in ",
             ranks, " files");
    s.dtype = embed.dtype == StoredDtype::BF16 ? "bf16" : embed.dtype == StoredDtype::F16 ? "f16" : "f32";
    // Where no output is kept, or a copy of the embedding is, the two are one.
    const FileTensor* output = first.find("output.weight");
    s.tied = !output || (ranks == 1 && same_bytes(*output, embed));

    std::int64_t length = s.rope_base == 500000 ? 8192 : s.rope_base == 1e6 ? (params.find("hidden_dim") ? 32768 : 16384) : 4096;
    if (params.flag("use_scaled_rope")) {
        s.rope_scaling = "llama3", s.rope_factor = rope_factor(params, s, options);
        s.rope_original_max_position = 8192, s.rope_low_freq_factor = 1, s.rope_high_freq_factor = 4;
        length = 131072;
    }
    for (const char* key : {"max_seq_len", "max_position_embeddings"}) length = params.size(key, length);
    s.max_position = length;
    for (const char* neutral : {"multiple_of", "ffn_dim_multiplier", "max_batch_size", "rope_scaling_factor"}) params.find(neutral);
    params.refuse_unknown(options);
    choose_family(s);
    check_model_shape(s, params.file());
    return s;
}

}  // namespace

void place_meta_weights(ForeignModel& model) {
    const ModelShape& s = model.shape;
    ForeignWeights& w = model.weights;
    const auto& tables = model.tables;
    const auto ranks = static_cast<std::int64_t>(tables.size());
    const std::int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim, h = s.hidden;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const TensorTable& table = tables[static_cast<std::size_t>(rank)];
        // Rows [begin, begin + rows) of a parameter, this rank's part of them.
        const auto rows = [&](const std::string& name, const std::string& param, std::int64_t begin, std::int64_t all, std::int64_t cols, std::int64_t head = 0) {
            const std::int64_t mine = all / ranks;
            w.put(table, name, {mine, cols}, {{0, param, {begin + rank * mine, mine, 0, cols}, head}});
        };
        const auto columns = [&](const std::string& name, const std::string& param, std::int64_t all_rows, std::int64_t all) {
            const std::int64_t mine = all / ranks;
            w.put(table, name, {all_rows, mine}, {{0, param, {0, all_rows, rank * mine, mine}}});
        };
        const auto vector = [&](const std::string& name, const std::string& param) {
            if (rank == 0) w.put(table, name, {h}, {{0, param, {0, h, 0, 1}}});
            else w.put_copy(table, name, tables[0], name);
        };
        const FileTensor* embed = table.find("tok_embeddings.weight");
        if (ranks > 1 && embed && embed->shape.size() == 2 && embed->shape[1] != h) columns("tok_embeddings.weight", "embed", s.vocab, h);
        else rows("tok_embeddings.weight", "embed", 0, s.vocab, h);
        for (std::int64_t i = 0; i < s.layers; ++i) {
            const std::string from = concat("layers.", i, "."), to = from;
            vector(from + "attention_norm.weight", to + "attn_norm");
            rows(from + "attention.wq.weight", to + "qkv", 0, q, h, s.head_dim);
            rows(from + "attention.wk.weight", to + "qkv", q, kv, h, s.head_dim);
            rows(from + "attention.wv.weight", to + "qkv", q + kv, kv, h);
            columns(from + "attention.wo.weight", to + "out", h, q);
            vector(from + "ffn_norm.weight", to + "ffn_norm");
            rows(from + "feed_forward.w1.weight", to + "gate_up", 0, s.ffn, h);
            rows(from + "feed_forward.w3.weight", to + "gate_up", s.ffn, s.ffn, h);
            columns(from + "feed_forward.w2.weight", to + "down", h, s.ffn);
            w.ignore(table, from + "attention.inner_attention.rope.freqs");
        }
        vector("norm.weight", "final_norm");
        if (s.tied) w.ignore(table, "output.weight");
        else rows("output.weight", "head", 0, s.vocab, h);
        w.ignore(table, "rope.freqs");  // a table that everybody computes anew
    }
}

bool is_meta_folder(const fs::path& folder) {
    std::error_code none;
    return fs::exists(folder / "params.json", none) &&
           (fs::exists(folder / "consolidated.00.pth", none) || fs::exists(folder / safetensors_name, none));
}

ForeignModel open_meta(const fs::path& folder, const ForeignOptions& options) {
    Params params(folder / "params.json");
    Files files = open_files(folder);
    const ModelShape shape = read_shape(params, files, options);
    ForeignModel model{.description = concat("Meta's form, ", files.tables.size(), files.tables.size() == 1 ? " file" : " files"),
                       .shape = shape, .weights = ForeignWeights(shape), .tables = std::move(files.tables)};
    place_meta_weights(model);
    model.weights.finish(folder.string(), model.tables, options.allow_unexpected, options.warn);
    for (const fs::path& place : {folder, fs::weakly_canonical(folder).parent_path()})
        if (model.tokenizer_from.empty() && fs::exists(place / "tokenizer.model")) model.tokenizer_from = place;
    model.torch = std::move(files.torch);
    return model;
}

}  // namespace keel
