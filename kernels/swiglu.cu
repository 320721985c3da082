// The CUDA bodies of kernels/swiglu.h: element by element, 16 bytes at a time where rows allow it.
#include "kernels/cuda_ops.h"
#include "kernels/flat.cuh"
#include "kernels/swiglu.h"

namespace keel::KEEL_DEVICE {
namespace {

// For gate far below zero the exponential overflows to infinity, and 1 / infinity is the right limit, 0.
KEEL_INLINE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

template <class T, int n>
__global__ void __launch_bounds__(flat_threads)
    forward_kernel(T* y, const T* gate_up, std::int64_t tokens, std::int64_t ffn) {
    const std::int64_t i = flat_element(n);
    if (i >= tokens * ffn) return;
    const std::int64_t at = i / ffn * 2 * ffn + i % ffn;  // of gate; up lies ffn further
    const Pack<T, n> gate = load<n>(gate_up + at), up = load<n>(gate_up + at + ffn);
    Pack<T, n> out;
#pragma unroll
    for (int k = 0; k < n; ++k) {
        const float g = to_float(gate.at[k]);
        out.at[k] = from_float<T>(g * sigmoid(g) * to_float(up.at[k]));
    }
    store<n>(y + i, out);
}

template <class T, int n>
__global__ void __launch_bounds__(flat_threads)
    backward_kernel(T* dgate_up, const T* dy, const T* gate_up, std::int64_t tokens, std::int64_t ffn) {
    const std::int64_t i = flat_element(n);
    if (i >= tokens * ffn) return;
    const std::int64_t at = i / ffn * 2 * ffn + i % ffn;
    const Pack<T, n> gate = load<n>(gate_up + at), up = load<n>(gate_up + at + ffn), d = load<n>(dy + i);
    Pack<T, n> dgate, dup;
#pragma unroll
    for (int k = 0; k < n; ++k) {
        const float g = to_float(gate.at[k]), u = to_float(up.at[k]), dk = to_float(d.at[k]);
        const float s = sigmoid(g), silu = g * s;
        dgate.at[k] = from_float<T>(dk * u * (s + silu * (1.0f - s)));
        dup.at[k] = from_float<T>(dk * silu);
    }
    store<n>(dgate_up + at, dgate);  // dgate_up may be gate_up: this thread alone reads and writes these elements
    store<n>(dgate_up + at + ffn, dup);
}

template <class T>
void forward(Stream& stream, const SwigluForward<T>& a) {
    const std::int64_t tokens = a.gate_up.dim(0), ffn = a.gate_up.dim(1) / 2;
    if (tokens * ffn == 0) return;
    using K = in_kernel<T>;
    constexpr int n = widest<K>;
    const auto go = [&](auto* kernel, int width) {
        launch(stream, flat_shape(tokens * ffn, width), kernel, kernel_pointer(a.y), kernel_pointer(a.gate_up), tokens,
               ffn);
    };
    if (in_vectors_of(n, a.y.data(), ffn) && in_vectors_of(n, a.gate_up.data(), ffn))
        go(forward_kernel<K, n>, n);
    else
        go(forward_kernel<K, 1>, 1);
}

template <class T>
void backward(Stream& stream, const SwigluBackward<T>& a) {
    const std::int64_t tokens = a.gate_up.dim(0), ffn = a.gate_up.dim(1) / 2;
    if (tokens * ffn == 0) return;
    using K = in_kernel<T>;
    constexpr int n = widest<K>;
    const auto go = [&](auto* kernel, int width) {
        launch(stream, flat_shape(tokens * ffn, width), kernel, kernel_pointer(a.dgate_up), kernel_pointer(a.dy),
               kernel_pointer(a.gate_up), tokens, ffn);
    };
    if (in_vectors_of(n, a.dgate_up.data(), ffn) && in_vectors_of(n, a.dy.data(), ffn) &&
        in_vectors_of(n, a.gate_up.data(), ffn))
        go(backward_kernel<K, n>, n);
    else
        go(backward_kernel<K, 1>, 1);
}

}  // namespace

template <>
void run(Stream& stream, const SwigluForward<float>& args) {
    forward(stream, args);
}
template <>
void run(Stream& stream, const SwigluForward<bf16>& args) {
    forward(stream, args);
}
template <>
void run(Stream& stream, const SwigluBackward<float>& args) {
    backward(stream, args);
}
template <>
void run(Stream& stream, const SwigluBackward<bf16>& args) {
    backward(stream, args);
}

}  // namespace keel::KEEL_DEVICE
