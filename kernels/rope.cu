// The CUDA bodies of kernels/rope.h: a thread turns n pairs of one head.
#include "kernels/cuda_ops.h"
#include "kernels/rope.cuh"
#include "kernels/rope.h"

namespace keel::KEEL_DEVICE {
namespace {

constexpr int threads = 256;

// n floats at p, 16 bytes at a time.
template <int n>
KEEL_INLINE void load_floats(float (&to)[n], const float* p) {
    constexpr int wide = n < 4 ? n : 4;
#pragma unroll
    for (int i = 0; i < n; i += wide) {
        const Pack<float, wide> v = load<wide>(p + i);
#pragma unroll
        for (int k = 0; k < wide; ++k) to[i + k] = v.at[k];
    }
}

// sign is 1 forward and -1 backward.
template <class T, int n>
__global__ void __launch_bounds__(threads)
    rotate_kernel(T* x, const float* table, const std::int32_t* positions, std::int64_t tokens, std::int64_t stride,
                  int heads, int head_dim, int half, float sign) {
    const int per_head = half / n;
    const std::int64_t i = std::int64_t{blockIdx.x} * threads + threadIdx.x;
    if (i >= tokens * heads * per_head) return;
    const std::int64_t token = i / (heads * per_head);
    const int rest = static_cast<int>(i % (heads * per_head)), head = rest / per_head, pair = rest % per_head * n;
    T* const low = x + token * stride + head * head_dim + pair;
    const float* const row = table + std::int64_t{load(positions + token).at[0]} * 2 * half + pair;
    float cosine[n], sine[n];
    load_floats(cosine, row);
    load_floats(sine, row + half);
    Pack<T, n> a = load<n>(low), b = load<n>(low + half);
#pragma unroll
    for (int k = 0; k < n; ++k) {
        float u = to_float(a.at[k]), v = to_float(b.at[k]);
        turn(u, v, cosine[k], sine[k] * sign);
        a.at[k] = from_float<T>(u);
        b.at[k] = from_float<T>(v);
    }
    store<n>(low, a);
    store<n>(low + half, b);
}

template <class T>
void rotate(Stream& stream, const Rope<T>& a, float sign) {
    using K = in_kernel<T>;
    const std::int64_t tokens = a.x.dim(0), heads = a.x.dim(1) / a.head_dim, half = a.table.dim(1) / 2;
    if (tokens * heads * half == 0) return;
    const auto go = [&](auto* kernel, int n) {
        const std::int64_t blocks = ceil_div(tokens * heads * (half / n), threads);
        launch(stream, {.blocks = static_cast<unsigned>(blocks), .threads = threads}, kernel, kernel_pointer(a.x),
               a.table.data(), a.positions.data(), tokens, a.x.stride(), static_cast<int>(heads),
               static_cast<int>(a.head_dim), static_cast<int>(half), sign);
    };
    constexpr int n = widest<K>;
    if (in_vectors_of(n, a.x.data(), a.x.stride()) && a.head_dim % n == 0 && half % n == 0 &&
        in_vectors_of(4, a.table.data(), half))
        go(rotate_kernel<K, n>, n);
    else
        go(rotate_kernel<K, 1>, 1);
}

}  // namespace

template <>
void run(Stream& stream, const RopeTurn<float>& args) {
    rotate(stream, args.rope, args.sign);
}
template <>
void run(Stream& stream, const RopeTurn<bf16>& args) {
    rotate(stream, args.rope, args.sign);
}

}  // namespace keel::KEEL_DEVICE
