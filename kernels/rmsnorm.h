// kernels/rmsnorm.h: y = gain * x * rstd per token, with rstd = 1 / sqrt(mean(x*x) + eps), with and without a residual add.
// Zhang & Sennrich 2019, arXiv:1910.07467. Derivation of the backward: docs/kernel_math.md, "rmsnorm".
//
// Layout  row-major, contiguous. T is float, bf16 or f16; sums and rstd are float either way. As in the released Llama, Mistral
//         and Qwen models, x * rstd is rounded to T before it is multiplied by gain.
// Order   asynchronous on `stream`. Same inputs, same bits, on any number of threads.
// Errors  throws Error before launching if shapes disagree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "kernels/base/dtype.h"
#include "kernels/base/stream.h"
#include "kernels/base/view.h"

namespace keel {

template <class T> struct RmsnormForward {
    View<T> y;                 // [tokens, hidden]  written; may be x itself if no backward follows
    View<float> rstd;          // [tokens]          written; saved for backward
    View<const T> x;           // [tokens, hidden]  read
    View<const T> gain;        // [hidden]          read
    float eps;                 // added to the mean square, inside the root
};
// sum = x + residual, then y = rmsnorm(sum): one pass over memory instead of two.
template <class T> struct AddRmsnormForward {
    View<T> sum;               // [tokens, hidden]  written; may be x or residual itself
    View<T> y;                 // [tokens, hidden]  written
    View<float> rstd;          // [tokens]          written
    View<const T> x, residual; // [tokens, hidden]  read
    View<const T> gain;        // [hidden]          read
    float eps;
};
// With n = x * rstd:  dx = rstd * (gain*dy - n * mean(gain*dy*n)) (+ dresidual),  dgain += sum over tokens of dy*n.
template <class T> struct RmsnormBackward {
    View<T> dx;                // [tokens, hidden]  written; may be dy or dresidual itself
    View<float> dgain;         // [hidden]          accumulated
    View<std::byte> scratch;   // rmsnorm_scratch_bytes(tokens, hidden)
    View<const T> dy, x;       // [tokens, hidden]  read; x is what was normalised (the sum, after AddRmsnormForward)
    View<const T> gain;        // [hidden]          read
    View<const float> rstd;    // [tokens]          read; what forward wrote
    std::optional<View<const T>> dresidual = std::nullopt;  // [tokens, hidden]  read; gradient that passes the norm by
};
template <class T> void rmsnorm_forward(Stream& stream, const RmsnormForward<T>& args);
template <class T> void add_rmsnorm_forward(Stream& stream, const AddRmsnormForward<T>& args);
template <class T> void rmsnorm_backward(Stream& stream, const RmsnormBackward<T>& args);
std::int64_t rmsnorm_scratch_bytes(std::int64_t tokens, std::int64_t hidden);

}  // namespace keel
