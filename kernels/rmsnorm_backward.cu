// The CUDA bodies of kernels/rmsnorm.h, backward. A block takes one of the slices of tokens of kernels/tiles.h, row by
// row; a thread has the same columns in every row, keeps its x and dy in registers between the mean and dx, and its
// part of dgain in shared memory that nobody else reads. A second kernel adds the slices.
#include <algorithm>

#include "kernels/cuda_ops.h"
#include "kernels/norm.cuh"
#include "kernels/rmsnorm.h"
#include "kernels/tiles.h"

namespace keel::KEEL_DEVICE {
namespace {

constexpr int max_threads = 1024;
// Of a row of x that a thread keeps (2 elements one by one): all of it up to 8192 bf16. Longer rows are read again: twice as much costs
// registers that sm_100 and sm_120 have not; so do loops over the rest that are unrolled.
constexpr int kept_bytes = 16;
constexpr std::int64_t most_shared_bytes = 160 << 10;  // sm_80 has 163 KiB

template <class T>
struct Backward {
    T* dx;
    float* partial;  // [slices, hidden]
    const T *dy, *x, *gain, *dresidual;
    const float* rstd;
    std::int64_t tokens, slice_tokens;
    int hidden;
};

// dx may be dy or dresidual: a thread reads its elements of a row before it writes them.
template <class T, int n, bool residual>
__global__ void __launch_bounds__(max_threads) backward_kernel(Backward<T> a) {
    KEEL_SHARED(float, partial, [warp_size]);
    KEEL_DYNAMIC_SHARED(float, dgain);  // [elements of a thread][threads]
    constexpr int packs = n == 1 ? 2 : kept_bytes / static_cast<int>(sizeof(T)) / n;
    const int threads = static_cast<int>(blockDim.x), begin = static_cast<int>(threadIdx.x) * n, stride = threads * n;
    float* const mine = dgain + threadIdx.x;
    for (int i = begin, e = 0; i < a.hidden; i += stride, e += n)
        for (int k = 0; k < n; ++k) mine[(e + k) * threads] = 0;

    const std::int64_t first = blockIdx.x * a.slice_tokens;
    const std::int64_t end = first + a.slice_tokens < a.tokens ? first + a.slice_tokens : a.tokens;
    for (std::int64_t t = first; t < end; ++t) {
        const std::int64_t row = t * a.hidden;
        Pack<T, n> kept_x[packs], kept_dy[packs];
        float dot = 0;
        const auto add_to_dot = [&](int i, const Pack<T, n>& x, const Pack<T, n>& dy) {
            const Pack<T, n> gain = load<n>(a.gain + i);
#pragma unroll
            for (int k = 0; k < n; ++k) dot += to_float(dy.at[k]) * to_float(gain.at[k]) * to_float(x.at[k]);
        };
        // Rounds are counted at compile time, so that what is kept stays in registers.
#pragma unroll
        for (int p = 0; p < packs; ++p)
            if (const int i = begin + p * stride; i < a.hidden) {
                kept_x[p] = load<n>(a.x + row + i), kept_dy[p] = load<n>(a.dy + row + i);
                add_to_dot(i, kept_x[p], kept_dy[p]);
            }
#pragma unroll 1
        for (int i = begin + packs * stride; i < a.hidden; i += stride)
            add_to_dot(i, load<n>(a.x + row + i), load<n>(a.dy + row + i));

        const float scale = load(a.rstd + t).at[0];
        const float mean = block_sum(dot, partial) * scale / static_cast<float>(a.hidden);
        const auto finish = [&](int i, int e, const Pack<T, n>& x, const Pack<T, n>& dy) {
            const Pack<T, n> gain = load<n>(a.gain + i);
            Pack<T, n> dx;
            if constexpr (residual) dx = load<n>(a.dresidual + row + i);
#pragma unroll
            for (int k = 0; k < n; ++k) {
                const float d = to_float(dy.at[k]), normed = to_float(x.at[k]) * scale;
                mine[(e + k) * threads] += d * normed;
                float v = (d * to_float(gain.at[k]) - normed * mean) * scale;
                if constexpr (residual) v += to_float(dx.at[k]);
                dx.at[k] = from_float<T>(v);
            }
            store<n>(a.dx + row + i, dx);
        };
#pragma unroll
        for (int p = 0; p < packs; ++p)
            if (const int i = begin + p * stride; i < a.hidden) finish(i, p * n, kept_x[p], kept_dy[p]);
#pragma unroll 1
        for (int i = begin + packs * stride, e = packs * n; i < a.hidden; i += stride, e += n)
            finish(i, e, load<n>(a.x + row + i), load<n>(a.dy + row + i));
    }
    for (int i = begin, e = 0; i < a.hidden; i += stride, e += n)
        for (int k = 0; k < n; ++k)
            store(a.partial + std::int64_t{blockIdx.x} * a.hidden + i + k, {mine[(e + k) * threads]});
}

template <class T, bool residual>
void backward(Stream& stream, const RmsnormBackward<T>& args) {
    using K = in_kernel<T>;
    const std::int64_t tokens = args.x.dim(0), hidden = args.x.dim(1);
    if (tokens == 0) return;
    const TokenSlices slices(tokens);
    const Backward<K> a{.dx = kernel_pointer(args.dx),
                        .partial = reinterpret_cast<float*>(args.scratch.data()),
                        .dy = kernel_pointer(args.dy),
                        .x = kernel_pointer(args.x),
                        .gain = kernel_pointer(args.gain),
                        .dresidual = residual ? kernel_pointer(*args.dresidual) : nullptr,
                        .rstd = args.rstd.data(),
                        .tokens = tokens,
                        .slice_tokens = slices.begin(1),
                        .hidden = static_cast<int>(hidden)};
    const auto go = [&](auto* kernel, int n) {
        const std::int64_t packs = ceil_div(hidden, std::int64_t{n});
        const std::int64_t threads =
            std::min<std::int64_t>(max_threads, ceil_div(packs, std::int64_t{warp_size}) * warp_size);
        const std::int64_t shared = ceil_div(packs, threads) * n * threads * static_cast<std::int64_t>(sizeof(float));
        if (shared > most_shared_bytes)
            fail("rmsnorm_backward: rows of ", hidden, " elements need ", shared,
                 " bytes of a GPU's shared memory; it has ", most_shared_bytes);
        launch(stream,
               {.blocks = static_cast<unsigned>(slices.count()),
                .threads = static_cast<unsigned>(threads),
                .shared_bytes = static_cast<std::size_t>(shared)},
               kernel, a);
    };
    constexpr int n = widest<K>;
    bool vectors = true;
    for (const K* p : {static_cast<const K*>(a.dx), a.dy, a.x, a.gain, a.dresidual})
        vectors &= in_vectors_of(n, p, hidden);
    if (vectors)
        go(backward_kernel<K, n, residual>, n);
    else
        go(backward_kernel<K, 1, residual>, 1);
    add_partials(stream, args.dgain.data(), a.partial, slices.count(), hidden);
}

template <class T>
void backward(Stream& stream, const RmsnormBackward<T>& args) {
    if (args.dresidual)
        backward<T, true>(stream, args);
    else
        backward<T, false>(stream, args);
}

}  // namespace

template <>
void run(Stream& stream, const RmsnormBackward<float>& args) {
    backward(stream, args);
}
template <>
void run(Stream& stream, const RmsnormBackward<bf16>& args) {
    backward(stream, args);
}

}  // namespace keel::KEEL_DEVICE
