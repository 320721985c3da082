// kernels/swiglu.h: y = silu(gate) * up, with silu(g) = g / (1 + exp(-g)). Shazeer 2020, arXiv:2002.05202.
//
// Layout  row-major, contiguous. gate_up is packed: ffn columns of gate, then ffn of up. T is float, bf16 or f16, maths float.
// Order   asynchronous on `stream`. Same inputs, same bits, on any number of threads.
// Errors  throws Error before launching if shapes disagree.
#pragma once

#include "kernels/base/dtype.h"
#include "kernels/base/stream.h"
#include "kernels/base/view.h"

namespace keel {

template <class T> struct SwigluForward {
    View<T> y;               // [tokens, ffn]      written
    View<const T> gate_up;   // [tokens, 2 * ffn]  read
};
// With s = sigmoid(gate):  dgate = dy * up * s * (1 + gate * (1 - s)),  dup = dy * gate * s.
template <class T> struct SwigluBackward {
    View<T> dgate_up;        // [tokens, 2 * ffn]  written; may be gate_up itself
    View<const T> dy;        // [tokens, ffn]      read
    View<const T> gate_up;   // [tokens, 2 * ffn]  read
};
template <class T> void swiglu_forward(Stream& stream, const SwigluForward<T>& args);
template <class T> void swiglu_backward(Stream& stream, const SwigluBackward<T>& args);

}  // namespace keel
