#include "ckpt/tensor.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/base/error.h"

namespace keel {
namespace {

struct StoredType {
    std::string_view name;
    std::int64_t bits;
};
constexpr std::array<StoredType, 22> stored_types{
    {{"BOOL", 8},        {"U8", 8},          {"I8", 8},    {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8},
     {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F4", 4},    {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"I16", 16},
     {"U16", 16},        {"F16", 16},        {"BF16", 16}, {"I32", 32},    {"U32", 32},    {"F32", 32},
     {"I64", 64},        {"U64", 64},        {"F64", 64},  {"C64", 64}}};
static_assert(stored_types[static_cast<std::size_t>(StoredDtype::C64)].name == "C64");
static_assert(stored_types[static_cast<std::size_t>(StoredDtype::F32)].name == "F32");

float from_e4m3(std::uint8_t b) {
    const int exponent = (b >> 3) & 0xf, fraction = b & 7;
    float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                                    : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
    if (exponent == 15 && fraction == 7) magnitude = std::numeric_limits<float>::quiet_NaN();  // no infinity
    return std::copysign(magnitude, (b & 0x80) ? -1.0f : 1.0f);
}

// Towards zero, with the last bit set if anything was lost: a second rounding, to two bytes, then sees every tie as it is.
float odd_rounded(double x) {
    const auto f = static_cast<float>(x);
    if (std::isnan(x) || static_cast<double>(f) == x) return f;
    auto bits = std::bit_cast<std::uint32_t>(f);
    if (std::fabs(static_cast<double>(f)) > std::fabs(x)) --bits;
    return std::bit_cast<float>(bits | 1u);
}

template <class T>
T load(const std::byte* x) {
    T value;
    std::memcpy(&value, x, sizeof value);
    return value;
}

template <class From, class To, class Rule>
void each(const std::byte* x, std::byte* y, std::int64_t count, Rule rule) {
    for (std::int64_t i = 0; i < count; ++i) {
        const To value = rule(load<From>(x + i * static_cast<std::int64_t>(sizeof(From))));
        std::memcpy(y + i * static_cast<std::int64_t>(sizeof(To)), &value, sizeof value);
    }
}

template <class To>
void convert_to(StoredDtype from, const std::byte* x, std::byte* y, std::int64_t count) {
    const auto narrow = [](float f) { return static_cast<To>(f); };
    switch (from) {
        case StoredDtype::F32:
            return each<float, To>(x, y, count, narrow);
        case StoredDtype::BF16:
            return each<bf16, To>(x, y, count, [=](bf16 b) { return narrow(static_cast<float>(b)); });
        case StoredDtype::F16:
            return each<f16, To>(x, y, count, [=](f16 h) { return narrow(static_cast<float>(h)); });
        case StoredDtype::F64:
            return each<double, To>(x, y, count, [=](double d) {
                if constexpr (std::is_same_v<To, float>)
                    return static_cast<float>(d);
                else
                    return narrow(odd_rounded(d));
            });
        case StoredDtype::F8_E4M3:
            return each<std::uint8_t, To>(x, y, count, [=](auto b) { return narrow(from_e4m3(b)); });
        case StoredDtype::F8_E5M2:  // the upper half of an F16
            return each<std::uint8_t, To>(x, y, count, [=](auto b) {
                return narrow(static_cast<float>(std::bit_cast<f16>(static_cast<std::uint16_t>(b << 8))));
            });
        default:
            fail("cannot convert from ", name(from), "; keel loads F32, BF16, F16, F64, F8_E4M3 and F8_E5M2");
    }
}

}  // namespace

std::optional<StoredDtype> parse_stored_dtype(std::string_view text) {
    for (std::size_t i = 0; i < stored_types.size(); ++i)
        if (stored_types[i].name == text) return static_cast<StoredDtype>(i);
    return std::nullopt;
}

std::string_view name(StoredDtype dtype) { return stored_types[static_cast<std::size_t>(dtype)].name; }
std::int64_t size_bits(StoredDtype dtype) { return stored_types[static_cast<std::size_t>(dtype)].bits; }
StoredDtype stored(Dtype dtype) {
    return dtype == Dtype::f32 ? StoredDtype::F32 : dtype == Dtype::bf16 ? StoredDtype::BF16 : StoredDtype::F16;
}

bool is_convertible(StoredDtype dtype) {
    switch (dtype) {
        case StoredDtype::F32:
        case StoredDtype::BF16:
        case StoredDtype::F16:
        case StoredDtype::F64:
        case StoredDtype::F8_E4M3:
        case StoredDtype::F8_E5M2:
            return true;
        default:
            return false;
    }
}

void convert(StoredDtype from, const std::byte* x, Dtype to, std::byte* y, std::int64_t count) {
    if (from == stored(to)) {
        if (count > 0) std::memcpy(y, x, static_cast<std::size_t>(count * size_bytes(to)));
    } else {
        with_type(to, [&]<class To>() { convert_to<To>(from, x, y, count); });
    }
}

std::int64_t element_count(std::span<const std::int64_t> shape) {
    std::int64_t n = 1;
    for (const std::int64_t d : shape) n *= d;
    return n;
}

std::int64_t size_bytes(const NamedTensor& tensor) { return element_count(tensor.shape) * size_bytes(tensor.dtype); }

std::string shape_text(std::span<const std::int64_t> shape) {
    std::string text = "[";
    for (std::size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
    return text + "]";
}

}  // namespace keel
