// Element types of files, and conversion with one rounding.
#include "ckpt/tensor.h"

#include <bit>
#include <cmath>
#include <limits>

#include "tests/ckpt/support.h"

namespace keel::test {
namespace {

// One element through `convert`, at an odd address on both sides.
template <class Bits>
std::uint16_t to_bf16(StoredDtype from, Bits bits) {
    std::byte in[16], out[16];
    std::memcpy(in + 1, &bits, sizeof bits);
    convert(from, in + 1, Dtype::bf16, out + 1, 1);
    std::uint16_t result;
    std::memcpy(&result, out + 1, 2);
    return result;
}
template <class Bits>
float to_f32(StoredDtype from, Bits bits) {
    std::byte in[16], out[16];
    std::memcpy(in + 1, &bits, sizeof bits);
    convert(from, in + 1, Dtype::f32, out + 1, 1);
    float result;
    std::memcpy(&result, out + 1, 4);
    return result;
}

TEST(Convert, FloatToBf16RoundsToNearestEvenAndKeepsNan) {
    const std::pair<std::uint32_t, std::uint16_t> vectors[] = {
        {0x3dcccccd, 0x3dcd}, {0x3f808000, 0x3f80}, {0x40490000, 0x4049}, {0x3f818000, 0x3f82}, {0x477fe000, 0x4780},
        {0x7fc00000, 0x7fc0}, {0x000116c2, 0x0001}, {0x7f7f0000, 0x7f7f}, {0x7f800001, 0x7fc0}, {0xff800000, 0xff80}};
    for (const auto& [f, b] : vectors) EXPECT_EQ(to_bf16(StoredDtype::F32, f), b) << std::hex << f;
}

TEST(Convert, DoubleToBf16RoundsOnce) {
    // Just above a tie of bf16 by less than a float can hold: rounding to float first would land on the tie and go
    // down.
    EXPECT_EQ(to_bf16(StoredDtype::F64, 1.00390625 + 0x1p-40), 0x3f81);
    EXPECT_EQ(to_bf16(StoredDtype::F64, 1.01171875 - 0x1p-40), 0x3f81);  // and here would go up
    EXPECT_EQ(to_bf16(StoredDtype::F64, 1.00390625), 0x3f80);            // the tie itself goes to even
    EXPECT_EQ(to_bf16(StoredDtype::F64, -1.00390625 - 0x1p-40), 0xbf81);
    EXPECT_EQ(to_bf16(StoredDtype::F64, 1e300), 0x7f80);
    EXPECT_EQ(to_bf16(StoredDtype::F64, std::numeric_limits<double>::quiet_NaN()) & 0x7fc0, 0x7fc0);
    EXPECT_EQ(to_f32(StoredDtype::F64, 0.1), 0.1f);
}

TEST(Convert, ToF16RoundsOnce) {
    const auto to_f16 = [](StoredDtype from, auto value) {
        f16 out;
        convert(from, reinterpret_cast<const std::byte*>(&value), Dtype::f16, reinterpret_cast<std::byte*>(&out), 1);
        return out.bits;
    };
    EXPECT_EQ(to_f16(StoredDtype::F64, 1 + 0x1p-11 + 0x1p-40), 0x3c01);  // rounded to float first, these two would be ties
    EXPECT_EQ(to_f16(StoredDtype::F64, 1 + 3 * 0x1p-11 - 0x1p-40), 0x3c01);
    EXPECT_EQ(to_f16(StoredDtype::F64, 1 + 0x1p-11), 0x3c00);
    EXPECT_EQ(to_f16(StoredDtype::F64, 0x1p-25 + 0x1p-70), 0x0001);
    EXPECT_EQ(to_f16(StoredDtype::F64, 1e300), 0x7c00);
    EXPECT_EQ(to_f16(StoredDtype::F32, 65519.0f), 0x7bff);
    EXPECT_EQ(to_f16(StoredDtype::BF16, bf16(-3.0f)), 0xc200);
    EXPECT_EQ(to_f16(StoredDtype::F16, std::uint16_t{0x7d01}), 0x7d01);  // moved, not converted: a signalling NaN stays one
}

TEST(Convert, HalfToFloatIsExactForEveryPattern) {
    for (std::uint32_t h = 0; h < 0x10000; ++h) {
        const float got = to_f32(StoredDtype::F16, static_cast<std::uint16_t>(h));
        const int exponent = static_cast<int>(h >> 10) & 31, fraction = static_cast<int>(h & 1023);
        const double magnitude = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
        if (exponent == 31 && fraction != 0) {
            EXPECT_TRUE(std::isnan(got)) << h;
        } else if (exponent == 31) {
            EXPECT_EQ(got, (h & 0x8000) ? -INFINITY : INFINITY);
        } else {
            EXPECT_EQ(static_cast<double>(got), (h & 0x8000) ? -magnitude : magnitude) << h;
            EXPECT_EQ(std::signbit(got), (h & 0x8000) != 0);
        }
    }
}

TEST(Convert, EightBitFloatsTakeTheirPublishedValues) {
    const auto e4m3 = [](std::uint8_t b) { return to_f32(StoredDtype::F8_E4M3, b); };
    EXPECT_EQ(e4m3(0x38), 1.0f);
    EXPECT_EQ(e4m3(0x7e), 448.0f);
    EXPECT_EQ(e4m3(0x01), 0x1p-9f);
    EXPECT_EQ(e4m3(0xb8), -1.0f);
    EXPECT_TRUE(std::isnan(e4m3(0x7f)));
    const auto e5m2 = [](std::uint8_t b) { return to_f32(StoredDtype::F8_E5M2, b); };
    EXPECT_EQ(e5m2(0x3c), 1.0f);
    EXPECT_EQ(e5m2(0x7b), 57344.0f);
    EXPECT_EQ(e5m2(0x7c), INFINITY);
}

TEST(Convert, RefusesTypesThatAreNoWeights) {
    std::byte bytes[8]{};
    expect_error([&] { convert(StoredDtype::I32, bytes, Dtype::f32, bytes + 4, 1); }, {"cannot convert from I32"});
    EXPECT_FALSE(is_convertible(StoredDtype::I64));
    EXPECT_FALSE(is_convertible(StoredDtype::F4));
    EXPECT_TRUE(is_convertible(StoredDtype::F16));
}

TEST(StoredDtype, NamesAndSizesAreThoseOfTheFormat) {
    const std::pair<const char*, std::int64_t> table[] = {
        {"BOOL", 8},        {"U8", 8},   {"I8", 8},      {"F8_E4M3", 8},     {"F8_E5M2", 8}, {"F8_E8M0", 8},
        {"F8_E4M3FNUZ", 8}, {"F16", 16}, {"BF16", 16},   {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},
        {"I32", 32},        {"U32", 32}, {"F32", 32},    {"I64", 64},        {"U64", 64},    {"F64", 64},
        {"C64", 64},        {"F4", 4},   {"F6_E2M3", 6}, {"F6_E3M2", 6}};
    for (const auto& [text, bits] : table) {
        const auto dtype = parse_stored_dtype(text);
        ASSERT_TRUE(dtype) << text;
        EXPECT_EQ(name(*dtype), text);
        EXPECT_EQ(size_bits(*dtype), bits) << text;
    }
    for (const char* text : {"f32", "F31", "", "BF16 ", "bfloat16"}) EXPECT_FALSE(parse_stored_dtype(text)) << text;
}

}  // namespace
}  // namespace keel::test
