// engine/parallel/context.h: attention of the tokens that one rank holds, over the keys of all context-parallel ranks.
//
// Every row of a micro-batch is cut zig-zag (engine/parallel/slices.h): a rank holds two ranges of queries per row,
// each contiguous, so each is one call of the attention kernel with its own query_offset. The mask `lo` counts keys
// from the beginning of the row, so packed documents, windows and borders that fall between ranks need nothing more.
//
// gather  keys and values of all ranks are gathered, put into natural order, and every range attends to the keys up to
//         its end; backward gathers them again instead of keeping them, and sums dk and dv back to their ranks.
// ring    keys and values travel from rank to rank, n - 1 times; a slice lies with a rank while the next one comes.
//         Each range of queries attends to each range of keys that it can see, and the parts are put together
//         (kernels/attention_merge.h). In backward gradients travel behind their keys: the rank after the owner begins
//         the sum, each one after it adds its part, the owner adds its own last. A fixed order, so the same bits on
//         every run; sums travel as float.
// dq and dk turn back by the angles of q and k once, at their owner: of others' tokens a rank knows no position. Every
// part of a dq is turned where it is computed, for they add up to the turned dq; dk when its sum has come home, in the
// ring before it is rounded.
// Each rank sends n - 1 times its keys and values per pass and block. Gradients: gather, as much again; ring, the same
// elements as float. Memory: gather holds the keys of all ranks, ring two slices of them.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>

#include "comm/group.h"
#include "engine/parallel/slices.h"
#include "kernels/base/stream.h"
#include "kernels/base/view.h"
#include "kernels/rope.h"

namespace keel {

struct ContextParallel {
    Group& group;  // whoever holds the model holds its groups, and longer
    ContextSlices slices;
    std::int64_t rows;  // of the micro-batch
};

// Buffers of [rows * seq_len, kv_size] each; the last three for backward only.
template <class T>
struct GatherBuffers {
    View<T> keys, values, staging, dkeys, dvalues, part_v;
};
// For `tokens` of this rank, of which a range is `chunk`. Elements are lent as they come, so fewer tokens take the
// first of them.
template <class T>
struct RingBuffers {
    View<T> slices;                           // [2, 2, tokens, kv_size]  two slices: keys, then values
    View<T> part;                             // [chunk, q_size]          y or dq of one part
    std::optional<View<float>> sum;           // [tokens, q_size]         of the parts; float has its result for that
    std::optional<View<float>> part_lse;      // [heads, chunk]           forward only
    std::optional<View<float>> dslices;       // [3, 2, tokens, kv_size]  backward only, as what follows: sums under way
    std::optional<View<T>> part_dk, part_dv;  // [chunk, kv_size]
};
// What is lent says which it is.
template <class T>
using ContextBuffers = std::variant<GatherBuffers<T>, RingBuffers<T>>;

// Whether the ring computes range `query_half` of `rank` against range `key_half` of `owner`: whether the first is not
// all before the second, and `first_key`, the first that any of those queries sees, not behind it.
bool ring_sees(const ContextSlices& slices, std::int64_t rank, int query_half, std::int64_t owner, int key_half,
               std::int64_t first_key);

template <class T>
struct ContextForward {
    View<T> y;                    // [tokens, q_size]   written
    View<float> lse;              // heads * tokens     written; a block of [heads, n] for each range of queries
    View<const T> q, k, v;        // [tokens, …]        read; this rank's, q and k rotated
    View<const std::int32_t> lo;  // [tokens]           read; first visible key, counted from the beginning of the row
    std::int64_t head_dim;
    float scale;
};
template <class T>
struct ContextBackward {
    View<T> dq, dk, dv;       // written; dq and dk turned back
    View<std::byte> scratch;  // attention_scratch_bytes(chunk, heads, rows * seq_len, …)
    View<const T> dy, y;
    View<const float> lse;  // what forward wrote
    View<const T> q, k, v;
    View<const std::int32_t> lo;
    RopeAngles rope;  // by which q and k were turned
    std::int64_t head_dim;
    float scale;
};
template <class T>
void context_forward(Stream& s, const ContextParallel& cp, const ContextBuffers<T>& buffers,
                     const ContextForward<T>& args);
template <class T>
void context_backward(Stream& s, const ContextParallel& cp, const ContextBuffers<T>& buffers,
                      const ContextBackward<T>& args);

}  // namespace keel
