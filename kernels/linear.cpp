#include "kernels/linear.h"

#include <algorithm>

#include "kernels/cuda_ops.h"
#include "kernels/matmul.h"
#include "kernels/simd.h"

namespace keel {
namespace {

template <class T>
void check_matrix(const char* what, const View<T>& v) {
    if (v.rank() != 2) fail(what, " is ", v.shape(), ", but must be a matrix");
}

template <class T, class Y>
void check(const LinearForward<T, Y>& a) {
    check_matrix("linear_forward: x", a.x);
    check_matrix("linear_forward: w", a.w);
    expect_contiguous("linear_forward: w", a.w);
    const std::int64_t tokens = a.x.dim(0), in = a.x.dim(1), out = a.w.dim(0);
    if (a.w.dim(1) != in)
        fail("linear_forward: w is ", a.w.shape(), ", but x has rows of ", in, "; w must be [out, ", in, "]");
    expect_shape("linear_forward: y", a.y, {tokens, out});
    if (a.bias) {
        expect_shape("linear_forward: bias", *a.bias, {out});
        expect_contiguous("linear_forward: bias", *a.bias);
    }
}

template <class T>
void check(const LinearDgrad<T>& a) {
    check_matrix("linear_dgrad: dy", a.dy);
    check_matrix("linear_dgrad: w", a.w);
    expect_contiguous("linear_dgrad: w", a.w);
    const std::int64_t tokens = a.dy.dim(0), out = a.dy.dim(1);
    if (a.w.dim(0) != out)
        fail("linear_dgrad: w is ", a.w.shape(), ", but dy has rows of ", out, "; w must be [", out, ", in]");
    expect_shape("linear_dgrad: dx", a.dx, {tokens, a.w.dim(1)});
}

template <class T>
void check(const LinearWgrad<T>& a) {
    check_matrix("linear_wgrad: dy", a.dy);
    check_matrix("linear_wgrad: x", a.x);
    if (a.x.dim(0) != a.dy.dim(0))
        fail("linear_wgrad: x has ", a.x.dim(0), " tokens, but dy has ", a.dy.dim(0), "; pass the x that forward read");
    expect_shape("linear_wgrad: dw", a.dw, {a.dy.dim(1), a.x.dim(1)});
    expect_contiguous("linear_wgrad: dw", a.dw);
}

template <class T>
MatmulOperand<T> plain(const View<const T>& v) {
    return {v.data(), v.stride(), 1};
}
template <class T>
MatmulOperand<T> transposed(const View<const T>& v) {
    return {v.data(), 1, v.stride()};
}

}  // namespace

template <class T, class Y>
void linear_forward(Stream& stream, const LinearForward<T, Y>& a) {
    check(a);
    if (run_on_device(stream, a)) return;
    matmul<T, Y>(stream, {.c = a.y.data(),
                          .c_stride = a.y.stride(),
                          .a = plain(a.x),
                          .b = transposed(a.w),
                          .m = a.x.dim(0),
                          .n = a.w.dim(0),
                          .k = a.x.dim(1),
                          .accumulate = false,
                          .bias = a.bias ? a.bias->data() : nullptr});
}

template <class T>
void linear_dgrad(Stream& stream, const LinearDgrad<T>& a) {
    check(a);
    if (run_on_device(stream, a)) return;
    matmul<T, T>(stream, {.c = a.dx.data(),
                          .c_stride = a.dx.stride(),
                          .a = plain(a.dy),
                          .b = plain(a.w),
                          .m = a.dy.dim(0),
                          .n = a.w.dim(1),
                          .k = a.dy.dim(1),
                          .accumulate = a.accumulate});
}

template <class T>
void linear_wgrad(Stream& stream, const LinearWgrad<T>& a) {
    check(a);
    if (run_on_device(stream, a)) return;
    matmul<T, float>(stream, {.c = a.dw.data(),
                              .c_stride = a.dw.stride(),
                              .a = transposed(a.dy),
                              .b = plain(a.x),
                              .m = a.dy.dim(1),
                              .n = a.x.dim(1),
                              .k = a.dy.dim(0),
                              .accumulate = a.accumulate});
}

// A tile owns some columns and adds their tokens in order, in blocks that keep a partial sum short.
template <class T>
void bias_grad(Stream& stream, const BiasGrad<T>& a) {
    check_matrix("bias_grad: dy", a.dy);
    const std::int64_t tokens = a.dy.dim(0), out = a.dy.dim(1);
    expect_shape("bias_grad: dbias", a.dbias, {out});
    expect_contiguous("bias_grad: dbias", a.dbias);
    if (run_on_device(stream, a)) return;
    constexpr std::int64_t columns = 4 * simd::width, block = 64;
    stream.parallel(ceil_div(out, columns), [&](std::int64_t i, int) {
        const std::int64_t end = std::min(out, (i + 1) * columns);
        for (std::int64_t column = i * columns; column < end; column += simd::width) {
            const std::int64_t here = std::min<std::int64_t>(end - column, simd::width);
            const bool whole = here == simd::width;
            simd::Float total{};
            for (std::int64_t token = 0; token < tokens; token += block) {
                simd::Float sum{};
                for (std::int64_t t = token; t < std::min(tokens, token + block); ++t)
                    sum += whole ? simd::load(a.dy.row(t) + column) : simd::load_part(a.dy.row(t) + column, here);
                total += sum;
            }
            float* const to = a.dbias.data() + column;
            if (whole)
                simd::store(to, simd::load(to) + total);
            else
                simd::store_part(to, simd::load_part(to, here) + total, here);
        }
    });
}

template void linear_forward(Stream&, const LinearForward<float, float>&);
template void linear_forward(Stream&, const LinearForward<bf16, float>&);
template void linear_forward(Stream&, const LinearForward<f16, float>&);
template void linear_forward(Stream&, const LinearForward<bf16, bf16>&);
template void linear_forward(Stream&, const LinearForward<f16, f16>&);
template void linear_dgrad(Stream&, const LinearDgrad<float>&);
template void linear_dgrad(Stream&, const LinearDgrad<bf16>&);
template void linear_dgrad(Stream&, const LinearDgrad<f16>&);
template void linear_wgrad(Stream&, const LinearWgrad<float>&);
template void linear_wgrad(Stream&, const LinearWgrad<bf16>&);
template void linear_wgrad(Stream&, const LinearWgrad<f16>&);
template void bias_grad(Stream&, const BiasGrad<float>&);
template void bias_grad(Stream&, const BiasGrad<bf16>&);
template void bias_grad(Stream&, const BiasGrad<f16>&);

}  // namespace keel
