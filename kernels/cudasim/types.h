// kernels/cudasim/types.h: CUDA's vector types and the variables every kernel reads. Names are CUDA's, in a namespace
// of their own, so that a program may hold the real runtime and this one side by side.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sim::cuda {

#define SIM_VECTORS(T, name, align2, align4)                              \
    struct name##1 {                                                      \
        T x;                                                              \
    };                                                                    \
    struct alignas(align2) name##2 {                                      \
        T x, y;                                                           \
    };                                                                    \
    struct name##3 {                                                      \
        T x, y, z;                                                        \
    };                                                                    \
    struct alignas(align4) name##4 {                                      \
        T x, y, z, w;                                                     \
    };                                                                    \
    constexpr name##1 make_##name##1(T x) { return {x}; }                 \
    constexpr name##2 make_##name##2(T x, T y) { return {x, y}; }         \
    constexpr name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; } \
    constexpr name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
SIM_VECTORS(signed char, char, 2, 4)
SIM_VECTORS(unsigned char, uchar, 2, 4)
SIM_VECTORS(short, short, 4, 8)
SIM_VECTORS(unsigned short, ushort, 4, 8)
SIM_VECTORS(int, int, 8, 16)
SIM_VECTORS(unsigned int, uint, 8, 16)
SIM_VECTORS(long long, longlong, 16, 16)
SIM_VECTORS(unsigned long long, ulonglong, 16, 16)
SIM_VECTORS(float, float, 8, 16)
SIM_VECTORS(double, double, 16, 16)
#undef SIM_VECTORS

struct dim3 {
    unsigned int x, y, z;
    constexpr dim3(unsigned int x_ = 1, unsigned int y_ = 1, unsigned int z_ = 1) : x(x_), y(y_), z(z_) {}
    constexpr operator uint3() const { return {x, y, z}; }
};

// Written at every switch between threads, so that a kernel reads them as plain variables.
inline constinit thread_local uint3 threadIdx{}, blockIdx{};
inline constinit thread_local uint3 blockDim{}, gridDim{};
constexpr int warpSize = 32;

}  // namespace sim::cuda
