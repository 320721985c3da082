// kernels/split_norm.h: RMSNorm of rows that may be cut by columns over ranks (OLMo-2 normalises all of q, and all of
// k, at once). Each half is two steps, between which the ranks add up one number per row; with one rank nothing happens
// there.
//
//   forward    sums = Σ x²                     y = gain * x * rstd, with rstd = 1 / sqrt(sums / width + eps)
//   backward   sums = Σ gain * dy * x * rstd   dx = rstd * (gain * dy - x * rstd * sums / width)
//                                              dgain += Σ over tokens of dy * x * rstd
//
// Layout  x, y, dx, dy may have strided rows (columns of a packed qkv); the rest is contiguous. T is float, bf16 or f16. x *
//         rstd is rounded to T before it is multiplied by gain, as in kernels/rmsnorm.h.
// Order   asynchronous on `stream`. Same inputs, same bits, on any number of threads.
// Errors  throws Error before launching if shapes disagree.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/dtype.h"
#include "kernels/base/stream.h"
#include "kernels/base/view.h"

namespace keel {

template <class T>
struct SplitNormSquares {
    View<float> sums;  // [tokens]           written
    View<const T> x;   // [tokens, columns]  read
};
template <class T>
struct SplitNormForward {
    View<T> y;           // [tokens, columns]  written; may be x itself if no backward follows
    View<float> rstd;    // [tokens]           read as the sums of all columns, written as rstd
    View<const T> x;     // [tokens, columns]  read
    View<const T> gain;  // [columns]          read
    std::int64_t width;  // columns of all ranks
    float eps;
};
template <class T>
struct SplitNormDots {
    View<float> sums;        // [tokens]           written
    View<const T> dy, x;     // [tokens, columns]  read
    View<const T> gain;      // [columns]          read
    View<const float> rstd;  // [tokens]           read; what forward wrote
};
template <class T>
struct SplitNormBackward {
    View<T> dx;               // [tokens, columns]  written; may be dy itself
    View<float> dgain;        // [columns]          accumulated
    View<std::byte> scratch;  // split_norm_scratch_bytes(tokens, columns)
    View<const T> dy, x;      // [tokens, columns]  read
    View<const T> gain;       // [columns]          read
    View<const float> rstd;   // [tokens]           read
    View<const float> sums;   // [tokens]           read; of all columns
    std::int64_t width;
};
template <class T>
void split_norm_squares(Stream& stream, const SplitNormSquares<T>& args);
template <class T>
void split_norm_forward(Stream& stream, const SplitNormForward<T>& args);
template <class T>
void split_norm_dots(Stream& stream, const SplitNormDots<T>& args);
template <class T>
void split_norm_backward(Stream& stream, const SplitNormBackward<T>& args);
std::int64_t split_norm_scratch_bytes(std::int64_t tokens, std::int64_t columns);

}  // namespace keel
