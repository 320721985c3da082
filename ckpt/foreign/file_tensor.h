// ckpt/foreign/file_tensor.h: a tensor inside a file of another system: where its rows lie, and of what type.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ckpt/tensor.h"
#include "kernels/base/file.h"

namespace keel {

// Row-major; each row is contiguous, and rows may lie apart. A vector has rows of one element.
struct FileTensor {
    std::shared_ptr<const InputFile> file;
    StoredDtype dtype;
    std::vector<std::int64_t> shape;
    std::int64_t begin;       // of its first element, in bytes
    std::int64_t row_stride;  // elements from one row to the next

    std::int64_t rows() const { return shape.empty() ? 1 : shape[0]; }
    std::int64_t row_elements() const { return shape.size() < 2 ? 1 : element_count(shape) / (rows() == 0 ? 1 : rows()); }
};

// The tensors of one file, or of one rank.
struct TensorTable {
    std::string where;  // for messages: the file
    std::map<std::string, FileTensor, std::less<>> tensors;

    const FileTensor* find(std::string_view name) const {
        const auto at = tensors.find(name);
        return at == tensors.end() ? nullptr : &at->second;
    }
};

}  // namespace keel
