// ckpt/model_folder.h: the map of tensors, and reading. Writing is in model_folder_writer.cpp.
#include "ckpt/model_folder.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "ckpt/checkpoint_tensors.h"
#include "ckpt/model_family.h"
#include "ckpt/params.h"
#include "ckpt/safetensors.h"
#include "kernels/base/error.h"

namespace keel {
namespace {

constexpr std::int64_t block_elements = std::int64_t{1} << 20;

// Tables that old files carry and every reader computes anew.
bool is_rotary_table(std::string_view name) {
    return name.ends_with(".rotary_emb.inv_freq") || name.ends_with(".rotary_emb.cos_cached") ||
           name.ends_with(".rotary_emb.sin_cached");
}

// A tied model may carry a copy of the embedding under the head's name. A copy that differs was trained apart.
void check_tied_head(const SafetensorsSet& set, const SafetensorsSet::Entry& head, const std::string& folder) {
    const auto embed = set.find("model.embed_tokens.weight");
    const auto refuse = [&](const std::string& how) {
        fail(folder, ": tie_word_embeddings is true, but lm_head.weight is not model.embed_tokens.weight: ", how,
             "; set it to false to train them apart");
    };
    if (!embed) return;  // reported with all that is missing
    if (head.tensor->shape != embed->tensor->shape)
        refuse(shape_text(head.tensor->shape) + " against " + shape_text(embed->tensor->shape));
    std::vector<std::byte> a, b;
    const std::int64_t count = head.tensor->elements();
    for (std::int64_t first = 0; first < count; first += block_elements) {
        const std::int64_t now = std::min(block_elements, count - first);
        a.resize(static_cast<std::size_t>(now) * 4);
        b.resize(a.size());
        head.file->read(*head.tensor, first, now, Dtype::f32, a.data());
        embed->file->read(*embed->tensor, first, now, Dtype::f32, b.data());
        if (a != b) {
            const auto at = std::mismatch(a.begin(), a.end(), b.begin()).first - a.begin();
            refuse(concat("element ", first + at / 4, " differs"));
        }
    }
}

// Everything that is wrong between the files and the shape, in one message.
void check_tensors(const SafetensorsSet& set, const ModelShape& shape, const std::vector<TensorSlice>& slices,
                   const std::string& folder, const LoadWeightsOptions& options) {
    std::string wrong;
    std::set<std::string_view> expected;
    for (const TensorSlice& slice : slices) {
        expected.insert(slice.hf_name);
        const auto found = set.find(slice.hf_name);
        if (!found) {
            wrong += "\n  missing    " + slice.hf_name + " " + shape_text(slice.hf_shape());
            if (slice.hf_name == "lm_head.weight")
                wrong += " (tie_word_embeddings is false or absent, so the output matrix must be in the files)";
        } else if (found->tensor->shape != slice.hf_shape()) {
            wrong += "\n  misshapen  " + slice.hf_name + " is " + shape_text(found->tensor->shape) +
                     ", config.json makes it " + shape_text(slice.hf_shape());
        } else if (!is_convertible(found->tensor->dtype)) {
            wrong += "\n  unreadable " + slice.hf_name + " is " + std::string(name(found->tensor->dtype)) +
                     "; keel loads F32, BF16, F16, F64, F8_E4M3 and F8_E5M2";
        }
    }
    for (const auto& [tensor, entry] : set.tensors()) {
        if (expected.contains(tensor) || is_rotary_table(tensor)) continue;
        if (tensor == "lm_head.weight" && shape.tied) continue;
        const std::string line = "unexpected " + tensor + " " + shape_text(entry.tensor->shape);
        if (!options.allow_unexpected)
            wrong += "\n  " + line;
        else if (options.warn)
            options.warn(folder + ": " + line + " is not used");
    }
    if (!wrong.empty()) fail(folder, ": the weights do not fit config.json:", wrong);
    if (const auto head = set.find("lm_head.weight"); shape.tied && head) check_tied_head(set, *head, folder);
}

// What `piece` has in common with the parameter's rows that `slice` holds: whole rows are read, of one row just that
// part.
void read_slice(const SafetensorsSet::Entry& from, const TensorSlice& slice, const TensorPiece& piece,
                std::vector<std::byte>& block) {
    const Rect rect =
        slice.is_vector ? Rect{0, 1, slice.row_begin, slice.rows} : Rect{slice.row_begin, slice.rows, 0, slice.cols};
    const Rect part = intersect(rect, piece.rect());
    if (part.empty()) return;
    const bool line = part.rows == 1;
    const std::int64_t element = size_bits(from.tensor->dtype) / 8;
    std::int64_t first = (part.row - rect.row) * rect.cols + (line ? part.col - rect.col : 0);
    const std::int64_t end = first + (line ? part.cols : part.rows * rect.cols);
    for (; first < end; first += block_elements) {
        const std::int64_t now = std::min(block_elements, end - first);
        block.resize(static_cast<std::size_t>(now * element));
        from.file->read_bytes(*from.tensor, first * element, block);
        scatter(rect, first, now, from.tensor->dtype, block.data(), piece);
    }
}

}  // namespace

std::vector<std::int64_t> TensorSlice::hf_shape() const {
    return is_vector ? std::vector{rows} : std::vector{rows, cols};
}

std::vector<TensorSlice> tensor_slices(const ModelShape& s) {
    std::vector<TensorSlice> slices;
    const auto matrix = [&](std::string hf, std::string param, std::int64_t begin, std::int64_t rows,
                            std::int64_t cols) {
        slices.push_back({std::move(hf), std::move(param), begin, rows, cols, false});
    };
    const auto vector = [&](std::string hf, std::string param, std::int64_t begin, std::int64_t rows) {
        slices.push_back({std::move(hf), std::move(param), begin, rows, 1, true});
    };
    const std::int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
    const bool fused = traits(s.family).fused;
    matrix("model.embed_tokens.weight", "embed", 0, s.vocab, s.hidden);
    for (std::int64_t i = 0; i < s.layers; ++i) {
        const std::string hf = "model.layers." + std::to_string(i) + ".", layer = "layers." + std::to_string(i) + ".";
        vector(hf + (s.post_norm ? "post_attention" : "input") + "_layernorm.weight", layer + "attn_norm", 0, s.hidden);
        if (fused) {
            matrix(hf + "self_attn.qkv_proj.weight", layer + "qkv", 0, q + 2 * kv, s.hidden);
        } else {
            matrix(hf + "self_attn.q_proj.weight", layer + "qkv", 0, q, s.hidden);
            matrix(hf + "self_attn.k_proj.weight", layer + "qkv", q, kv, s.hidden);
            matrix(hf + "self_attn.v_proj.weight", layer + "qkv", q + kv, kv, s.hidden);
        }
        if (s.qkv_bias) {
            vector(hf + "self_attn.q_proj.bias", layer + "qkv_bias", 0, q);
            vector(hf + "self_attn.k_proj.bias", layer + "qkv_bias", q, kv);
            vector(hf + "self_attn.v_proj.bias", layer + "qkv_bias", q + kv, kv);
        }
        if (s.qk_norm) {
            vector(hf + "self_attn.q_norm.weight", layer + "q_norm", 0, s.qk_norm_whole ? q : s.head_dim);
            vector(hf + "self_attn.k_norm.weight", layer + "k_norm", 0, s.qk_norm_whole ? kv : s.head_dim);
        }
        matrix(hf + "self_attn.o_proj.weight", layer + "out", 0, s.hidden, q);
        vector(hf + (s.post_norm ? "post_feedforward" : "post_attention") + "_layernorm.weight", layer + "ffn_norm", 0,
               s.hidden);
        if (fused) {
            matrix(hf + "mlp.gate_up_proj.weight", layer + "gate_up", 0, 2 * s.ffn, s.hidden);
        } else {
            matrix(hf + "mlp.gate_proj.weight", layer + "gate_up", 0, s.ffn, s.hidden);
            matrix(hf + "mlp.up_proj.weight", layer + "gate_up", s.ffn, s.ffn, s.hidden);
        }
        matrix(hf + "mlp.down_proj.weight", layer + "down", 0, s.hidden, s.ffn);
    }
    vector("model.norm.weight", "final_norm", 0, s.hidden);
    if (!s.tied) matrix("lm_head.weight", "head", 0, s.vocab, s.hidden);
    return slices;
}

std::vector<ParamSpec> param_specs(const ModelShape& shape) {
    std::vector<ParamSpec> params;
    for (const TensorSlice& slice : tensor_slices(shape)) {
        if (slice.row_begin == 0)
            params.push_back({slice.param, slice.hf_shape()});
        else
            params.back().shape[0] += slice.rows;  // parts of one parameter follow each other
    }
    return params;
}

std::int64_t parameter_count(const ModelShape& shape) {
    std::int64_t count = 0;
    for (const TensorSlice& slice : tensor_slices(shape)) count += slice.rows * slice.cols;
    return count;
}

ModelShape read_model_shape(const std::filesystem::path& folder) {
    std::error_code ignored;
    if (!std::filesystem::is_directory(folder, ignored)) fail("no model folder at ", folder.string());
    ModelShape shape = parse_model_config(read_file(folder / "config.json"), (folder / "config.json").string());
    if (shape.dtype.empty()) {
        const SafetensorsSet set(folder, {});
        const auto first = set.find("model.embed_tokens.weight");
        const auto dtype = first ? first->tensor->dtype : StoredDtype::F32;
        shape.dtype = dtype == StoredDtype::BF16 ? "bf16" : dtype == StoredDtype::F16 ? "f16" : "f32";
    }
    return shape;
}

ParamMap check_params(const ModelShape& shape, std::span<const NamedTensor> params) {
    ParamMap by_name;
    for (const NamedTensor& p : params)
        if (!by_name.emplace(p.name, &p).second) fail("parameter \"", p.name, "\" is given twice");
    const auto specs = param_specs(shape);
    for (const ParamSpec& spec : specs) {
        const auto at = by_name.find(spec.name);
        if (at == by_name.end())
            fail("parameter \"", spec.name, "\" ", shape_text(spec.shape), " of the model is not given");
        if (at->second->shape != spec.shape)
            fail("parameter \"", spec.name, "\" is ", shape_text(at->second->shape), ", but the model's is ",
                 shape_text(spec.shape));
    }
    if (by_name.size() != specs.size())
        for (const NamedTensor& p : params)
            if (std::none_of(specs.begin(), specs.end(), [&](const ParamSpec& s) { return s.name == p.name; }))
                fail("parameter \"", p.name, "\" is not one of this model");
    return by_name;
}

FolderWeights::FolderWeights(const std::filesystem::path& folder, const ModelShape& shape,
                             const LoadWeightsOptions& options)
    : set_(folder, options.warn) {
    const auto slices = tensor_slices(shape);
    check_tensors(set_, shape, slices, folder.string(), options);
    for (const ParamSpec& spec : param_specs(shape)) shapes_[spec.name] = spec.shape;
    for (const TensorSlice& slice : slices) slices_[slice.param].push_back(slice);
}

void FolderWeights::read(std::span<const TensorPiece> pieces) const {
    std::vector<std::byte> block;
    for (const TensorPiece& p : pieces) {
        const auto shape = shapes_.find(p.name);
        if (shape == shapes_.end()) fail("parameter \"", p.name, "\" is not one of this model");
        if (shape->second != p.shape)
            fail("parameter \"", p.name, "\" is ", shape_text(p.shape), ", but the model's is ",
                 shape_text(shape->second));
        check_piece(p);
        for (const TensorSlice& slice : slices_.find(p.name)->second)
            read_slice(*set_.find(slice.hf_name), slice, p, block);
    }
}

void load_weights(const std::filesystem::path& folder, const ModelShape& shape, std::span<const NamedTensor> params,
                  const LoadWeightsOptions& options) {
    (void)check_params(shape, params);
    FolderWeights(folder, shape, options).read(whole(params));
}

}  // namespace keel
