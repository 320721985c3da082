// kernels/convert.h: casts between element types, and the elementwise sum.
//
// Layout  flat, contiguous. float -> bf16 or f16 rounds to nearest even; NaN stays NaN.
// Order   asynchronous on `stream`. Element by element.
// Errors  throws Error before launching if sizes disagree.
#pragma once

#include "kernels/base/dtype.h"
#include "kernels/base/stream.h"
#include "kernels/base/view.h"

namespace keel {

template <class To, class From> struct Convert {
    View<To> y;             // [n]  written
    View<const From> x;     // [n]  read
};
template <class To, class From> void convert(Stream& stream, const Convert<To, From>& args);

template <class T> struct Add {  // y = a + b, rounded once
    View<T> y;              // [n]  written; may be a or b itself
    View<const T> a, b;     // [n]  read
};
template <class T> void add(Stream& stream, const Add<T>& args);

}  // namespace keel
