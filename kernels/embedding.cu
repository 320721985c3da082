// The CUDA bodies of kernels/embedding.h. Backward sorts (row, token) by row, stably, so that the tokens of a row lie
// together and in order; the block that meets the first of them adds them to the row one after the other: the same
// additions in the same order as on the CPU, without atomics.
#include <cub/device/device_radix_sort.cuh>

#include <bit>

#include "kernels/cuda_ops.h"
#include "kernels/device.cuh"
#include "kernels/embedding.h"

namespace keel::KEEL_DEVICE {
namespace {

constexpr int threads = 256;

// A block gathers one row; an id of another shard gives zeros.
template <class T, int n>
__global__ void __launch_bounds__(threads)
    forward_kernel(T* y, const std::int32_t* ids, const T* w, std::int64_t vocab_begin, std::int64_t vocab,
                   std::int64_t hidden) {
    const std::int64_t token = blockIdx.x, row = load(ids + token).at[0] - vocab_begin;
    const bool here = row >= 0 && row < vocab;
    for (std::int64_t i = std::int64_t{threadIdx.x} * n; i < hidden; i += std::int64_t{threads} * n) {
        Pack<T, n> v;
#pragma unroll
        for (int k = 0; k < n; ++k) v.at[k] = from_float<T>(0.0f);
        if (here) v = load<n>(w + row * hidden + i);
        store<n>(y + token * hidden + i, v);
    }
}

// Keys to sort by: the row, or `vocab` where another shard has it, which is sorted last.
__global__ void __launch_bounds__(threads)
    keys_kernel(std::int32_t* keys, std::int32_t* tokens, const std::int32_t* ids, std::int64_t vocab_begin,
                std::int64_t vocab, int n) {
    const int i = static_cast<int>(blockIdx.x) * threads + static_cast<int>(threadIdx.x);
    if (i >= n) return;
    const std::int64_t row = load(ids + i).at[0] - vocab_begin;
    store(keys + i, {static_cast<std::int32_t>(row >= 0 && row < vocab ? row : vocab)});
    store(tokens + i, {i});
}

// Block (i, c): if i is the first with its key, it adds the tokens of that key to part c of the row.
template <class T, int n>
__global__ void __launch_bounds__(threads)
    backward_kernel(float* dw, const T* dy, const std::int32_t* keys, const std::int32_t* order, std::int64_t vocab,
                    std::int64_t hidden, int tokens) {
    const int first = static_cast<int>(blockIdx.x);
    const std::int32_t key = load(keys + first).at[0];
    const std::int64_t column = (std::int64_t{blockIdx.y} * threads + threadIdx.x) * n;
    if (key == vocab || column >= hidden || (first > 0 && load(keys + first - 1).at[0] == key)) return;
    float* const to = dw + key * hidden + column;
    Pack<float, n> sum = load<n>(to);
    for (int i = first; i < tokens && load(keys + i).at[0] == key; ++i) {
        const Pack<T, n> d = load<n>(dy + load(order + i).at[0] * hidden + column);
#pragma unroll
        for (int k = 0; k < n; ++k) sum.at[k] += to_float(d.at[k]);
    }
    store<n>(to, sum);
}

template <class T>
void forward(Stream& stream, const EmbeddingForward<T>& a) {
    using K = in_kernel<T>;
    const std::int64_t tokens = a.ids.dim(0), hidden = a.w.dim(1);
    if (tokens * hidden == 0) return;
    const auto go = [&](auto* kernel) {
        launch(stream, {.blocks = static_cast<unsigned>(tokens), .threads = threads}, kernel, kernel_pointer(a.y),
               a.ids.data(), kernel_pointer(a.w), a.vocab_begin, a.w.dim(0), hidden);
    };
    constexpr int n = widest<K>;
    if (in_vectors_of(n, a.y.data(), hidden) && in_vectors_of(n, a.w.data(), hidden))
        go(forward_kernel<K, n>);
    else
        go(forward_kernel<K, 1>);
}

template <class T>
void backward(Stream& stream, const EmbeddingBackward<T>& a) {
    using K = in_kernel<T>;
    const std::int64_t tokens = a.ids.dim(0), vocab = a.dw.dim(0), hidden = a.dw.dim(1);
    if (tokens * hidden == 0) return;
    const int count = static_cast<int>(tokens);
    const std::int64_t apart = ceil_div(tokens, 64) * 64;  // arrays begin at multiples of 256 bytes
    std::int32_t* const keys = reinterpret_cast<std::int32_t*>(a.scratch->data());
    std::int32_t *const token = keys + apart, *const sorted = token + apart, *const order = sorted + apart;
    std::byte* const temp = reinterpret_cast<std::byte*>(order + apart);
    const auto left = static_cast<std::size_t>(a.scratch->data() + a.scratch->bytes() - temp);
    const auto native = static_cast<cudaStream_t>(stream.native());
    const int bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(vocab)));  // a key may be vocab itself
    std::size_t bytes = 0;
    check(cub::DeviceRadixSort::SortPairs(nullptr, bytes, keys, sorted, token, order, count, 0, bits, native));
    if (bytes > left)
        fail("embedding: sorting ", tokens, " ids takes ", bytes, " bytes, but the scratch has ", left,
             " left for it; embedding_scratch_bytes knows another version of CUB");

    const unsigned blocks = static_cast<unsigned>(ceil_div(tokens, threads));
    launch(stream, {.blocks = blocks, .threads = threads}, keys_kernel, keys, token, a.ids.data(), a.vocab_begin, vocab,
           count);
    check(cub::DeviceRadixSort::SortPairs(temp, bytes, keys, sorted, token, order, count, 0, bits, native));
    const auto go = [&](auto* kernel, int n) {
        launch(stream,
               {.blocks = {static_cast<unsigned>(tokens),
                           static_cast<unsigned>(ceil_div(hidden, std::int64_t{threads} * n))},
                .threads = threads},
               kernel, a.dw.data(), kernel_pointer(a.dy), sorted, order, vocab, hidden, count);
    };
    if (in_vectors_of(4, a.dw.data(), hidden) && in_vectors_of(4, a.dy.data(), hidden))
        go(backward_kernel<K, 4>, 4);
    else
        go(backward_kernel<K, 1>, 1);
}

}  // namespace

template <>
void run(Stream& stream, const EmbeddingForward<float>& args) {
    forward(stream, args);
}
template <>
void run(Stream& stream, const EmbeddingForward<bf16>& args) {
    forward(stream, args);
}
template <>
void run(Stream& stream, const EmbeddingBackward<float>& args) {
    backward(stream, args);
}
template <>
void run(Stream& stream, const EmbeddingBackward<bf16>& args) {
    backward(stream, args);
}

}  // namespace keel::KEEL_DEVICE
