// kernels/adamw.h: one AdamW step on a flat piece of parameters. Loshchilov & Hutter 2017, arXiv:1711.05101.
//
//   g = grad * grad_scale;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2;
//   master -= lr * ( (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + eps) + weight_decay * master );  param = T(master)
//
// Layout  flat, contiguous. Master weights and moments are float; param is T, rounded to nearest even. For float
//         parameters master is param itself. Everything is element by element.
// Order   asynchronous on `stream`. Same inputs, same bits, on any number of threads.
// Errors  throws Error before launching if sizes disagree, or step < 1.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/base/dtype.h"
#include "kernels/base/stream.h"
#include "kernels/base/view.h"

namespace keel {

template <class T> struct Adamw {
    View<T> param;             // [n]  written
    View<float> master, m, v;  // [n]  updated; master may be param itself if T is float
    View<const float> grad;    // [n]  read
    float lr, beta1, beta2, eps, weight_decay;
    float grad_scale;          // 1 / tokens, times the clipping factor
    std::int64_t step;         // 1 for the first update
};
template <class T> void adamw(Stream& stream, const Adamw<T>& args);

// What bias correction multiplies by, 1 / (1 - beta^step), in double: at step 1 float would lose most of 1 - beta.
inline float adamw_correction(float beta, std::int64_t step) {
    return static_cast<float>(1.0 / (1.0 - std::pow(static_cast<double>(beta), static_cast<double>(step))));
}

}  // namespace keel
