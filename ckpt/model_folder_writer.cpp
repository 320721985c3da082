// The writing half of ckpt/model_folder.h.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>

#include "ckpt/model_folder.h"
#include "ckpt/params.h"
#include "ckpt/safetensors.h"
#include "ckpt/strict_json.h"
#include "kernels/base/error.h"
#include "kernels/base/file.h"

namespace keel {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t block_elements = std::int64_t{1} << 20;

constexpr std::array tokenizer_files{
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json",     "merges.txt",      "chat_template.jinja",   "chat_template.json"};
constexpr std::array carried_files = [] {
    std::array<const char*, tokenizer_files.size() + 2> files{"config.json", "generation_config.json"};
    std::copy(tokenizer_files.begin(), tokenizer_files.end(), files.begin() + 2);
    return files;
}();

// A folder that disappears unless it is published.
class TemporaryFolder {
public:
    explicit TemporaryFolder(const fs::path& target) : target_(target) {
        if (!target_.has_filename()) target_ = target_.parent_path();  // "out/" is "out"
        std::error_code error;
        if (fs::exists(target_) && !(fs::is_directory(target_) && fs::is_empty(target_)))
            fail(target_.string(), " exists and is not an empty folder; name a new one");
        const fs::path parent = target_.has_parent_path() ? target_.parent_path() : fs::path(".");
        fs::create_directories(parent, error);
        if (error) fail("cannot make folder ", parent.string(), ": ", error.message());
        path_ = temporary_beside(target_);
        if (!fs::create_directory(path_, error)) fail("cannot make folder ", path_.string(), ": ", error.message());
    }
    ~TemporaryFolder() {
        std::error_code ignored;
        if (!path_.empty()) fs::remove_all(path_, ignored);
    }
    const fs::path& path() const { return path_; }

    void publish() {
        sync_directory(path_);
        if (std::rename(path_.c_str(), target_.c_str()) != 0)
            fail("cannot rename ", path_.string(), " to ", target_.string(), ": ", std::strerror(errno));
        path_.clear();
        sync_directory(target_.has_parent_path() ? target_.parent_path() : fs::path("."));
    }

private:
    fs::path target_, path_;
};

// Copies what is there, byte for byte, and tells tools which class reads a lone tokenizer.json.
void write_tokenizer_files(const fs::path& folder, const fs::path& from, const ModelShape& shape) {
    if (from.empty()) return;
    const bool single = fs::is_regular_file(from);
    if (!single && !fs::is_directory(from)) fail("no tokenizer at ", from.string());
    bool any = false;
    if (single) {
        write_file_atomically(folder / "tokenizer.json", read_file(from));
        any = true;
    } else {
        for (const char* file : tokenizer_files) {
            if (!fs::exists(from / file)) continue;
            write_file_atomically(folder / file, read_file(from / file));
            any = true;
        }
        if (fs::exists(from / "generation_config.json"))
            write_file_atomically(folder / "generation_config.json", read_file(from / "generation_config.json"));
    }
    if (!any) fail("no tokenizer file in ", from.string(), "; looked for tokenizer.json, tokenizer.model, vocab.json");
    if (fs::exists(folder / "tokenizer.json") && !fs::exists(folder / "tokenizer_config.json")) {
        Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"}};
        if (shape.max_position > 0) config["model_max_length"] = shape.max_position;
        write_file_atomically(folder / "tokenizer_config.json", config.dump(2) + "\n");
    }
}

void write_generation_config(const fs::path& folder, const ModelShape& shape) {
    if (fs::exists(folder / "generation_config.json")) return;
    Json config = Json::object();
    if (shape.bos_id) config["bos_token_id"] = *shape.bos_id;
    if (shape.eos_ids.size() == 1) config["eos_token_id"] = shape.eos_ids[0];
    if (shape.eos_ids.size() > 1) config["eos_token_id"] = shape.eos_ids;
    if (shape.pad_id) config["pad_token_id"] = *shape.pad_id;
    write_file_atomically(folder / "generation_config.json", config.dump(2) + "\n");
}

}  // namespace

std::span<const char* const> files_beside_weights() { return carried_files; }

void save_model_folder(const fs::path& folder, const ModelShape& shape, std::span<const NamedTensor> params,
                       const SaveFolderOptions& options) {
    const ParamMap by_name = check_params(shape, params);
    const auto read = [&](const std::string& name, std::int64_t first, std::int64_t count, Dtype to, std::byte* out) {
        const NamedTensor& param = *by_name.at(name);
        convert(stored(param.dtype), param.data + first * size_bytes(param.dtype), to, out, count);
    };
    save_model_folder(folder, shape, read, options);
}

void save_model_folder(const fs::path& folder, const ModelShape& shape, const ParamReader& read,
                       const SaveFolderOptions& options) {
    ModelShape written = shape;
    written.dtype = short_name(options.dtype);
    const std::string config = model_config_text(written);

    std::vector<TensorSource> sources;
    for (const TensorSlice& slice : tensor_slices(shape)) {
        const auto produce = [&read, slice, dtype = options.dtype](const ByteSink& out) {
            const std::int64_t begin = slice.row_begin * slice.cols, count = slice.rows * slice.cols;
            std::vector<std::byte> block(static_cast<std::size_t>(std::min(block_elements, count) * size_bytes(dtype)));
            for (std::int64_t done = 0; done < count; done += block_elements) {
                const std::int64_t now = std::min(block_elements, count - done);
                read(slice.param, begin + done, now, dtype, block.data());
                out(std::span(block).first(static_cast<std::size_t>(now * size_bytes(dtype))));
            }
        };
        sources.push_back({slice.hf_name, stored(options.dtype), slice.hf_shape(), produce});
    }
    TemporaryFolder out(folder);
    write_file_atomically(out.path() / "config.json", config);
    write_tokenizer_files(out.path(), options.tokenizer_from, shape);
    write_generation_config(out.path(), shape);
    write_safetensors_set(out.path(), std::move(sources), options.shard_limit_bytes);
    out.publish();
}

}  // namespace keel
