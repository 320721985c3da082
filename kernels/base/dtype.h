// kernels/base/dtype.h: element types. bf16 and f16 are storage types: arithmetic happens in float.
#pragma once

#include <array>
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

// IEEE half: 11 bits of precision from 2^-14 to 65504, fewer down to 2^-24. float -> f16 rounds to nearest, ties to even,
// subnormals too; what rounds past 65504 is infinity; NaN stays NaN, and becomes quiet. The same bits as the processor's.
struct f16 {
    std::uint16_t bits;

    f16() = default;
    explicit f16(float value) {
        const auto u = std::bit_cast<std::uint32_t>(value);
        const std::uint32_t sign = u >> 16 & 0x8000u, magnitude = u & 0x7fffffffu;
        std::uint32_t half;
        if (magnitude > 0x7f800000u) half = 0x7e00u | (magnitude >> 13 & 0x3ffu);
        else if (magnitude >= 0x477ff000u) half = 0x7c00u;  // 65520, half way to the 65536 that is not there
        else if (magnitude >= 0x38800000u) half = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
        else half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;  // 1/2's ulp is 2^-24
        bits = static_cast<std::uint16_t>(sign | half);
    }
    explicit operator float() const {
        const std::uint32_t sign = (bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
        if (magnitude > 0x7c00u) return std::bit_cast<float>(sign | 0x7fc00000u | magnitude << 13);
        if (magnitude == 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u);
        const float value = magnitude >= 0x400u ? std::bit_cast<float>((magnitude << 13) + 0x38000000u)
                                                : static_cast<float>(magnitude) * 0x1p-24f;
        return sign ? -value : value;
    }
};
static_assert(sizeof(f16) == 2);

// Types a parameter or an activation may have. File formats know more; see ckpt/safetensors.h.
enum class Dtype : std::uint8_t { f32, bf16, f16 };
constexpr std::array<Dtype, 3> all_dtypes{Dtype::f32, Dtype::bf16, Dtype::f16};

constexpr std::int64_t size_bytes(Dtype dtype) { return dtype == Dtype::f32 ? 4 : 2; }
constexpr std::string_view name(Dtype dtype) {
    return dtype == Dtype::f32 ? "float32" : dtype == Dtype::bf16 ? "bfloat16" : "float16";
}
// As flags and the configuration spell it.
constexpr std::string_view short_name(Dtype dtype) {
    return dtype == Dtype::f32 ? "f32" : dtype == Dtype::bf16 ? "bf16" : "f16";
}
// Throws if it names none; who can be given one by a user has checked it before.
inline Dtype dtype_named(std::string_view short_name_of_it) {
    for (const Dtype dtype : all_dtypes)
        if (short_name(dtype) == short_name_of_it) return dtype;
    fail("there is no type \"", short_name_of_it, "\"; it can be bf16, f16 or f32");
}

template <class T> constexpr Dtype dtype_of();
template <> constexpr Dtype dtype_of<float>() { return Dtype::f32; }
template <> constexpr Dtype dtype_of<bf16>() { return Dtype::bf16; }
template <> constexpr Dtype dtype_of<f16>() { return Dtype::f16; }

// body.operator()<T>() with the T of `dtype`.
template <class Body> decltype(auto) with_type(Dtype dtype, Body&& body) {
    switch (dtype) {
        case Dtype::f32: return body.template operator()<float>();
        case Dtype::bf16: return body.template operator()<bf16>();
        case Dtype::f16: break;
    }
    return body.template operator()<f16>();
}

}  // namespace keel
