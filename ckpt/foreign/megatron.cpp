// Checkpoints of Megatron-LM. In its format `torch`, iter_0000100/mp_rank_TT_PPP/model_optim_rng.pt is one file of torch.save
// per tensor- and pipeline-parallel rank, with the arguments of the run beside the weights; names of Megatron Core (with the
// norms inside of the layers that follow them, as Transformer Engine has it, or apart) and of the older `language_model`. In
// `torch_dist`, pieces of global tensors, the layers of one kind stacked, and the arguments in common.pt.
//
// qkv is kept group by group: the queries of a group, its key, its value. Under tensor parallelism (Shoeybi et al. 2019,
// arXiv:1909.08053) a rank has whole groups, and of gate and up its own part of each, one behind the other. The vocabulary is
// padded. Stages count their layers from 0; with virtual stages, chunk v of every stage comes before chunk v + 1 of any.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <optional>
#include <span>

#include "ckpt/foreign/distributed.h"
#include "ckpt/foreign/megatron_args.h"
#include "ckpt/foreign/readers.h"
#include "ckpt/foreign/torch_file.h"
#include "kernels/base/error.h"

namespace keel {
namespace fs = std::filesystem;
namespace {

using Kind = PickleValue::Kind;

constexpr const char* file_name = "model_optim_rng.pt";
constexpr const char* common_name = "common.pt";
constexpr std::int64_t max_layers = 100'000;
constexpr const char* tracker = "latest_checkpointed_iteration.txt";

struct Names {
    std::string layers, embed, final_norm, output;
    std::vector<std::string> attn_norm, ffn_norm;  // whichever is there
    std::string qkv, out, gate_up, down;
};
const Names core{"decoder.layers.", "embedding.word_embeddings.weight", "decoder.final_layernorm.weight", "output_layer.weight",
                 {"self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight"},
                 {"mlp.linear_fc1.layer_norm_weight", "pre_mlp_layernorm.weight"},
                 "self_attention.linear_qkv", "self_attention.linear_proj.weight", "mlp.linear_fc1.weight", "mlp.linear_fc2.weight"};
const Names older{"language_model.encoder.layers.", "language_model.embedding.word_embeddings.weight", "language_model.encoder.final_norm.weight",
                  "language_model.output_layer.weight",
                  {"input_norm.weight", "input_layernorm.weight"},
                  {"post_attention_norm.weight", "post_attention_layernorm.weight"},
                  "self_attention.query_key_value", "self_attention.dense.weight", "mlp.dense_h_to_4h.weight", "mlp.dense_4h_to_h.weight"};

// The folder of one iteration: `path` itself, or the newest that the tracker of a run's folder names.
fs::path iteration_folder(const fs::path& path) {
    std::error_code none;
    if (!fs::exists(path / tracker, none)) return path;
    std::string word;
    std::ifstream(path / tracker) >> word;
    if (word == "release") return path / word;
    if (word.empty() || word.size() > 12 || !std::all_of(word.begin(), word.end(), [](char c) { return c >= '0' && c <= '9'; }))
        fail((path / tracker).string(), " holds \"", word, "\", not the number of an iteration; give the folder iter_… itself");
    const fs::path folder = path / concat("iter_", std::string(word.size() < 7 ? 7 - word.size() : 0, '0'), word);
    if (!fs::is_directory(folder, none)) fail((path / tracker).string(), " names iteration ", word, ", but ", folder.string(), " is not there");
    return folder;
}

std::string rank_folder(std::int64_t tp, std::int64_t pp, bool staged) {
    const auto digits = [](std::int64_t n, std::size_t width) {
        const std::string text = std::to_string(n);
        return std::string(text.size() < width ? width - text.size() : 0, '0') + text;
    };
    return "mp_rank_" + digits(tp, 2) + (staged ? "_" + digits(pp, 3) : "");
}

// Part of the layers, as the ranks of one stage hold it: tables [first, first + tp) of the model.
struct Chunk {
    std::size_t first;
    std::int64_t first_layer, layers;
};

struct Checkpoint {
    std::vector<TensorTable> tables;
    std::vector<std::shared_ptr<TorchFile>> torch;
    std::shared_ptr<TorchFile> with_args;
    std::vector<Chunk> chunks;                            // in the order of the layers
    std::int64_t tp = 1, pp = 1, padded_vocab = 0;        // ranks, and rows of the embedding of all of them
    StoredDtype dtype = StoredDtype::F32;
};

std::int64_t count_layers(const TensorTable& table, const std::string& prefix) {
    std::int64_t layers = 0;
    for (auto at = table.tensors.lower_bound(prefix); at != table.tensors.end() && at->first.starts_with(prefix); ++at)
        layers = std::max<std::int64_t>(layers, 1 + std::atoll(at->first.substr(prefix.size(), 9).c_str()));
    return layers;
}

Checkpoint open_ranks(const fs::path& folder) {
    Checkpoint c;
    const bool staged = fs::exists(folder / rank_folder(0, 0, true));
    const auto path = [&](std::int64_t tp, std::int64_t pp) { return folder / rank_folder(tp, pp, staged) / file_name; };
    while (fs::exists(path(c.tp, 0))) ++c.tp;
    while (staged && fs::exists(path(0, c.pp))) ++c.pp;
    std::vector<std::vector<std::shared_ptr<TorchFile>>> files;  // by stage, then by rank
    std::size_t virtual_stages = 1;
    for (std::int64_t pp = 0; pp < c.pp; ++pp) {
        auto& ranks = files.emplace_back();
        for (std::int64_t tp = 0; tp < c.tp; ++tp) {
            const auto file = std::make_shared<TorchFile>(path(tp, pp));
            if (!file->root().find("model") && !file->root().find("model0")) fail(file->where(), " holds no \"model\"; its keys are those of another program");
            while (file->root().find("model" + std::to_string(virtual_stages))) ++virtual_stages;
            ranks.push_back(file);
        }
    }
    c.with_args = files[0][0];
    std::int64_t layer = 0;
    for (std::size_t v = 0; v < virtual_stages; ++v)
        for (const auto& ranks : files) {
            const Chunk chunk{c.tables.size(), layer, 0};
            c.chunks.push_back(chunk);
            for (const auto& file : ranks) {
                const PickleValue* model = file->root().find(virtual_stages == 1 && file->root().find("model") ? "model" : "model" + std::to_string(v));
                if (!model) fail(file->where(), " lacks \"model", v, "\", which other ranks have");
                c.tables.push_back(file->tensors(*model));
                if (v == 0) c.torch.push_back(file);
                for (const Names* names : {&core, &older})
                    c.chunks.back().layers = std::max(c.chunks.back().layers, count_layers(c.tables.back(), names->layers));
            }
            layer += c.chunks.back().layers;
        }
    for (const std::string& name : {core.embed, older.embed})
        if (const FileTensor* embed = c.tables[0].find(name)) c.padded_vocab = embed->rows() * c.tp, c.dtype = embed->dtype;
    return c;
}

// One rank's view of a distributed checkpoint: the layers, stacked in it, apart, and each piece under NAME@ROW,COLUMN unless it
// is the whole.
Checkpoint open_stacked(const fs::path& folder) {
    const auto of_the_model = [](std::string_view name) {
        return name.starts_with("decoder.") || name.starts_with("embedding.") || name.starts_with("output_layer.");
    };
    DistributedCheckpoint saved = open_distributed(folder, of_the_model);
    Checkpoint c;
    c.with_args = std::make_shared<TorchFile>(folder / common_name);
    TensorTable table{.where = folder.string(), .tensors = {}};
    for (auto& [name, tensor] : saved.tensors) {
        const bool stacked = name.starts_with(core.layers) && (name[core.layers.size()] < '0' || name[core.layers.size()] > '9') && !tensor.shape.empty();
        if (stacked && tensor.shape[0] > max_layers) fail(folder.string(), ": ", name, " is of ", tensor.shape[0], " layers, which cannot be");
        const auto shape = std::span(tensor.shape).subspan(stacked ? 1 : 0);
        for (auto& [offset, piece] : tensor.pieces) {
            const std::int64_t layers = stacked ? piece.rows() : 1;
            if (stacked) piece.shape.erase(piece.shape.begin());
            const auto place = std::span(offset).subspan(offset.size() - piece.shape.size());
            const bool whole = std::ranges::equal(piece.shape, shape);
            for (std::int64_t i = 0; i < layers; ++i) {
                FileTensor one = piece;
                if (stacked) one.row_stride = one.row_elements(), one.begin += i * piece.row_stride * size_bits(one.dtype) / 8;
                std::string full = stacked ? concat(core.layers, offset[0] + i, ".", name.substr(core.layers.size())) : name;
                if (!whole) full += concat("@", place[0], ",", place.size() > 1 ? place[1] : 0);
                table.tensors.insert_or_assign(full, std::move(one));
            }
        }
        if (name == core.embed && !tensor.pieces.empty()) c.padded_vocab = tensor.shape[0], c.dtype = tensor.pieces[0].tensor.dtype;
    }
    c.chunks.push_back({0, 0, count_layers(table, core.layers)});
    c.tables.push_back(std::move(table));
    c.torch = std::move(saved.files);
    return c;
}

void place_weights(ForeignModel& model, const Checkpoint& c, const MegatronArgs& args) {
    const ModelShape& s = model.shape;
    ForeignWeights& w = model.weights;
    const std::int64_t tp = c.tp, d = s.head_dim, h = s.hidden, q = s.heads * d, kv = s.kv_heads * d;
    const std::int64_t groups = s.kv_heads / tp, queries = s.heads / s.kv_heads, padded = c.padded_vocab / tp;
    const std::int64_t head = args.interleaved ? d : 0;
    const bool is_older = count_layers(c.tables[0], older.layers) > 0;
    const Names& names = is_older ? older : core;
    for (const Chunk& chunk : c.chunks)
        for (std::int64_t rank = 0; rank < tp; ++rank) {
            const TensorTable &table = c.tables[chunk.first + static_cast<std::size_t>(rank)], &original = c.tables[chunk.first];
            const auto vector = [&](const std::string& name, const std::string& param, std::int64_t size, std::int64_t interleaved_head = 0) {
                if (rank == 0) w.put(table, name, {size}, {{0, param, {0, size, 0, 1}, interleaved_head}});
                else w.put_copy(table, name, original, name);
            };
            const auto columns = [&](const std::string& name, const std::string& param, std::int64_t all) {
                w.put(table, name, {h, all / tp}, {{0, param, {0, h, rank * (all / tp), all / tp}}});
            };
            const auto words = [&](const std::string& name, const std::string& param) {  // without the padding at the end
                const std::int64_t rows = std::clamp<std::int64_t>(s.vocab - rank * padded, 0, padded);
                w.put(table, name, {padded, h}, rows > 0 ? std::vector<Place>{{0, param, {rank * padded, rows, 0, h}}} : std::vector<Place>{});
            };
            const auto one_of = [&](const std::string& layer, const std::vector<std::string>& either) {
                for (const std::string& name : either)
                    if (table.find(layer + name)) return layer + name;
                return layer + either.back();
            };
            const auto qkv = [&](const std::string& name, const std::string& param, const std::vector<std::int64_t>& shape) {
                std::vector<Place> places;
                const std::int64_t cols = shape.size() == 2 ? h : 1;
                for (std::int64_t g = 0; g < groups; ++g) {
                    const std::int64_t from = g * (queries + 2) * d, group = rank * groups + g;
                    places.push_back({from, param, {group * queries * d, queries * d, 0, cols}, head});
                    places.push_back({from + queries * d, param, {q + group * d, d, 0, cols}, head});
                    places.push_back({from + (queries + 1) * d, param, {q + kv + group * d, d, 0, cols}});
                }
                w.put(table, name, shape, places);
            };
            if (&chunk == &c.chunks.front()) words(names.embed, "embed");
            for (std::int64_t i = 0; i < chunk.layers; ++i) {
                const std::string from = concat(names.layers, i, "."), to = concat("layers.", chunk.first_layer + i, ".");
                vector(one_of(from, names.attn_norm), to + "attn_norm", h);
                qkv(from + names.qkv + ".weight", to + "qkv", {groups * (queries + 2) * d, h});
                if (s.qkv_bias) qkv(from + names.qkv + ".bias", to + "qkv_bias", {groups * (queries + 2) * d});
                if (s.qk_norm) {
                    vector(from + "self_attention.q_layernorm.weight", to + "q_norm", d, head);
                    vector(from + "self_attention.k_layernorm.weight", to + "k_norm", d, head);
                }
                columns(from + names.out, to + "out", q);
                vector(one_of(from, names.ffn_norm), to + "ffn_norm", h);
                const std::int64_t ffn = s.ffn / tp;
                w.put(table, from + names.gate_up, {2 * ffn, h},
                      {{0, to + "gate_up", {rank * ffn, ffn, 0, h}}, {ffn, to + "gate_up", {s.ffn + rank * ffn, ffn, 0, h}}});
                columns(from + names.down, to + "down", s.ffn);
            }
            if (&chunk == &c.chunks.back()) {
                vector(one_of("", {names.final_norm, "language_model.encoder.final_layernorm.weight"}), "final_norm", h);
                if (!s.tied) words(names.output, "head");
                else  // the last stage's copy of the embedding
                    for (const std::string& copy : {names.output, std::string("word_embeddings_for_head.weight")})
                        w.put_copy(table, copy, c.tables[static_cast<std::size_t>(rank)], names.embed);
            }
            for (const auto& [name, tensor] : table.tensors)  // what Transformer Engine scales float8 by, and tables
                if (name.ends_with("_extra_state") || name.ends_with("rotary_pos_emb.inv_freq")) w.ignore(table, name);
        }
}

}  // namespace

bool is_megatron_folder(const fs::path& folder) {
    std::error_code none;
    if (fs::exists(folder / tracker, none)) return true;
    if (is_distributed_checkpoint(folder) && fs::exists(folder / common_name, none)) return true;
    for (const bool staged : {false, true})
        if (fs::exists(folder / rank_folder(0, 0, staged) / file_name, none)) return true;
    return false;
}

ForeignModel open_megatron(const fs::path& path, const ForeignOptions& options) {
    const fs::path folder = iteration_folder(path);
    if (!is_megatron_folder(folder))
        fail(folder.string(), " is a checkpoint of Megatron-LM, but in neither of the formats that keel reads, torch (mp_rank_…/", file_name,
             ") and torch_dist (", common_name, " and .metadata); write it anew with --ckpt-format torch, or as a model folder with Megatron Bridge's export");
    const bool distributed = is_distributed_checkpoint(folder);
    Checkpoint c = distributed ? open_stacked(folder) : open_ranks(folder);
    if (c.padded_vocab == 0) fail(folder.string(), " holds no ", core.embed, "; it is not a GPT of Megatron-LM");
    const MegatronArgs args = read_megatron_args(*c.with_args, c.dtype, c.padded_vocab, c.tp, options);
    ForeignModel model{.description = concat("a checkpoint of Megatron-LM, iteration ", args.iteration, distributed ? ", torch_dist" : concat(", tp ", c.tp, ", pp ", c.pp)),
                       .shape = args.shape, .weights = ForeignWeights(args.shape), .tables = {}};
    std::int64_t layers = 0;
    for (const Chunk& chunk : c.chunks) layers += chunk.layers;
    if (layers != args.shape.layers)
        fail(folder.string(), ": its files hold ", layers, " layers in ", c.pp, c.pp == 1 ? " stage" : " stages", ", but its args say ", args.shape.layers,
             "; a rank's folder is missing, or is of another run");
    place_weights(model, c, args);
    model.weights.finish(folder.string(), c.tables, options.allow_unexpected, options.warn);
    model.tables = std::move(c.tables);
    model.torch = std::move(c.torch);
    for (const fs::path& place : {folder, fs::weakly_canonical(folder).parent_path()})
        for (const char* file : {"tokenizer.json", "tokenizer.model"})
            if (model.tokenizer_from.empty() && fs::exists(place / file)) model.tokenizer_from = place;
    return model;
}

}  // namespace keel
