// kernels/linear.h: y = x w^T (+ bias), its two gradients, and the bias gradient. Derivation: docs/kernel_math.md.
//
// Layout  row-major; x, y, dx, dy may have strided rows, w and dw are contiguous. w is [out, in], as model files store it.
//         T is float, bf16 or f16; sums are float either way, in an order that depends on the shape alone.
//         Y is T, or float where operands of two bytes feed something that wants the full sum (logits).
// Order   asynchronous on `stream`. Same inputs, same bits, on any number of threads.
// Errors  throws Error before launching if shapes disagree.
// Alias   none of the written tensors may overlap a read one.
#pragma once

#include <optional>

#include "kernels/base/dtype.h"
#include "kernels/base/stream.h"
#include "kernels/base/view.h"

namespace keel {

template <class T, class Y = T> struct LinearForward {
    View<Y> y;                          // [tokens, out]  written
    View<const T> x;                    // [tokens, in]   read
    View<const T> w;                    // [out, in]      read
    std::optional<View<const T>> bias = std::nullopt;  // [out]  read
};
template <class T> struct LinearDgrad {  // dx = dy w
    View<T> dx;                         // [tokens, in]   written, or accumulated if `accumulate`
    View<const T> dy;                   // [tokens, out]  read
    View<const T> w;                    // [out, in]      read
    bool accumulate = false;
};
template <class T> struct LinearWgrad {  // dw += dy^T x
    View<float> dw;                     // [out, in]      accumulated, or written if not `accumulate`
    View<const T> dy;                   // [tokens, out]  read
    View<const T> x;                    // [tokens, in]   read
    bool accumulate = true;
};
template <class T> struct BiasGrad {    // dbias += sum over tokens of dy
    View<float> dbias;                  // [out]          accumulated
    View<const T> dy;                   // [tokens, out]  read
};
template <class T, class Y = T> void linear_forward(Stream& stream, const LinearForward<T, Y>& args);
template <class T> void linear_dgrad(Stream& stream, const LinearDgrad<T>& args);
template <class T> void linear_wgrad(Stream& stream, const LinearWgrad<T>& args);
template <class T> void bias_grad(Stream& stream, const BiasGrad<T>& args);

}  // namespace keel
