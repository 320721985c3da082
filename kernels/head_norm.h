// kernels/head_norm.h: RMSNorm of every head of q or k over head_dim, with one gain for all heads (Qwen3's q_norm, k_norm).
// The same mathematics as kernels/rmsnorm.h, on rows that are head_dim slices of a wider, strided matrix.
//
// Layout  x, y, dx, dy may have strided rows (columns of a packed qkv); rstd is contiguous. T is float, bf16 or f16.
// Order   asynchronous on `stream`. Same inputs, same bits, on any number of threads.
// Errors  throws Error before launching if shapes disagree.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/dtype.h"
#include "kernels/base/stream.h"
#include "kernels/base/view.h"

namespace keel {

template <class T> struct HeadNormForward {
    View<T> y;                 // [tokens, heads * head_dim]  written; may be x itself if no backward follows
    View<float> rstd;          // [tokens, heads]             written
    View<const T> x;           // [tokens, heads * head_dim]  read
    View<const T> gain;        // [head_dim]                  read
    float eps;
};
template <class T> struct HeadNormBackward {
    View<T> dx;                // [tokens, heads * head_dim]  written; may be dy itself
    View<float> dgain;         // [head_dim]                  accumulated
    View<std::byte> scratch;   // head_norm_scratch_bytes(tokens, head_dim)
    View<const T> dy, x;       // [tokens, heads * head_dim]  read
    View<const T> gain;        // [head_dim]                  read
    View<const float> rstd;    // [tokens, heads]             read
};
template <class T> void head_norm_forward(Stream& stream, const HeadNormForward<T>& args);
template <class T> void head_norm_backward(Stream& stream, const HeadNormBackward<T>& args);
std::int64_t head_norm_scratch_bytes(std::int64_t tokens, std::int64_t head_dim);

}  // namespace keel
