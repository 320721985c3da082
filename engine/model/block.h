// engine/model/block.h: one transformer block, forward and backward, as flat lists of launches.
//
//   in  = x + delta                      the residual stream; delta is what the block before added
//   mid = in + out(attention(rope(qkv(rmsnorm(in)))))
//   the next block's delta = down(swiglu(gate_up(rmsnorm(mid))))
//
// or, with post_norm (OLMo-2), the norms stand behind the branches:
//
//   mid = in + rmsnorm(out(attention(rope(qkv(in)))))
//   the next block's delta = rmsnorm(down(swiglu(gate_up(mid))))
//
// What forward must keep is BlockSaved. Recomputing is filling that struct again with the same launches on the same
// inputs, so a recompute policy changes neither the mathematics nor a bit; it decides which members live from forward to
// backward and which are lent twice (engine/model/layout.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "engine/parallel/context.h"
#include "engine/parallel/tensor.h"
#include "kernels/base/dtype.h"
#include "kernels/base/stream.h"
#include "kernels/base/view.h"

namespace keel {

// Each policy also recomputes what the ones before it do.
enum class Recompute : std::uint8_t { none, swiglu, norms, attention, block };

struct BlockDims {  // heads, kv_heads and ffn of this rank
    std::int64_t hidden, heads, kv_heads, head_dim, ffn;
    bool qk_norm, qk_norm_whole, post_norm;
    float eps;

    std::int64_t q_size() const { return heads * head_dim; }
    std::int64_t kv_size() const { return kv_heads * head_dim; }
    std::int64_t qkv_size() const { return q_size() + 2 * kv_size(); }
};

template <class T> struct BlockParams {
    View<const T> attn_norm;  // [hidden]
    View<const T> qkv;        // [qkv_size, hidden]  rows of q, then k, then v
    View<const T> out;        // [hidden, q_size]
    View<const T> ffn_norm;   // [hidden]
    View<const T> gate_up;    // [2 * ffn, hidden]   gate, then up
    View<const T> down;       // [hidden, ffn]
    std::optional<View<const T>> qkv_bias;        // [qkv_size]
    std::optional<View<const T>> q_norm, k_norm;  // [head_dim], or whole: [q_size] and [kv_size]
};
struct BlockGrads {  // vectors accumulate; so do matrices, unless this is the first micro-batch of a step
    View<float> attn_norm, qkv, out, ffn_norm, gate_up, down;
    std::optional<View<float>> qkv_bias, q_norm, k_norm;
    bool accumulate = true;  // of the matrices: false writes them, which saves clearing and reading them
};
// `rows` are tokens, or with sequence parallelism this rank's share of them.
template <class T> struct BlockSaved {
    View<T> in;              // [rows, hidden]
    View<float> attn_rstd;   // [rows]
    View<T> attn_norm;       // [rows, hidden]      what the norm wrote; with post_norm what it read, the attention's output
    View<T> qkv;             // [tokens, qkv_size]  q and k rotated in place, unless qk_norm keeps them raw
    std::optional<View<T>> qk;                 // [tokens, q_size + kv_size]  with qk_norm: normed and rotated
    std::optional<View<float>> q_rstd, k_rstd; // [tokens, heads], [tokens, kv_heads]; of norms of the whole [tokens, 1]
    View<T> att;             // [tokens, q_size]
    View<float> lse;         // [heads, tokens]
    View<T> mid;             // [rows, hidden]
    View<float> ffn_rstd;    // [rows]
    View<T> ffn_norm;        // [rows, hidden]      as attn_norm
    View<T> gate_up;         // [tokens, 2 * ffn]   backward overwrites it with its gradient
    View<T> act;             // [tokens, ffn]
};
template <class T> struct BlockTemp {
    View<T> dact;            // [tokens, ffn]
    View<T> dnorm;           // [rows, hidden]
    View<T> datt;            // [tokens, q_size]
    View<T> dqkv;            // [tokens, qkv_size]
    View<std::byte> attention_scratch, norm_scratch;
    std::optional<View<float>> row_sums;  // [tokens]  with qk_norm_whole
};
// Where the tokens stand: the same for every block of a micro-batch.
struct Sequence {
    View<const std::int32_t> positions;  // [tokens]
    View<const std::int32_t> lo;         // [tokens]  first key each query sees
    View<const float> rope;              // [positions, head_dim]  cos and sin
};
// The ranks that share a block. Without a `cp` of more than one rank the tokens are whole rows.
struct BlockRanks {
    TensorParallel tp;
    ContextParallel cp;
};
// Where ranks meet: lent for one half of a block, in forward or in backward. Empty without more than one rank.
template <class T> struct Meeting {
    std::optional<View<T>> whole_a, whole_b;   // [tokens, hidden]  with sequence parallelism
    std::optional<ContextBuffers<T>> context;  // with context parallelism
};
template <class T> struct BlockMeetings {
    Meeting<T> attention, ffn;
};

// q and k as attention reads them, whichever buffer they are in.
template <class T> View<T> rotated_q(const BlockDims& dims, const BlockSaved<T>& saved);
template <class T> View<T> rotated_k(const BlockDims& dims, const BlockSaved<T>& saved);

// qkv projection, q/k norm and rotation of `x`, the normed tokens, or with post_norm the residual stream. The decoder
// (engine/model/decoder.h) shares it.
template <class T>
void qkv_forward(Stream& s, const BlockDims& dims, const TensorParallel& tp, const BlockParams<T>& p,
                 const BlockSaved<T>& saved, View<const T> x, const Sequence& seq);

// `x` is the residual stream and `delta` what the block before added; without delta x must be saved.in itself.
// `branch` [rows, hidden] is lent for the attention output; `next_delta` [rows, hidden] is written.
template <class T>
void block_forward(Stream& s, const BlockDims& dims, const BlockRanks& ranks, const BlockParams<T>& p, const BlockSaved<T>& saved,
                   const BlockMeetings<T>& meet, const Sequence& seq, View<const T> x, std::optional<View<const T>> delta,
                   View<T> branch, View<T> next_delta);

// Fills the members of `saved` that `policy` did not keep.
template <class T>
void block_recompute(Stream& s, const BlockDims& dims, const BlockRanks& ranks, const BlockParams<T>& p,
                     const BlockSaved<T>& saved, const Meeting<T>& meet, const Sequence& seq, Recompute policy, View<T> branch);

// `dh` comes in as the gradient of (mid + next delta), which is the same for both, and leaves as that of `in`.
template <class T>
void block_backward(Stream& s, const BlockDims& dims, const BlockRanks& ranks, const BlockParams<T>& p, const BlockGrads& g,
                    const BlockSaved<T>& saved, const BlockTemp<T>& t, const BlockMeetings<T>& meet, const Sequence& seq,
                    View<T> dh);

}  // namespace keel
