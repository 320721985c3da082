// ckpt/safetensors.h: safetensors files, read strictly and written canonically; single files and sharded sets.
//
// A file is u64 n, n bytes of JSON, then the tensors' bytes back to back. Whatever a header could lie about is checked
// before its first tensor is used: every failure names the file and the tensor. Memory: the header, and one block while
// reading. Data may lie at odd addresses; nothing here casts a pointer into the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/tensor.h"
#include "kernels/base/file.h"

namespace keel {

struct StoredTensor {
    std::string name;
    StoredDtype dtype;
    std::vector<std::int64_t> shape;
    std::int64_t begin, end;  // bytes, counted from the end of the header

    std::int64_t elements() const { return element_count(shape); }
    std::int64_t size_bytes() const { return end - begin; }
};

struct SafetensorsHeader {
    std::vector<StoredTensor> tensors;  // in the order of their bytes
    std::map<std::string, std::string> metadata;
    std::int64_t data_offset = 0;  // bytes from the start of the file to the first tensor
};

// The first bytes of a file, up to the end of its header; 8 or fewer if its length cannot be true, which the parser then
// says.
std::vector<std::byte> read_safetensors_start(const InputFile& file);

// `file_start` holds the first bytes of a file of `file_size_bytes` bytes, at least up to the end of the header.
// `file` is the name that messages use.
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file_start, std::int64_t file_size_bytes,
                                           const std::string& file);

class SafetensorsFile {
public:
    explicit SafetensorsFile(const std::filesystem::path& path);

    const std::filesystem::path& path() const { return file_.path(); }
    const SafetensorsHeader& header() const { return header_; }
    const std::vector<StoredTensor>& tensors() const { return header_.tensors; }
    const StoredTensor* find(std::string_view name) const;  // nullptr if absent

    // The tensor's bytes from `offset` on, as stored.
    void read_bytes(const StoredTensor& tensor, std::int64_t offset, std::span<std::byte> out) const;

    // Elements [first, first + count) of the flat tensor, converted to `to`.
    void read(const StoredTensor& tensor, std::int64_t first, std::int64_t count, Dtype to, std::byte* out) const;

private:
    InputFile file_;
    SafetensorsHeader header_;
    std::map<std::string, std::size_t, std::less<>> by_name_;
};

// The weights of a folder: model.safetensors, or the shards that model.safetensors.index.json lists (preferred, and
// said so).
class SafetensorsSet {
public:
    SafetensorsSet(const std::filesystem::path& folder, const WarningSink& warn);

    struct Entry {
        const SafetensorsFile* file;
        const StoredTensor* tensor;
    };
    const std::vector<SafetensorsFile>& files() const { return files_; }
    const std::map<std::string, Entry, std::less<>>& tensors() const { return tensors_; }
    std::optional<Entry> find(std::string_view name) const;

private:
    void open_sharded(const std::filesystem::path& index, const WarningSink& warn);

    std::vector<SafetensorsFile> files_;  // never grows after construction: entries point into it
    std::map<std::string, Entry, std::less<>> tensors_;
};

// One tensor to write. `produce` gives its bytes to the sink, in order and in pieces of any size.
struct TensorSource {
    std::string name;
    StoredDtype dtype;
    std::vector<std::int64_t> shape;
    std::function<void(const ByteSink&)> produce;

    std::int64_t size_bytes() const { return element_count(shape) * size_bits(dtype) / 8; }
};

// A source that converts `count` elements of `data` block by block while they are written.
std::function<void(const ByteSink&)> converted_bytes(const std::byte* data, Dtype from, Dtype to, std::int64_t count);

// Writes a whole file to `out`: tensors sorted by element size, largest first, then by name; header padded to 8 bytes.
// `metadata` gets "format": "pt", which several readers demand.
void write_safetensors(std::vector<TensorSource> tensors, std::map<std::string, std::string> metadata,
                       const ByteSink& out);
void write_safetensors_file(const std::filesystem::path& path, std::vector<TensorSource> tensors,
                            std::map<std::string, std::string> metadata = {});

// Writes model.safetensors, or shards of at most `shard_limit_bytes` and their index, into `folder`. Tensors stay in
// the given order; one that alone passes the limit gets a shard of its own.
void write_safetensors_set(const std::filesystem::path& folder, std::vector<TensorSource> tensors,
                           std::int64_t shard_limit_bytes);

}  // namespace keel
