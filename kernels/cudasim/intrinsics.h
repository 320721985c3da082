// kernels/cudasim/intrinsics.h: arithmetic, bit and memory intrinsics, and atomics, under CUDA's names.
//
// Approximations are computed exactly here: a kernel must not lean on the last bits of __expf or rsqrtf, which differ
// from one GPU to the next. Loads and stores through a function of CUDA's are held against the table of allocations.
#pragma once

#include <math.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/cudasim/kernel.h"
#include "kernels/cudasim/types.h"

// glibc declares functions of these names, so they are macros.
#define __expf(x) ::sim::cuda::fast_exp(x)
#define __logf(x) ::sim::cuda::fast_log(x)
#define __log2f(x) ::sim::cuda::fast_log2(x)
#define __sinf(x) ::sim::cuda::fast_sin(x)
#define __cosf(x) ::sim::cuda::fast_cos(x)
#define __powf(x, y) ::sim::cuda::fast_pow(x, y)

namespace sim::cuda {

inline float fast_exp(float x) { return std::exp(x); }
inline float fast_log(float x) { return std::log(x); }
inline float fast_log2(float x) { return std::log2(x); }
inline float fast_sin(float x) { return std::sin(x); }
inline float fast_cos(float x) { return std::cos(x); }
inline float fast_pow(float x, float y) { return std::pow(x, y); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __frsqrt_rn(float x) { return 1.0f / std::sqrt(x); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
// A product or sum that the compiler may not fuse with its neighbour.
inline float __fmul_rn(float a, float b) {
    volatile float c = a * b;
    return c;
}
inline float __fadd_rn(float a, float b) {
    volatile float c = a + b;
    return c;
}
inline double __dmul_rn(double a, double b) {
    volatile double c = a * b;
    return c;
}
inline double __dadd_rn(double a, double b) {
    volatile double c = a + b;
    return c;
}
inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1) : 0; }
inline void sincosf(float x, float* s, float* c) { *s = std::sin(x), *c = std::cos(x); }

inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return x ? std::countr_zero(static_cast<unsigned>(x)) + 1 : 0; }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(std::uint64_t{a} * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    __extension__ using Wide = unsigned __int128;
    return static_cast<unsigned long long>(static_cast<Wide>(a) * b >> 64);
}

template <class A, class B>
constexpr std::common_type_t<A, B> min(A a, B b) {
    using C = std::common_type_t<A, B>;
    return static_cast<C>(b) < static_cast<C>(a) ? static_cast<C>(b) : static_cast<C>(a);
}
template <class A, class B>
constexpr std::common_type_t<A, B> max(A a, B b) {
    using C = std::common_type_t<A, B>;
    return static_cast<C>(a) < static_cast<C>(b) ? static_cast<C>(b) : static_cast<C>(a);
}

// ---- loads and stores with a hint to the caches ---------------------------------------------------------------------

template <class T>
T __ldg(const T* p, Site site = Site::current()) {
    return checked_load(p, site);
}
template <class T>
T __ldcs(const T* p, Site site = Site::current()) {
    return checked_load(p, site);
}
template <class T>
T __ldcg(const T* p, Site site = Site::current()) {
    return checked_load(p, site);
}
template <class T>
T __ldca(const T* p, Site site = Site::current()) {
    return checked_load(p, site);
}
template <class T>
void __stcs(T* p, std::type_identity_t<T> value, Site site = Site::current()) {
    checked_store(p, value, site);
}
template <class T>
void __stcg(T* p, std::type_identity_t<T> value, Site site = Site::current()) {
    __stcs(p, value, site);
}
template <class T>
void __stwt(T* p, std::type_identity_t<T> value, Site site = Site::current()) {
    __stcs(p, value, site);
}

// ---- atomics: real ones, because blocks may run on several threads of the host
// ---------------------------------------

#if SIM_TSAN
constexpr int atomic_order = __ATOMIC_ACQ_REL;  // so that the idiom of a fence and an atomic is no false alarm
#else
constexpr int atomic_order = __ATOMIC_RELAXED;
#endif

// old = *p; *p = f(old); returns old.
template <class T, class F>
T update_atomically(T* p, F f, const Site& site) {
    check_global(p, sizeof(T), site);
    T old;
    __atomic_load(p, &old, __ATOMIC_RELAXED);
    for (;;) {
        T wanted = f(old);
        if (__atomic_compare_exchange(p, &old, &wanted, false, atomic_order, __ATOMIC_RELAXED)) return old;
    }
}
template <class T>
T atomicAdd(T* p, std::type_identity_t<T> v, Site site = Site::current()) {
    return update_atomically(
        p, [v](T old) { return static_cast<T>(old + v); }, site);
}
template <class T>
T atomicSub(T* p, std::type_identity_t<T> v, Site site = Site::current()) {
    return update_atomically(
        p, [v](T old) { return static_cast<T>(old - v); }, site);
}
template <class T>
T atomicMin(T* p, std::type_identity_t<T> v, Site site = Site::current()) {
    return update_atomically(
        p, [v](T old) { return v < old ? v : old; }, site);
}
template <class T>
T atomicMax(T* p, std::type_identity_t<T> v, Site site = Site::current()) {
    return update_atomically(
        p, [v](T old) { return old < v ? v : old; }, site);
}
template <class T>
T atomicAnd(T* p, std::type_identity_t<T> v, Site site = Site::current()) {
    return update_atomically(
        p, [v](T old) { return old & v; }, site);
}
template <class T>
T atomicOr(T* p, std::type_identity_t<T> v, Site site = Site::current()) {
    return update_atomically(
        p, [v](T old) { return old | v; }, site);
}
template <class T>
T atomicXor(T* p, std::type_identity_t<T> v, Site site = Site::current()) {
    return update_atomically(
        p, [v](T old) { return old ^ v; }, site);
}
template <class T>
T atomicExch(T* p, std::type_identity_t<T> v, Site site = Site::current()) {
    return update_atomically(
        p, [v](T) { return v; }, site);
}
template <class T>
T atomicCAS(T* p, std::type_identity_t<T> expected, std::type_identity_t<T> v, Site site = Site::current()) {
    return update_atomically(
        p, [=](T old) { return old == expected ? v : old; }, site);
}

}  // namespace sim::cuda
