// kernels/simd.h: one vector of floats as wide as the processor this was compiled for, and the few functions ops need.
//
// GCC and Clang vector extensions: + - * / and comparisons are the language's own. Loads take float or bf16 and need no
// alignment. A reduction adds lanes in a fixed tree, so a result depends on the width, not on timing.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/base/dtype.h"

namespace keel::simd {

#if defined(__AVX512F__)
constexpr int width = 16;
#elif defined(__AVX__)
constexpr int width = 8;
#else
constexpr int width = 4;
#endif

typedef float Float __attribute__((vector_size(width * 4)));
typedef std::int32_t Int __attribute__((vector_size(width * 4)));
typedef std::uint32_t Uint __attribute__((vector_size(width * 4)));
typedef std::uint16_t Half __attribute__((vector_size(width * 2)));

inline Float set(float x) { return Float{} + x; }

inline Float load(const float* p) {
    Float v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
inline Float load(const bf16* p) {
    Half h;
    std::memcpy(&h, p, sizeof h);
    return reinterpret_cast<Float>(__builtin_convertvector(h, Uint) << 16);
}
inline void store(float* p, Float v) { std::memcpy(p, &v, sizeof v); }

// The bits of bf16(v), in the low half of each lane. Same rounding as bf16's constructor.
inline Uint round_bits(Float v) {
    const Uint u = reinterpret_cast<Uint>(v);
    const Uint rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    return (u & 0x7fffffffu) > 0x7f800000u ? ((u >> 16) | 0x40u) : rounded;
}
inline void store(bf16* p, Float v) {
    const Half h = __builtin_convertvector(round_bits(v), Half);
    std::memcpy(p, &h, sizeof h);
}
// v as it would read back after a store to T.
template <class T> inline Float rounded(Float v);
template <> inline Float rounded<float>(Float v) { return v; }
template <> inline Float rounded<bf16>(Float v) { return reinterpret_cast<Float>(round_bits(v) << 16); }

// The first n < width elements; missing lanes read as `fill` and are not written.
template <class T> inline Float load_part(const T* p, std::int64_t n, float fill = 0.0f) {
    T part[width];
    for (int i = 0; i < width; ++i) part[i] = i < n ? p[i] : T(fill);
    return load(part);
}
template <class T> inline void store_part(T* p, Float v, std::int64_t n) {
    T part[width];
    store(part, v);
    std::memcpy(p, part, static_cast<std::size_t>(n) * sizeof(T));
}

inline Float max(Float a, Float b) { return a > b ? a : b; }
inline Float min(Float a, Float b) { return a < b ? a : b; }

inline float sum(Float v) {
    float lane[width];
    store(lane, v);
    for (int half = width / 2; half; half /= 2)
        for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
    return lane[0];
}
inline float max_lane(Float v) {
    float lane[width];
    store(lane, v);
    for (int half = width / 2; half; half /= 2)
        for (int i = 0; i < half; ++i) lane[i] = lane[i] > lane[i + half] ? lane[i] : lane[i + half];
    return lane[0];
}

// e^x to within 2 ulp on [-87.3, 88.7]; below it 0, above it infinity; NaN stays NaN.
// x = n ln2 + r with |r| <= ln2 / 2, e^r by a polynomial of degree 6 (its Taylor remainder is below 2^-25), n by exponent.
inline Float exp(Float x) {
    const Float t = x * 1.44269504088896341f + 12582912.0f;     // + 1.5 * 2^23 rounds to an integer in the low bits
    const Float n = t - 12582912.0f;
    const Float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts
    Float p = set(1.3888889e-3f);
    p = p * r + 8.3333333e-3f;
    p = p * r + 4.1666667e-2f;
    p = p * r + 1.6666667e-1f;
    p = p * r + 0.5f;
    p = p * r * r + r + 1.0f;
    const Float low = set(-87.3f), high = set(88.7f);
    // 2^n in two factors, so that n = 128 does not overflow the exponent on its own.
    const Int e = __builtin_convertvector(min(max(n, set(-126.0f)), set(128.0f)), Int), e1 = e >> 1, e2 = e - e1;
    const Float scaled = p * reinterpret_cast<Float>((e1 + 127) << 23) * reinterpret_cast<Float>((e2 + 127) << 23);
    const Float over = x > high ? set(__builtin_inff()) : scaled;
    const Float under = x < low ? set(0.0f) : over;
    return x == x ? under : x;
}

}  // namespace keel::simd
