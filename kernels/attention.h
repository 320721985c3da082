// kernels/attention.h: y_i = sum over k of softmax_k(scale * q_i . k_k) v_k.
// Query i sees the keys lo[i] <= k <= query_offset + i, of those that are given.
//
// One interval per query covers causal attention, packed documents, sliding windows, a batch (its rows are documents),
// a KV cache and a contiguous context slice (query_offset).
//
// k and v hold the keys key_begin <= k < key_begin + kv_tokens, which may be some of a row: lo, query_offset and
// key_begin count from the row's beginning. What a query's interval has outside of them it does not see; if it sees
// none, y and dq are 0, lse is -infinity, and no key's gradient has a part of it. So attention may be computed over one
// part of the keys after the other, forward put together by kernels/attention_merge.h. Backward wants the y and lse of
// all keys together, and then gives this part's dk and dv, and a dq to be summed over the parts.
//
// Grouped queries: query head h reads kv head h / (heads / kv_heads). Scores never exist as a tokens x tokens matrix:
// blocks with online softmax. Rabe & Staats 2021, arXiv:2112.05682; Dao et al. 2022, arXiv:2205.14135. Derivation:
// docs/kernel_math.md.
//
// q and k usually come here turned (kernels/rope.h). Told by which angles, backward turns their gradients back before
// it rounds them, and what it writes are those of q and k as they were before: no pass of its own, no rounding of its
// own. (On a GPU that holds for bf16 in aligned rows where rotary_dim is 64 or 128, head_dim is the same and scale is
// positive; other gradients are turned where they were written, by a kernel of rope.cu.) A rotation is linear: parts of
// a dq that are added up may be turned each. A dk whose other parts have not been turned must not be.
//
// Layout  rows may be strided (q, k, v are usually columns of one packed qkv). T is float, bf16 or f16; scores, softmax
//         and sums are float.
// Order   asynchronous on `stream`. Same inputs, same bits, on any number of threads.
//         A query's y and lse depend on its own interval alone: alone or in a batch, it has the same bits.
//         (On a GPU: alone or with any others, but at the same position modulo 64, or 128 by attention_hopper.cu.)
// Errors  throws Error before launching if shapes disagree, if lo[i] is not in [0, query_offset + i], or if a position
//         is outside of its table; of what lies in the memory of a GPU the latter two are not seen here.
// Alias   none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "kernels/base/dtype.h"
#include "kernels/base/stream.h"
#include "kernels/base/view.h"
#include "kernels/rope.h"

namespace keel {

template <class T>
struct AttentionForward {
    View<T> y;                    // [tokens, heads * head_dim]        written
    View<float> lse;              // [heads, tokens]                   written; log of the softmax denominator, natural
    View<const T> q;              // [tokens, heads * head_dim]        read
    View<const T> k, v;           // [kv_tokens, kv_heads * head_dim]  read
    View<const std::int32_t> lo;  // [tokens]                          read; first visible key
    std::int64_t head_dim;
    std::int64_t query_offset;   // position of query 0
    std::int64_t key_begin = 0;  // position of key 0
    float scale;                 // usually 1 / sqrt(head_dim)
};
template <class T>
struct AttentionBackward {
    View<T> dq;               // [tokens, heads * head_dim]        written
    View<T> dk, dv;           // [kv_tokens, kv_heads * head_dim]  written
    View<std::byte> scratch;  // attention_scratch_bytes(...), 64-byte aligned
    View<const T> dy, y;      // [tokens, heads * head_dim]        read
    View<const float> lse;    // [heads, tokens]                   read; with y, what forward wrote
    View<const T> q, k, v;    // as in forward
    View<const std::int32_t> lo;
    std::int64_t head_dim, query_offset, key_begin = 0;
    float scale;
    std::optional<RopeAngles> q_rope = {};  // a position for each of tokens: dq is turned back
    std::optional<RopeAngles> k_rope = {};  // a position for each of kv_tokens: dk is
};
template <class T>
void attention_forward(Stream& stream, const AttentionForward<T>& args);
template <class T>
void attention_backward(Stream& stream, const AttentionBackward<T>& args);
std::int64_t attention_scratch_bytes(std::int64_t tokens, std::int64_t heads, std::int64_t kv_tokens,
                                     std::int64_t kv_heads, std::int64_t head_dim);

}  // namespace keel
