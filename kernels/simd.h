// kernels/simd.h: one vector of floats as wide as the processor this was compiled for, and the few functions ops need.
//
// GCC and Clang vector extensions: + - * / and comparisons are the language's own. Loads take float, bf16 or f16 and need
// no alignment. A reduction adds lanes in a fixed tree, so a result depends on the width, not on timing. `sweep` walks a
// row, tail included, so that an op writes its arithmetic once.
#pragma once

#if defined(__AVX__)
#include <immintrin.h>
#endif

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/base/dtype.h"

namespace keel::simd {

#if defined(__AVX512BW__) && defined(__AVX512VL__)
#define KEEL_SIMD_AVX512  // masks for 16-bit lanes too: every AVX-512 processor but Knights Landing
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

inline Float set(float x) { return x - Float{}; }  // x - 0 folds to x for every x; 0 + x does not, for -0

inline Float load(const float* p) {
    Float v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
inline void store(float* p, Float v) { std::memcpy(p, &v, sizeof v); }

// bf16 bits to float, and the upper half of every lane. By intrinsics, in forms GCC 12 has no false warning for: the
// vector extensions make four to six shuffles of these, and bf16 ops took longer than float ones (rmsnorm forward of
// 256 x 512 in cache: 51 us, now 32).
inline Float widen(Half h) {
#if defined(KEEL_SIMD_AVX512)
    const __m512i wide = _mm512_maskz_cvtepu16_epi32(0xffff, reinterpret_cast<__m256i>(h));
    return reinterpret_cast<Float>(reinterpret_cast<Uint>(wide) << 16);
#elif defined(__AVX2__)
    return reinterpret_cast<Float>(_mm256_slli_epi32(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(h)), 16));
#else
    return reinterpret_cast<Float>(__builtin_convertvector(h, Uint) << 16);
#endif
}
inline Half upper_halves(Uint u) {
#if defined(KEEL_SIMD_AVX512)
    const Int odd_words = {0x030001, 0x070005, 0x0b0009, 0x0f000d, 0x130011, 0x170015, 0x1b0019, 0x1f001d};
    const __m512i packed = _mm512_maskz_permutexvar_epi16(~0u, reinterpret_cast<__m512i>(odd_words),
                                                          reinterpret_cast<__m512i>(u));
    return reinterpret_cast<Half>(__builtin_shufflevector(packed, packed, 0, 1, 2, 3));
#elif defined(__AVX2__)
    const __m256i low = _mm256_srli_epi32(reinterpret_cast<__m256i>(u), 16);
    return reinterpret_cast<Half>(_mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1)));
#else
    return __builtin_convertvector(u >> 16, Half);
#endif
}

inline Float load(const bf16* p) {
    Half h;
    std::memcpy(&h, p, sizeof h);
    return widen(h);
}
// The bits of bf16(v) in the upper half of each lane, garbage in the lower. Same rounding as bf16's constructor.
inline Uint round_bits(Float v) {
    const Uint u = reinterpret_cast<Uint>(v);
    return v == v ? u + 0x7fffu + ((u >> 16) & 1u) : u | 0x400000u;
}
inline Half to_bf16(Float v) {
#if defined(KEEL_SIMD_AVX512) && defined(__AVX512DQ__) && defined(__AVX512BF16__)
    // The processor's own conversion takes subnormals for zero, and is otherwise the same.
    constexpr int subnormal = 0x20;
    if (_mm512_fpclass_ps_mask(static_cast<__m512>(v), subnormal) == 0) [[likely]]
        return reinterpret_cast<Half>(_mm512_cvtneps_pbh(static_cast<__m512>(v)));
#endif
    return upper_halves(round_bits(v));
}
inline void store(bf16* p, Float v) {
    const Half h = to_bf16(v);
    std::memcpy(p, &h, sizeof h);
}
// f16 bits to float and back, by the processor: it keeps subnormals, whatever its control register says of them.
inline Float from_f16(Half h) {
#if defined(KEEL_SIMD_AVX512)
    return static_cast<Float>(_mm512_maskz_cvtph_ps(0xffff, reinterpret_cast<__m256i>(h)));
#elif defined(__F16C__)
    return static_cast<Float>(_mm256_cvtph_ps(reinterpret_cast<__m128i>(h)));
#else
    Float v;
    for (int i = 0; i < width; ++i) v[i] = static_cast<float>(std::bit_cast<f16>(std::uint16_t(h[i])));
    return v;
#endif
}
inline Half to_f16(Float v) {
#if defined(KEEL_SIMD_AVX512)
    return reinterpret_cast<Half>(_mm512_maskz_cvtps_ph(0xffff, static_cast<__m512>(v), _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
    return reinterpret_cast<Half>(_mm256_cvtps_ph(static_cast<__m256>(v), _MM_FROUND_TO_NEAREST_INT));
#else
    Half h;
    for (int i = 0; i < width; ++i) h[i] = f16(v[i]).bits;
    return h;
#endif
}
inline Float load(const f16* p) {
    Half h;
    std::memcpy(&h, p, sizeof h);
    return from_f16(h);
}
inline void store(f16* p, Float v) {
    const Half h = to_f16(v);
    std::memcpy(p, &h, sizeof h);
}
// Stores past the caches, which so do not fetch the line first: for what is not read again soon. 64-byte aligned; `passed` comes
// before another thread reads it. Elsewhere plain stores.
inline void store_past(float* p, Float v) {
#if defined(KEEL_SIMD_AVX512)
    _mm512_stream_ps(p, static_cast<__m512>(v));
#else
    store(p, v);
#endif
}
// Two vectors of 16-bit numbers, a line.
template <class T> inline void store_past(T* p, Float low, Float high) {
#if defined(KEEL_SIMD_AVX512)
    Half half[2];
    if constexpr (std::is_same_v<T, bf16>) half[0] = to_bf16(low), half[1] = to_bf16(high);
    else half[0] = to_f16(low), half[1] = to_f16(high);
    __m512i line;
    std::memcpy(&line, half, sizeof line);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(p), line);
#else
    store(p, low);
    store(p + width, high);
#endif
}
inline void passed() {
#if defined(KEEL_SIMD_AVX512)
    _mm_sfence();
#endif
}
// v as it would read back after a store to T.
template <class T> inline Float rounded(Float v);
template <> inline Float rounded<float>(Float v) { return v; }
template <> inline Float rounded<f16>(Float v) { return from_f16(to_f16(v)); }
template <> inline Float rounded<bf16>(Float v) { return reinterpret_cast<Float>(round_bits(v) & 0xffff0000u); }

// The first n < width elements; missing lanes read as `fill` and are not written.
#if defined(KEEL_SIMD_AVX512)
inline __mmask16 first(std::int64_t n) { return static_cast<__mmask16>((1u << n) - 1u); }
inline Float load_part(const float* p, std::int64_t n, float fill = 0.0f) {
    return static_cast<Float>(_mm512_mask_loadu_ps(_mm512_set1_ps(fill), first(n), p));
}
template <class T> inline Half load_half_part(const T* p, std::int64_t n, float fill) {
    return reinterpret_cast<Half>(
        _mm256_mask_loadu_epi16(_mm256_set1_epi16(static_cast<short>(T(fill).bits)), first(n), p));
}
inline Float load_part(const bf16* p, std::int64_t n, float fill = 0.0f) { return widen(load_half_part(p, n, fill)); }
inline Float load_part(const f16* p, std::int64_t n, float fill = 0.0f) { return from_f16(load_half_part(p, n, fill)); }
inline void store_part(float* p, Float v, std::int64_t n) {
    _mm512_mask_storeu_ps(p, first(n), static_cast<__m512>(v));
}
inline void store_part(bf16* p, Float v, std::int64_t n) {
    _mm256_mask_storeu_epi16(p, first(n), reinterpret_cast<__m256i>(to_bf16(v)));
}
inline void store_part(f16* p, Float v, std::int64_t n) {
    _mm256_mask_storeu_epi16(p, first(n), reinterpret_cast<__m256i>(to_f16(v)));
}
#else
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
#endif

// A NaN in b comes through, one in a does not.
inline Float max(Float a, Float b) { return a > b ? a : b; }
inline Float min(Float a, Float b) { return a < b ? a : b; }

// Correctly rounded. By intrinsic: the language has no vector square root, and a loop over std::sqrt keeps its errno.
inline Float sqrt(Float v) {
#if defined(KEEL_SIMD_AVX512)
    // The masked form: GCC 12 says of the plain one that its pass-through operand is uninitialised.
    return static_cast<Float>(_mm512_maskz_sqrt_ps(0xffff, static_cast<__m512>(v)));
#elif defined(__AVX__)
    return static_cast<Float>(_mm256_sqrt_ps(static_cast<__m256>(v)));
#else
    for (int i = 0; i < width; ++i) v[i] = __builtin_sqrtf(v[i]);
    return v;
#endif
}

// Lane i becomes lane i ^ distance.
template <int distance, std::size_t... i> inline Float swap_lanes(Float v, std::index_sequence<i...>) {
    return __builtin_shufflevector(v, v, (static_cast<int>(i) ^ distance)...);
}
template <int distance> inline Float swap_lanes(Float v) {
    return swap_lanes<distance>(v, std::make_index_sequence<width>());
}
template <int half = width / 2> inline float sum(Float v) {
    if constexpr (half == 0) return v[0];
    else return sum<half / 2>(v + swap_lanes<half>(v));
}
template <int half = width / 2> inline float max_lane(Float v) {
    if constexpr (half == 0) return v[0];
    else return max_lane<half / 2>(max(v, swap_lanes<half>(v)));
}

// Where in a row a vector lies: all of it inside, or only its first `count` lanes.
struct Whole {
    std::int64_t at;
    template <class T> Float load(const T* row, float = 0.0f) const { return simd::load(row + at); }
    template <class T> void store(T* row, Float v) const { simd::store(row + at, v); }
    // Wanted soon, to be read: a row some rows on. The processor foresees one stream, but hardly four that are read and
    // written at once (2048 rows of 288 floats out of the third cache, rmsnorm backward: 38 GB/s, now 47).
    template <class T> void ask(const T* row) const { __builtin_prefetch(row + at, 0, 2); }
};
struct Part {
    std::int64_t at, count;
    template <class T> Float load(const T* row, float fill = 0.0f) const { return load_part(row + at, count, fill); }
    template <class T> void store(T* row, Float v) const { store_part(row + at, v, count); }
    template <class T> void ask(const T* row) const { __builtin_prefetch(row + at, 0, 2); }
};

// body(place, lane) for every vector of a row of n elements. `lane` is a constant in [0, ways): a sum kept in ways
// accumulators does not wait for its own last addition. Which element goes to which accumulator depends on n alone.
template <int ways, class Body> inline void sweep(std::int64_t n, Body body) {
    const auto whole = [&]<int... k>(std::int64_t i, std::integer_sequence<int, k...>) {
        (body(Whole{i + k * width}, std::integral_constant<int, k>()), ...);
    };
    std::int64_t i = 0;
    for (; i + ways * width <= n; i += ways * width) whole(i, std::make_integer_sequence<int, ways>());
    for (; i + width <= n; i += width) whole(i, std::make_integer_sequence<int, 1>());
    if (i < n) body(Part{i, n - i}, std::integral_constant<int, 0>());
}
// The same for bodies that keep no sums: body(place).
template <class Body> inline void sweep(std::int64_t n, Body body) {
    sweep<2>(n, [&](auto place, auto) { body(place); });
}

// e^x for x in [-87.33, 88.7228], the core of exp. x = n ln2 + r with |r| <= ln2 / 2. e^r = 1 + r + r^2 q(r), q of
// degree 4 fitted for least maximum relative error (2^-27.8 with rounded coefficients). 2^n is added to the exponent
// field: p * 2^n is a normal number on this range. NaN stays NaN (exp_coarse says which).
inline Float exp_in_range(Float x) {
    const Float t = x * 1.44269504088896341f + 12582912.0f;       // + 1.5 * 2^23: the low bits of t are the integer n
    const Float n = t - 12582912.0f;
    const Float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts, the first exact in n * part
    Float q = set(1.381432e-3f);
    q = q * r + 8.368851e-3f;
    q = q * r + 4.16684e-2f;
    q = q * r + 1.666652e-1f;
    q = q * r + 0.49999994f;
    const Float p = (q * r) * r + r + 1.0f;
    return reinterpret_cast<Float>(reinterpret_cast<Uint>(p) + (reinterpret_cast<Uint>(t) << 23));
}
constexpr float exp_low = -87.33f, exp_high = 88.722835f;

// e^x to within 1.1 ulp (tests/kernels/simd_test.cpp) on [-87.33, 88.7228]; 0 below, infinity above; NaN stays NaN.
inline Float exp(Float x) {
    const Float y = exp_in_range(min(set(exp_high), max(set(exp_low), x)));
    const Float under = x < exp_low ? set(0.0f) : y;
    return x > exp_high ? set(__builtin_inff()) : under;
}
// The same bits for x <= 0, where softmax lives, for a sixth less.
inline Float exp_nonpositive(Float x) {
    const Float y = exp_in_range(max(set(exp_low), x));
    return x < exp_low ? set(0.0f) : y;
}

// max and min where a NaN in `x` comes through, one instruction each: of the others GCC 12 makes two for a constant bound.
inline Float at_least(Float bound, Float x) {
#if defined(KEEL_SIMD_AVX512)
    return static_cast<Float>(_mm512_maskz_max_ps(0xffff, static_cast<__m512>(bound), static_cast<__m512>(x)));
#else
    return max(bound, x);
#endif
}
inline Float at_most(Float bound, Float x) {
#if defined(KEEL_SIMD_AVX512)
    return static_cast<Float>(_mm512_maskz_min_ps(0xffff, static_cast<__m512>(bound), static_cast<__m512>(x)));
#else
    return min(bound, x);
#endif
}

// e^x to within 2^-16.5 of itself, for what is rounded to bf16: less than 2^-126 below -87.33, and in the end 0; infinity
// from 88.73 on; NaN stays NaN if its low 8 bits are 0 (of arithmetic's own). It is 2^t with t = x log2(e), whose roundings,
// at most 1.5 2^-24 |t|, make ln 2 times that of the result, 2^-16.9 at |t| = 128; 2^r on |r| <= 1/2 by a polynomial fitted for least
// maximum relative error, 2^-18.4. At -127 and 128 r is 0, the polynomial 1, its exponent becomes that of 0 and of infinity.
inline Float exp_coarse(Float x) {
    const Float c = at_least(set(-127.0f), at_most(set(128.0f), x * 1.44269504088896341f));
    const Float t = c + 12582912.0f, r = c - (t - 12582912.0f);  // 1.5 * 2^23: the low bits of t are an integer
    Float p = set(9.58285294e-3f);
    p = p * r + 5.59064262e-2f;
    p = p * r + 2.40240991e-1f;
    p = p * r + 6.93124175e-1f;
    p = p * r + 1.0f;
    return reinterpret_cast<Float>(reinterpret_cast<Uint>(p) + (reinterpret_cast<Uint>(t) << 23));
}

// 1 / x to within 1 ulp for x in [2^-125, 2^125], to 2^-14 beyond, 0 for infinity. A division of 16 floats takes as
// long as a whole exp.
inline Float reciprocal(Float x) {
#if defined(KEEL_SIMD_AVX512)
    const Float r = static_cast<Float>(_mm512_maskz_rcp14_ps(0xffff, static_cast<__m512>(x)));  // to within 2^-14
    const Float better = r + r * (1.0f - x * r);                                                // one step of Newton's
    return x > 0x1p125f ? r : better;
#else
    return 1.0f / x;
#endif
}

}  // namespace keel::simd
