// The CUDA bodies of kernels/linear.h: products by cuBLASLt (kernels/products.cuh), which sees a row-major [r, c] as a
// column-major c x r, so that nothing is ever transposed in memory; and two small kernels for biases.
#include <algorithm>

#include "kernels/cuda_ops.h"
#include "kernels/device.cuh"
#include "kernels/linear.h"
#include "kernels/products.cuh"

namespace keel::KEEL_DEVICE {
namespace {

template <class T>
constexpr cudaDataType_t data_type = std::is_same_v<T, bf16> ? CUDA_R_16BF : CUDA_R_32F;

// The largest power of two that divides the address, of those the library asks about.
std::uint32_t alignment_of(const void* p) {
    std::uint32_t a = 256;
    while (reinterpret_cast<std::uintptr_t>(p) % a != 0) a /= 2;
    return a;
}

template <class T>
Matrix seen(const View<T>& v) {
    return {v.dim(1), v.dim(0), std::max(v.stride(), v.dim(1))};
}

struct How {
    bool transpose_a = false, transpose_b = false, accumulate = false;
};
// All three are row-major Views; d^T = op(a^T) op(b^T).
template <class T, class Y>
void product(Stream& stream, const How& how, const View<const T>& a, const View<const T>& b, const View<Y>& d,
             const void* bias = nullptr) {
    const Problem problem{seen(a),
                          seen(b),
                          seen(d),
                          data_type<T>,
                          data_type<Y>,
                          how.transpose_a,
                          how.transpose_b,
                          how.accumulate,
                          bias != nullptr,
                          alignment_of(a.data()),
                          alignment_of(b.data()),
                          alignment_of(d.data())};
    run_product(stream, problem, a.data(), b.data(), d.data(), bias);
}

constexpr int threads = 256;

template <class Y, class T>
__global__ void __launch_bounds__(threads)
    add_bias_kernel(Y* y, const T* bias, std::int64_t stride, std::int64_t tokens, std::int64_t out) {
    const std::int64_t i = std::int64_t{blockIdx.x} * threads + threadIdx.x;
    if (i >= tokens * out) return;
    Y* const at = y + i / out * stride + i % out;
    store(at, {from_float<Y>(to_float(load(at).at[0]) + to_float(load(bias + i % out).at[0]))});
}

// A block sums 32 columns: each of its warps every eighth token, then the warps in order.
template <class T>
__global__ void __launch_bounds__(threads)
    bias_grad_kernel(float* dbias, const T* dy, std::int64_t stride, std::int64_t tokens, std::int64_t out) {
    constexpr int warps = threads / warp_size;
    KEEL_SHARED(float, partial, [warps][warp_size]);
    const int warp = static_cast<int>(threadIdx.x) / warp_size, lane = static_cast<int>(threadIdx.x) % warp_size;
    const std::int64_t column = std::int64_t{blockIdx.x} * warp_size + lane;
    float sum = 0;
    if (column < out)
        for (std::int64_t t = warp; t < tokens; t += warps) sum += to_float(load(dy + t * stride + column).at[0]);
    partial[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || column >= out) return;
    for (int w = 1; w < warps; ++w) sum += partial[w][lane];
    store(dbias + column, {load(dbias + column).at[0] + sum});
}

void expect_terms(const char* op, std::int64_t terms) {
    if (terms == 0) fail(op, ": sums of no products; x, y and w must have columns");
}

template <class T, class Y>
void forward(Stream& stream, const LinearForward<T, Y>& a) {
    const std::int64_t tokens = a.x.dim(0), out = a.w.dim(0);
    if (tokens * out == 0) return;
    expect_terms("linear_forward", a.x.dim(1));
    // In the library's epilogue where it takes such a bias: of y's type, and aligned.
    const bool fused = a.bias && std::is_same_v<T, Y> && alignment_of(a.bias->data()) >= 16;
    product(stream, {.transpose_a = true}, a.w, a.x, a.y, fused ? a.bias->data() : nullptr);
    if (!a.bias || fused) return;
    launch(stream, {.blocks = static_cast<unsigned>(ceil_div(tokens * out, threads)), .threads = threads},
           add_bias_kernel<in_kernel<Y>, in_kernel<T>>, kernel_pointer(a.y), kernel_pointer(*a.bias), a.y.stride(),
           tokens, out);
}
template <class T>
void dgrad(Stream& stream, const LinearDgrad<T>& a) {
    if (a.dx.size() == 0) return;
    expect_terms("linear_dgrad", a.dy.dim(1));
    product(stream, {.accumulate = a.accumulate}, a.w, a.dy, a.dx);
}
template <class T>
void wgrad(Stream& stream, const LinearWgrad<T>& a) {
    if (a.dw.size() == 0) return;
    if (a.x.dim(0) > 0)
        product(stream, {.transpose_b = true, .accumulate = a.accumulate}, a.x, a.dy, a.dw);
    else if (!a.accumulate)
        check(cudaMemsetAsync(a.dw.data(), 0, static_cast<std::size_t>(a.dw.bytes()),
                              static_cast<cudaStream_t>(stream.native())));
}
template <class T>
void add_bias_grad(Stream& stream, const BiasGrad<T>& a) {
    const std::int64_t tokens = a.dy.dim(0), out = a.dy.dim(1);
    if (tokens * out == 0) return;
    launch(stream, {.blocks = static_cast<unsigned>(ceil_div(out, warp_size)), .threads = threads},
           bias_grad_kernel<in_kernel<T>>, a.dbias.data(), kernel_pointer(a.dy), a.dy.stride(), tokens, out);
}

}  // namespace

template <>
void run(Stream& stream, const LinearForward<float, float>& args) {
    forward(stream, args);
}
template <>
void run(Stream& stream, const LinearForward<bf16, float>& args) {
    forward(stream, args);
}
template <>
void run(Stream& stream, const LinearForward<bf16, bf16>& args) {
    forward(stream, args);
}
template <>
void run(Stream& stream, const LinearDgrad<float>& args) {
    dgrad(stream, args);
}
template <>
void run(Stream& stream, const LinearDgrad<bf16>& args) {
    dgrad(stream, args);
}
template <>
void run(Stream& stream, const LinearWgrad<float>& args) {
    wgrad(stream, args);
}
template <>
void run(Stream& stream, const LinearWgrad<bf16>& args) {
    wgrad(stream, args);
}
template <>
void run(Stream& stream, const BiasGrad<float>& args) {
    add_bias_grad(stream, args);
}
template <>
void run(Stream& stream, const BiasGrad<bf16>& args) {
    add_bias_grad(stream, args);
}

}  // namespace keel::KEEL_DEVICE
