// ckpt/model_folder.h: model folders in and out: config.json, safetensors, tokenizer files.
//
// A folder holds q, k, v and gate, up apart (Phi-3: fused); the engine holds them fused. `tensor_slices` is the one map
// between the two: rows of a file tensor are rows of a parameter. The engine's parameters are
//     embed [vocab, hidden]   final_norm [hidden]   head [vocab, hidden] (absent when tied)   and for each layer i
//     layers.i.attn_norm [hidden]     layers.i.qkv [(heads + 2 kv_heads) head_dim, hidden]: q rows, k rows, v rows
//     layers.i.qkv_bias [(heads + 2 kv_heads) head_dim] (Qwen2)     layers.i.q_norm, layers.i.k_norm [head_dim] (Qwen3)
//     or [heads head_dim] and [kv_heads head_dim] (OLMo-2)
//     layers.i.out [hidden, heads head_dim]     layers.i.ffn_norm [hidden]
//     layers.i.gate_up [2 ffn, hidden]: gate rows, up rows     layers.i.down [hidden, ffn]
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "ckpt/model_config.h"
#include "ckpt/piece.h"
#include "ckpt/safetensors.h"
#include "ckpt/tensor.h"

namespace keel {

// File tensor `hf_name` [rows, cols] (or [rows] where is_vector, and then cols is 1) is rows [row_begin, row_begin +
// rows) of parameter `param`.
struct TensorSlice {
    std::string hf_name, param;
    std::int64_t row_begin, rows, cols;
    bool is_vector;

    std::vector<std::int64_t> hf_shape() const;
};

struct ParamSpec {
    std::string name;
    std::vector<std::int64_t> shape;
};

std::vector<TensorSlice> tensor_slices(const ModelShape& shape);  // in the order of the forward pass
std::vector<ParamSpec> param_specs(const ModelShape& shape);      // the same memory as the engine names it
std::int64_t parameter_count(const ModelShape& shape);

// Shape of the model in `folder`, from config.json; the dtype from the first weight where config.json has none.
ModelShape read_model_shape(const std::filesystem::path& folder);

struct LoadWeightsOptions {
    bool allow_unexpected = false;  // tensors that the shape does not know are then only warned about
    WarningSink warn;
};
// The weights of a folder as the engine's parameters. Missing, unexpected and misshapen tensors are refused with the
// full list before any byte is read. Memory: one block.
class FolderWeights {
public:
    FolderWeights(const std::filesystem::path& folder, const ModelShape& shape, const LoadWeightsOptions& options = {});
    // Fills rectangles of parameters, converting to each one's dtype: only the rows that they touch are read.
    void read(std::span<const TensorPiece> pieces) const;

private:
    SafetensorsSet set_;
    std::map<std::string, std::vector<std::int64_t>, std::less<>> shapes_;  // of the parameters
    std::map<std::string, std::vector<TensorSlice>, std::less<>> slices_;   // by parameter
};

// Fills every parameter. `params` must be exactly param_specs(shape), in any order.
void load_weights(const std::filesystem::path& folder, const ModelShape& shape, std::span<const NamedTensor> params,
                  const LoadWeightsOptions& options = {});

// Files of a model folder that are no weights: its configurations and the tokenizer's files. Carried along inside a
// checkpoint, they come out of it again.
std::span<const char* const> files_beside_weights();

struct SaveFolderOptions {
    std::filesystem::path tokenizer_from;  // folder or tokenizer.json whose tokenizer files are copied; empty: none
    Dtype dtype = Dtype::bf16;
    std::int64_t shard_limit_bytes = 5'000'000'000;
};
// Writes a new folder beside its final place and renames it when complete. `folder` must not exist, or be empty.
void save_model_folder(const std::filesystem::path& folder, const ModelShape& shape,
                       std::span<const NamedTensor> params, const SaveFolderOptions& options = {});

// The same from parameters that are not in memory: called for elements [first, first + count) of a parameter, to be
// converted to `to`. Memory: one block.
using ParamReader =
    std::function<void(const std::string& param, std::int64_t first, std::int64_t count, Dtype to, std::byte* out)>;
void save_model_folder(const std::filesystem::path& folder, const ModelShape& shape, const ParamReader& read,
                       const SaveFolderOptions& options = {});

}  // namespace keel
