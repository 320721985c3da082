// kernels/device.cuh: what a kernel and its launch are written in, for both compilers: nvcc, and the host's with
// cudasim.
//
// A .cu file is compiled twice and both results live in one program, so everything in it belongs to namespace
// keel::KEEL_DEVICE, which is on_cuda or on_cudasim. Shared memory is declared by the two macros, kernels start through
// `launch`, memory is read and written by `load` and `store` where that is possible: under cudasim they check bounds
// and alignment and name the line. Inline PTX lives in mma.cuh, async.cuh, hopper.cuh and wgmma.cuh alone.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <source_location>
#include <type_traits>
#include <utility>

#include "kernels/base/dtype.h"
#include "kernels/base/error.h"
#include "kernels/base/stream.h"
#include "kernels/base/view.h"

#if defined(__CUDACC__)
#define KEEL_DEVICE on_cuda
// KEEL_SHARED(float, tile, [32][33]); the same array for every thread of the block.
#define KEEL_SHARED(T, name, dims) __shared__ T name dims
// KEEL_DYNAMIC_SHARED(float, memory); T* to the bytes asked for at the launch, aligned to 1024.
#define KEEL_DYNAMIC_SHARED(T, name)                                       \
    extern __shared__ __align__(1024) unsigned char keel_dynamic_shared[]; \
    T* const name = reinterpret_cast<T*>(keel_dynamic_shared)
#define KEEL_INLINE __device__ __forceinline__
#define KEEL_SITE
#define KEEL_ONLY_SITE
#define KEEL_SITE_ARGUMENT
#else
#include "kernels/cudasim/kernel.h"
#define KEEL_DEVICE on_cudasim
#define KEEL_SHARED(T, name, dims)        \
    using name##_type = T dims;           \
    static constexpr char name##_tag = 0; \
    name##_type& name = ::sim::shared_array<name##_type>(&name##_tag, #name)
#define KEEL_DYNAMIC_SHARED(T, name) T* const name = static_cast<T*>(::sim::dynamic_shared())
#define KEEL_INLINE inline
// A last parameter that tells findings where a call was written; nothing on a GPU.
#define KEEL_SITE , ::sim::Site site = ::sim::Site::current()
#define KEEL_ONLY_SITE ::sim::Site site = ::sim::Site::current()  // of a function without other parameters
#define KEEL_SITE_ARGUMENT , site
#endif

namespace keel::KEEL_DEVICE {

constexpr int warp_size = 32;
constexpr unsigned all_lanes = 0xffffffffu;

// ---- element types: keel's bf16 outside of a kernel is CUDA's inside
// ---------------------------------------------------

template <class T>
struct InKernel {
    using type = T;
};
template <>
struct InKernel<bf16> {
    using type = __nv_bfloat16;
};
template <class T>
using in_kernel = typename InKernel<T>::type;

// The memory of a View as a kernel sees it.
template <class T>
auto* kernel_pointer(const View<T>& view) {
    using K = in_kernel<std::remove_const_t<T>>;
    return reinterpret_cast<std::conditional_t<std::is_const_v<T>, const K, K>*>(view.data());
}

KEEL_INLINE float to_float(float x) { return x; }
KEEL_INLINE float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
template <class T>
KEEL_INLINE T from_float(float x) {
    if constexpr (std::is_same_v<T, float>)
        return x;
    else
        return __float2bfloat16_rn(x);
}
// x as memory would give it back.
template <class T>
KEEL_INLINE float rounded(float x) {
    return to_float(from_float<T>(x));
}

// ---- vectors: n elements that move together, at most 16 bytes
// ----------------------------------------------------------

template <class T, int n>
struct alignas(sizeof(T) * n) Pack {
    static_assert(sizeof(T) * n <= 16, "a thread moves at most 16 bytes at once");
    T at[n];
};
template <class T>
constexpr int widest = 16 / static_cast<int>(sizeof(T));  // elements in 16 bytes

// p points to n elements and is aligned to all of them.
template <int n = 1, class T>
KEEL_INLINE Pack<T, n> load(const T* p KEEL_SITE) {
#if defined(__CUDACC__)
    return *reinterpret_cast<const Pack<T, n>*>(p);
#else
    return ::sim::checked_load(reinterpret_cast<const Pack<T, n>*>(p), site);
#endif
}
template <int n = 1, class T>
KEEL_INLINE void store(T* p, const Pack<T, n>& value KEEL_SITE) {
#if defined(__CUDACC__)
    *reinterpret_cast<Pack<T, n>*>(p) = value;
#else
    ::sim::checked_store(reinterpret_cast<Pack<T, n>*>(p), value, site);
#endif
}

// Whether rows of `row_elements` that start at `data` can be moved n elements at a time.
template <class T>
bool in_vectors_of(int n, const T* data, std::int64_t row_elements) {
    return row_elements % n == 0 &&
           reinterpret_cast<std::uintptr_t>(data) % (sizeof(T) * static_cast<std::size_t>(n)) == 0;
}

// The same for rows of which pieces of `piece` elements, such as heads, are moved one by one.
template <class T>
bool pieces_in_vectors_of(int n, const View<T>& rows, std::int64_t piece) {
    return piece % n == 0 && in_vectors_of(n, rows.data(), rows.stride());
}

// ---- launches
// ------------------------------------------------------------------------------------------------------------

inline void check(cudaError_t error, std::source_location where = std::source_location::current()) {
    if (error != cudaSuccess)
        fail(Located(concat("cuda: ", cudaGetErrorName(error), ": ", cudaGetErrorString(error)), where));
}

struct Shape {
    dim3 blocks, threads;
    std::size_t shared_bytes = 0;  // dynamic
    std::source_location where = std::source_location::current();
};

// kernel<<<shape, stream>>>(arguments...), checked. Parameters convert as in a call.
template <class... Params, class... Arguments>
void launch(Stream& stream, const Shape& shape, void (*kernel)(Params...), Arguments&&... arguments) {
    constexpr std::size_t without_asking = 48 << 10;
    if (shape.shared_bytes > without_asking)
        check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(shape.shared_bytes)),
              shape.where);
    cudaLaunchConfig_t config{};
    config.gridDim = shape.blocks;
    config.blockDim = shape.threads;
    config.dynamicSmemBytes = shape.shared_bytes;
    config.stream = static_cast<cudaStream_t>(stream.native());
#if !defined(__CUDACC__)
    config.site = shape.where;
#endif
    check(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...), shape.where);
}

// ---- a block's sums
// --------------------------------------------------------------------------------------------------------

// Sum over the 32 lanes, in a fixed tree; every lane has it.
KEEL_INLINE float warp_sum(float x KEEL_SITE) {
#pragma unroll
    for (int lanes = warp_size / 2; lanes > 0; lanes /= 2)
        x += __shfl_xor_sync(all_lanes, x, lanes, warp_size KEEL_SITE_ARGUMENT);
    return x;
}
KEEL_INLINE float warp_max(float x KEEL_SITE) {
#pragma unroll
    for (int lanes = warp_size / 2; lanes > 0; lanes /= 2)
        x = fmaxf(x, __shfl_xor_sync(all_lanes, x, lanes, warp_size KEEL_SITE_ARGUMENT));
    return x;
}

}  // namespace keel::KEEL_DEVICE
