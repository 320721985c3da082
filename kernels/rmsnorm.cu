// The CUDA bodies of kernels/rmsnorm.h, forward. A block normalises a row at a time; each thread keeps its part of the
// row in registers between the sum and the scaling, so that x is read once.
#include "kernels/cuda_ops.h"
#include "kernels/norm.cuh"
#include "kernels/rmsnorm.h"

#include <algorithm>

namespace keel::KEEL_DEVICE {
namespace {

constexpr int max_threads = 1024;
constexpr int kept =
    16;  // elements of a row that a thread keeps in registers (4 one by one); longer rows are read again

// With `residual`, x + residual is what is normalised, and `sum` keeps it, rounded.
template <class T, int n, bool residual>
__global__ void __launch_bounds__(max_threads)
    forward_kernel(T* y, float* rstd, T* sum, const T* x, const T* r, const T* gain, std::int64_t tokens, int hidden,
                   float eps) {
    KEEL_SHARED(float, partial, [warp_size]);
    constexpr int packs = n == 1 ? 4 : kept / n;
    const int stride = static_cast<int>(blockDim.x) * n;
    const int begin = static_cast<int>(threadIdx.x) * n;
    for (std::int64_t t = blockIdx.x; t < tokens; t += gridDim.x) {
        Pack<T, n> mine[packs];
        float squares = 0;
        const auto one_pack = [&](int i) {
            Pack<T, n> v = load<n>(x + t * hidden + i);
            if constexpr (residual) {
                const Pack<T, n> add = load<n>(r + t * hidden + i);
#pragma unroll
                for (int k = 0; k < n; ++k) v.at[k] = from_float<T>(to_float(v.at[k]) + to_float(add.at[k]));
                store<n>(sum + t * hidden + i, v);
            }
#pragma unroll
            for (int k = 0; k < n; ++k) squares += to_float(v.at[k]) * to_float(v.at[k]);
            return v;
        };
        // Rounds are counted at compile time, so that `mine` stays in registers.
#pragma unroll
        for (int p = 0; p < packs; ++p)
            if (const int i = begin + p * stride; i < hidden) mine[p] = one_pack(i);
        for (int i = begin + packs * stride; i < hidden; i += stride) one_pack(i);

        const float scale = 1.0f / sqrtf(block_sum(squares, partial) / static_cast<float>(hidden) + eps);
        if (threadIdx.x == 0) rstd[t] = scale;
        const auto finish = [&](int i, Pack<T, n> v) {
            const Pack<T, n> g = load<n>(gain + i);
#pragma unroll
            for (int k = 0; k < n; ++k)
                v.at[k] = from_float<T>(rounded<T>(to_float(v.at[k]) * scale) * to_float(g.at[k]));
            store<n>(y + t * hidden + i, v);
        };
#pragma unroll
        for (int p = 0; p < packs; ++p)
            if (const int i = begin + p * stride; i < hidden) finish(i, mine[p]);
        for (int i = begin + packs * stride; i < hidden; i += stride)
            finish(i, load<n>((residual ? sum : x) + t * hidden + i));
    }
}

// Enough threads to keep a row in registers, in whole warps.
unsigned threads_for(std::int64_t hidden, int n) {
    const std::int64_t packs = ceil_div(hidden, std::int64_t{n});
    const std::int64_t threads = ceil_div(packs, std::int64_t{warp_size}) * warp_size;
    return static_cast<unsigned>(std::min<std::int64_t>(threads, max_threads));
}

template <class T, bool residual>
void forward(Stream& stream, T* y, float* rstd, T* sum, const T* x, const T* r, const T* gain, std::int64_t tokens,
             std::int64_t hidden, float eps) {
    constexpr std::int64_t max_blocks = 1024;  // enough to fill any GPU; each takes every 1024th row
    if (tokens == 0) return;
    const auto go = [&](auto* kernel, int n) {
        launch(stream,
               {.blocks = static_cast<unsigned>(std::min(tokens, max_blocks)), .threads = threads_for(hidden, n)},
               kernel, y, rstd, sum, x, r, gain, tokens, static_cast<int>(hidden), eps);
    };
    constexpr int n = widest<T>;
    bool vectors = true;
    for (const T* p : {static_cast<const T*>(y), x, gain, static_cast<const T*>(sum), r})
        vectors &= in_vectors_of(n, p, hidden);
    if (vectors)
        go(forward_kernel<T, n, residual>, n);
    else
        go(forward_kernel<T, 1, residual>, 1);
}

template <class T>
void forward(Stream& stream, const RmsnormForward<T>& a) {
    forward<in_kernel<T>, false>(stream, kernel_pointer(a.y), a.rstd.data(), nullptr, kernel_pointer(a.x), nullptr,
                                 kernel_pointer(a.gain), a.x.dim(0), a.x.dim(1), a.eps);
}
template <class T>
void forward(Stream& stream, const AddRmsnormForward<T>& a) {
    forward<in_kernel<T>, true>(stream, kernel_pointer(a.y), a.rstd.data(), kernel_pointer(a.sum), kernel_pointer(a.x),
                                kernel_pointer(a.residual), kernel_pointer(a.gain), a.x.dim(0), a.x.dim(1), a.eps);
}

}  // namespace

template <>
void run(Stream& stream, const RmsnormForward<float>& args) {
    forward(stream, args);
}
template <>
void run(Stream& stream, const RmsnormForward<bf16>& args) {
    forward(stream, args);
}
template <>
void run(Stream& stream, const AddRmsnormForward<float>& args) {
    forward(stream, args);
}
template <>
void run(Stream& stream, const AddRmsnormForward<bf16>& args) {
    forward(stream, args);
}

}  // namespace keel::KEEL_DEVICE
