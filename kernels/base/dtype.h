// kernels/base/dtype.h: element types. bf16 is a storage type: arithmetic happens in float.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

#include "kernels/base/error.h"

namespace keel {

// Upper half of an IEEE float. float -> bf16 rounds to nearest, ties to even; NaN stays NaN.
struct bf16 {
    std::uint16_t bits;

    bf16() = default;
    explicit bf16(float value) {
        const auto u = std::bit_cast<std::uint32_t>(value);
        bits = (u & 0x7fffffffu) > 0x7f800000u ? static_cast<std::uint16_t>((u >> 16) | 0x40u)
                                               : static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
    }
    explicit operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
};
static_assert(sizeof(bf16) == 2);

// Types a parameter or an activation may have. File formats know more; see ckpt/safetensors.h.
enum class Dtype : std::uint8_t { f32, bf16 };

constexpr std::int64_t size_bytes(Dtype dtype) { return dtype == Dtype::f32 ? 4 : 2; }
constexpr std::string_view name(Dtype dtype) { return dtype == Dtype::f32 ? "float32" : "bfloat16"; }

template <class T> constexpr Dtype dtype_of();
template <> constexpr Dtype dtype_of<float>() { return Dtype::f32; }
template <> constexpr Dtype dtype_of<bf16>() { return Dtype::bf16; }

}  // namespace keel
