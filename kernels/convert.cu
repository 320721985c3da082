// The CUDA bodies of kernels/convert.h: four elements a thread where pointers allow it, the rest one by one.
#include "kernels/convert.h"
#include "kernels/cuda_ops.h"
#include "kernels/flat.cuh"

namespace keel::KEEL_DEVICE {
namespace {

template <class To, class From, int n>
__global__ void __launch_bounds__(flat_threads) convert_kernel(To* y, const From* x, std::int64_t size) {
    const std::int64_t i = flat_element(n);
    if (i + n <= size) {
        const Pack<From, n> v = load<n>(x + i);
        Pack<To, n> out;
#pragma unroll
        for (int k = 0; k < n; ++k) out.at[k] = from_float<To>(to_float(v.at[k]));
        store<n>(y + i, out);
    } else {
        for (std::int64_t k = i; k < size; ++k) store(y + k, {from_float<To>(to_float(load(x + k).at[0]))});
    }
}
// y may be a or b: a thread reads its elements before it writes them.
template <class T, int n>
__global__ void __launch_bounds__(flat_threads) add_kernel(T* y, const T* a, const T* b, std::int64_t size) {
    const std::int64_t i = flat_element(n);
    if (i + n <= size) {
        Pack<T, n> u = load<n>(a + i);
        const Pack<T, n> v = load<n>(b + i);
#pragma unroll
        for (int k = 0; k < n; ++k) u.at[k] = from_float<T>(to_float(u.at[k]) + to_float(v.at[k]));
        store<n>(y + i, u);
    } else {
        for (std::int64_t k = i; k < size; ++k)
            store(y + k, {from_float<T>(to_float(load(a + k).at[0]) + to_float(load(b + k).at[0]))});
    }
}

template <class To, class From>
void convert_any(Stream& stream, const Convert<To, From>& a) {
    using Y = in_kernel<To>;
    using X = in_kernel<From>;
    if (a.y.size() == 0) return;
    const auto go = [&](auto* kernel, int n) {
        launch(stream, flat_shape(a.y.size(), n), kernel, kernel_pointer(a.y), kernel_pointer(a.x), a.y.size());
    };
    if (in_vectors_of(4, a.y.data(), 0) && in_vectors_of(4, a.x.data(), 0))
        go(convert_kernel<Y, X, 4>, 4);
    else
        go(convert_kernel<Y, X, 1>, 1);
}
template <class T>
void add_any(Stream& stream, const Add<T>& a) {
    using K = in_kernel<T>;
    if (a.y.size() == 0) return;
    const auto go = [&](auto* kernel, int n) {
        launch(stream, flat_shape(a.y.size(), n), kernel, kernel_pointer(a.y), kernel_pointer(a.a), kernel_pointer(a.b),
               a.y.size());
    };
    if (in_vectors_of(4, a.y.data(), 0) && in_vectors_of(4, a.a.data(), 0) && in_vectors_of(4, a.b.data(), 0))
        go(add_kernel<K, 4>, 4);
    else
        go(add_kernel<K, 1>, 1);
}

}  // namespace

template <>
void run(Stream& stream, const Convert<float, float>& args) {
    convert_any(stream, args);
}
template <>
void run(Stream& stream, const Convert<float, bf16>& args) {
    convert_any(stream, args);
}
template <>
void run(Stream& stream, const Convert<bf16, float>& args) {
    convert_any(stream, args);
}
template <>
void run(Stream& stream, const Convert<bf16, bf16>& args) {
    convert_any(stream, args);
}
template <>
void run(Stream& stream, const Add<float>& args) {
    add_any(stream, args);
}
template <>
void run(Stream& stream, const Add<bf16>& args) {
    add_any(stream, args);
}

}  // namespace keel::KEEL_DEVICE
