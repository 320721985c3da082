// ckpt/tensor.h: element types as files spell them, and a named tensor in memory as the engine hands it over.
//
// keel computes with three types (kernels/base/dtype.h); files hold more. Conversion reads unaligned memory, rounds once,
// to nearest even, and keeps NaN a NaN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/dtype.h"

namespace keel {

// The names are the spelling in a safetensors header.
// clang-format off
enum class StoredDtype : std::uint8_t {
    BOOL, U8, I8, F8_E4M3, F8_E5M2, F8_E8M0, F8_E4M3FNUZ, F8_E5M2FNUZ, F4, F6_E2M3, F6_E3M2,
    I16, U16, F16, BF16, I32, U32, F32, I64, U64, F64, C64
};
// clang-format on

std::optional<StoredDtype> parse_stored_dtype(std::string_view name);  // upper case and exact
std::string_view name(StoredDtype dtype);
std::int64_t size_bits(StoredDtype dtype);
StoredDtype stored(Dtype dtype);

// Whether `convert` takes it: F32, BF16, F16, F64, F8_E4M3, F8_E5M2.
bool is_convertible(StoredDtype dtype);

// Converts `count` elements. Neither pointer need be aligned; the ranges may not overlap.
void convert(StoredDtype from, const std::byte* x, Dtype to, std::byte* y, std::int64_t count);

// A parameter or a piece of optimizer state. Row-major and contiguous; somebody else owns the memory.
struct NamedTensor {
    std::string name;
    Dtype dtype;
    std::vector<std::int64_t> shape;
    std::byte* data;
};

std::int64_t element_count(std::span<const std::int64_t> shape);
std::int64_t size_bytes(const NamedTensor& tensor);
std::string shape_text(std::span<const std::int64_t> shape);  // "[2, 3]"

// Receives bytes in order: a file, a hash, both, or memory.
using ByteSink = std::function<void(std::span<const std::byte>)>;

// Told about what is wrong but not fatal, one sentence at a time. May be empty.
using WarningSink = std::function<void(const std::string&)>;

}  // namespace keel
