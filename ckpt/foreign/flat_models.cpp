// Models as one file of a header and the weights behind it, in a fixed order: of llm.c (its Llama 3) and of llama2.c. In
// both, rotary pairs are neighbours.
//
//     llm.c        256 int32: magic 20240803, version 3 (float32) or 5 (bf16), length, vocab, layers, heads, kv_heads, hidden,
//                  ffn multiplier, multiple_of, norm_eps, rope_base, use_scaled_rope, …, as int32: the multiplier and norm_eps
//                  have lost their fractions, so the feed-forward size is taken from the size of the file
//     llama2.c 0   7 int32: hidden, ffn, layers, heads, kv_heads, ±vocab (negative: the output is apart), length; no magic
//     llama2.c 1   "ak42" as an integer, version 1, the same 7 int32, a byte (1: the output is the embedding), zeros to 256
#include <array>
#include <cstring>
#include <memory>

#include "ckpt/foreign/readers.h"
#include "kernels/base/error.h"

namespace keel {
namespace fs = std::filesystem;
namespace {

std::int32_t number(std::string_view start, std::size_t index) {
    std::int32_t value = 0;
    if (start.size() >= 4 * (index + 1)) std::memcpy(&value, start.data() + 4 * index, 4);
    return value;
}

std::string read_start(const InputFile& file) {
    std::string start(static_cast<std::size_t>(std::min<std::int64_t>(1024, file.size_bytes())), '\0');
    file.read_at(0, std::as_writable_bytes(std::span(start)));
    return start;
}

// Hands out the tensors of a file one after the other.
class Cursor {
public:
    Cursor(std::shared_ptr<const InputFile> file, std::int64_t begin, StoredDtype dtype, TensorTable& table)
        : file_(std::move(file)), at_(begin), dtype_(dtype), table_(table) {}

    void vector(const std::string& name, std::int64_t rows) { next(name, {rows}); }
    void matrix(const std::string& name, std::int64_t rows, std::int64_t cols) { next(name, {rows, cols}); }
    void skip(std::int64_t bytes) { at_ += bytes; }

private:
    void next(const std::string& name, std::vector<std::int64_t> shape) {
        const std::int64_t cols = shape.size() == 2 ? shape[1] : 1, bytes = element_count(shape) * size_bits(dtype_) / 8;
        table_.tensors[name] = {file_, dtype_, std::move(shape), at_, cols};
        at_ += bytes;
    }
    std::shared_ptr<const InputFile> file_;
    std::int64_t at_;
    StoredDtype dtype_;
    TensorTable& table_;
};

// Sizes of headers, held to what sums of products of them stay inside 63 bits for.
bool plausible(const ModelShape& s) {
    for (const std::int64_t size : {s.vocab, s.hidden, s.layers, s.heads, s.kv_heads, s.max_position})
        if (size <= 0 || size > (std::int64_t{1} << 24)) return false;
    return s.layers <= 4096 && s.hidden <= (1 << 18) && s.hidden % s.heads == 0 && s.heads % s.kv_heads == 0;
}

void put_whole(ForeignWeights& w, const TensorTable& table, const std::string& name, std::int64_t rows, std::int64_t cols,
               const std::string& param, std::int64_t begin = 0, std::int64_t head = 0) {
    w.put(table, name, {rows, cols}, {{0, param, {begin, rows, 0, cols}, head}});
}
void put_vector(ForeignWeights& w, const TensorTable& table, const std::string& name, std::int64_t rows, const std::string& param) {
    w.put(table, name, {rows}, {{0, param, {0, rows, 0, 1}}});
}

ForeignModel whole_file(std::string description, const ModelShape& shape, TensorTable table) {
    ForeignModel model{.description = std::move(description), .shape = shape, .weights = ForeignWeights(shape), .tables = {}};
    model.tables.push_back(std::move(table));
    return model;
}

}  // namespace

// ---- llm.c

bool is_llmc_model(std::string_view start) { return number(start, 0) == 20240803; }

namespace {

void place_llmc(ForeignWeights& w, const TensorTable& t, const ModelShape& s) {
    const std::int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim, h = s.hidden;
    put_whole(w, t, "transformer.wte.weight", s.vocab, h, "embed");
    for (std::int64_t i = 0; i < s.layers; ++i) {
        const std::string from = concat("transformer.h.", i, "."), to = concat("layers.", i, "."), qkv = to + "qkv";
        put_vector(w, t, from + "ln_1.weight", h, to + "attn_norm");
        w.put(t, from + "attn.c_attn.weight", {q + 2 * kv, h}, {{0, qkv, {0, q, 0, h}, s.head_dim}, {q, qkv, {q, kv, 0, h}, s.head_dim}, {q + kv, qkv, {q + kv, kv, 0, h}}});
        put_whole(w, t, from + "attn.c_proj.weight", h, q, to + "out");
        put_vector(w, t, from + "ln_2.weight", h, to + "ffn_norm");
        put_whole(w, t, from + "mlp.c_fc2.weight", s.ffn, h, to + "gate_up");  // silu is taken of c_fc2
        put_whole(w, t, from + "mlp.c_fc.weight", s.ffn, h, to + "gate_up", s.ffn);
        put_whole(w, t, from + "mlp.c_proj.weight", h, s.ffn, to + "down");
    }
    put_vector(w, t, "transformer.ln_f.weight", h, "final_norm");
    put_whole(w, t, "lm_head.weight", s.vocab, h, "head");
}

}  // namespace

ForeignModel open_llmc(const fs::path& path, const ForeignOptions& options) {
    const auto file = std::make_shared<const InputFile>(path);
    const std::string start = read_start(*file), what = path.string();
    constexpr std::int64_t header = 1024;
    const std::int32_t version = number(start, 1);
    if (file->size_bytes() < header) fail(what, ": ", file->size_bytes(), " bytes is shorter than the header of a model of llm.c");
    if (version != 3 && version != 5) fail(what, ": version ", version, " of llm.c's model files; keel reads 3 (float32) and 5 (bf16)");
    const StoredDtype dtype = version == 3 ? StoredDtype::F32 : StoredDtype::BF16;
    ModelShape s;
    s.dtype = version == 3 ? "f32" : "bf16";
    s.max_position = number(start, 2), s.vocab = number(start, 3), s.layers = number(start, 4), s.heads = number(start, 5);
    s.kv_heads = number(start, 6), s.hidden = number(start, 7), s.rope_base = number(start, 11);
    s.norm_eps = 1e-5;  // of every Llama 3; the header's integer is 0
    if (!plausible(s)) fail(what, ": its header's sizes cannot be those of a model: ", s.layers, " layers of ", s.hidden, ", ", s.heads, " heads (", s.kv_heads, " of keys), ", s.vocab, " tokens");
    s.head_dim = s.hidden / s.heads;
    if (number(start, 12) != 0) {
        s.rope_scaling = "llama3", s.rope_factor = options.rope_factor > 0 ? options.rope_factor : 8;  // llm.c's own constant
        s.rope_original_max_position = 8192, s.rope_low_freq_factor = 1, s.rope_high_freq_factor = 4;
    }
    const std::int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim, h = s.hidden, element = size_bits(dtype) / 8;
    const std::int64_t others = 2 * s.vocab * h + h + s.layers * (2 * h + (q + 2 * kv) * h + h * q);
    const std::int64_t rest = (file->size_bytes() - header) / element - others, per_row = 3 * s.layers * h;
    if ((file->size_bytes() - header) % element != 0 || rest <= 0 || rest % per_row != 0)
        fail(what, ": ", file->size_bytes(), " bytes do not fit a model of its header: the weights but those of the feed-forward layers take ",
             others * element + header, ", and each of their rows ", per_row * element, "; the file is cut, or of another program");
    s.ffn = rest / per_row;
    choose_family(s);
    check_model_shape(s, what);

    TensorTable table{.where = what, .tensors = {}};
    Cursor c(file, header, dtype, table);
    const auto layers = [&](const char* name, std::int64_t rows, std::int64_t cols) {
        for (std::int64_t i = 0; i < s.layers; ++i) {
            const std::string full = concat("transformer.h.", i, ".", name, ".weight");
            cols == 0 ? c.vector(full, rows) : c.matrix(full, rows, cols);
        }
    };
    c.matrix("transformer.wte.weight", s.vocab, h);
    layers("ln_1", h, 0), layers("attn.c_attn", q + 2 * kv, h), layers("attn.c_proj", h, q), layers("ln_2", h, 0);
    layers("mlp.c_fc", s.ffn, h), layers("mlp.c_fc2", s.ffn, h), layers("mlp.c_proj", h, s.ffn);
    c.vector("transformer.ln_f.weight", h);
    c.matrix("lm_head.weight", s.vocab, h);
    ForeignModel model = whole_file(concat("a model of llm.c, version ", version), s, std::move(table));
    place_llmc(model.weights, model.tables[0], s);
    model.weights.finish(what, model.tables, false, {});
    return model;
}

// ---- llama2.c

namespace {

struct Llama2c {
    ModelShape shape;
    std::int32_t version;
    std::int64_t header;

    std::int64_t size_bytes() const {
        const ModelShape& s = shape;
        const std::int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim, h = s.hidden;
        const std::int64_t tables = version == 0 ? s.max_position * s.head_dim : 0;  // cos and sin, half a head each
        const std::int64_t layer = 2 * h + (q + 2 * kv) * h + h * q + 3 * s.ffn * h;
        return header + 4 * ((s.tied ? 1 : 2) * s.vocab * h + h + s.layers * layer + tables);
    }
};

// nullopt where the numbers cannot be a model's.
std::optional<Llama2c> parse_llama2c(std::string_view start) {
    const bool magic = number(start, 0) == 0x616b3432;
    Llama2c m{.shape = {}, .version = magic ? number(start, 1) : 0, .header = magic ? 256 : 28};
    if (start.size() < static_cast<std::size_t>(m.header)) return std::nullopt;
    const std::size_t first = magic ? 2 : 0;
    ModelShape& s = m.shape;
    s.dtype = "f32", s.norm_eps = 1e-5, s.rope_base = 10000;  // as its programs have them
    s.hidden = number(start, first), s.ffn = number(start, first + 1), s.layers = number(start, first + 2);
    s.heads = number(start, first + 3), s.kv_heads = number(start, first + 4), s.vocab = number(start, first + 5);
    s.max_position = number(start, first + 6);
    s.tied = magic ? start[36] != 0 : s.vocab > 0;
    if (!magic && s.vocab < 0) s.vocab = -s.vocab;
    if (!plausible(s) || s.ffn <= 0 || s.ffn > (1 << 20)) return std::nullopt;
    s.head_dim = s.hidden / s.heads;
    return m;
}

}  // namespace

bool is_llama2c_model(std::string_view start, std::int64_t file_size_bytes) {
    if (number(start, 0) == 0x616b3432) return true;
    const auto model = parse_llama2c(start);  // without a magic number, its size to the byte is what it is known by
    return model && model->size_bytes() == file_size_bytes;
}

ForeignModel open_llama2c(const fs::path& path, const ForeignOptions&) {
    const auto file = std::make_shared<const InputFile>(path);
    const std::string start = read_start(*file), what = path.string();
    const auto model = parse_llama2c(start);
    if (model && model->version != 0 && model->version != 1)
        fail(what, ": version ", model->version, " of llama2.c's model files, ", model->version == 2 ? "whose weights are quantised to 8 bits; " : "",
             "keel reads 0 and 1, which are float32");
    if (!model || model->size_bytes() != file->size_bytes())
        fail(what, ": ", file->size_bytes(), " bytes are no model of llama2.c", model ? concat(": its header makes it ", model->size_bytes()) : std::string(": its header's sizes cannot be"),
             "; the file is cut, or of another program");
    const ModelShape& s = model->shape;
    check_model_shape(s, what);

    TensorTable table{.where = what, .tensors = {}};
    Cursor c(file, model->header, StoredDtype::F32, table);
    const std::int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim, h = s.hidden;
    const auto layers = [&](const char* name, std::int64_t rows, std::int64_t cols) {
        for (std::int64_t i = 0; i < s.layers; ++i) {
            const std::string full = concat("layers.", i, ".", name, ".weight");
            cols == 0 ? c.vector(full, rows) : c.matrix(full, rows, cols);
        }
    };
    const auto matrices = [&](bool norms_between) {
        layers("attention.wq", q, h), layers("attention.wk", kv, h), layers("attention.wv", kv, h), layers("attention.wo", h, q);
        if (norms_between) layers("ffn_norm", h, 0);
        layers("feed_forward.w1", s.ffn, h), layers("feed_forward.w2", h, s.ffn), layers("feed_forward.w3", s.ffn, h);
    };
    if (model->version == 0) {
        c.matrix("tok_embeddings.weight", s.vocab, h);
        layers("attention_norm", h, 0);
        matrices(true);
        c.vector("norm.weight", h);
        c.skip(4 * s.max_position * s.head_dim);
    } else {
        layers("attention_norm", h, 0), layers("ffn_norm", h, 0);
        c.vector("norm.weight", h);
        c.matrix("tok_embeddings.weight", s.vocab, h);
        matrices(false);
    }
    if (!s.tied) c.matrix("output.weight", s.vocab, h);
    ForeignModel whole = whole_file(concat("a model of llama2.c, version ", model->version), s, std::move(table));
    place_meta_weights(whole);
    whole.weights.finish(what, whole.tables, false, {});
    return whole;
}

}  // namespace keel
