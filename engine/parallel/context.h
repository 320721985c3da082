// engine/parallel/context.h: attention of the tokens that one rank holds, over the keys of all context-parallel ranks.
//
// Every row of a micro-batch is cut zig-zag (engine/parallel/slices.h): a rank holds two ranges of queries per row, each
// contiguous, so each is one call of the attention kernel with its own query_offset. The mask `lo` counts keys from the
// beginning of the row, so packed documents, windows and borders that fall between ranks need nothing more.
//
// gather  keys and values of all ranks are gathered, put into natural order, and every range attends to the keys up to its
//         end; backward gathers them again instead of keeping them, and sums dk and dv back to their ranks.
// Each rank sends (n-1) times its keys and values per pass and block, and as much again for their gradients.
#pragma once

#include <cstdint>

#include "comm/group.h"
#include "engine/parallel/slices.h"
#include "kernels/base/stream.h"
#include "kernels/base/view.h"

namespace keel {

struct ContextParallel {
    Group& group;  // whoever holds the model holds its groups, and longer
    ContextSlices slices;
    std::int64_t rows;  // of the micro-batch
};

// Buffers of [rows * seq_len, kv_size] each; the last three for backward only.
template <class T> struct ContextBuffers {
    View<T> keys, values, staging, dkeys, dvalues, part_v;
};

template <class T> struct ContextForward {
    View<T> y;                    // [tokens, q_size]   written
    View<float> lse;              // heads * tokens     written; a block of [heads, n] for each range of queries
    View<const T> q, k, v;        // [tokens, …]        read; this rank's, q and k rotated
    View<const std::int32_t> lo;  // [tokens]           read; first visible key, counted from the beginning of the row
    std::int64_t head_dim;
    float scale;
};
template <class T> struct ContextBackward {
    View<T> dq, dk, dv;           // written
    View<std::byte> scratch;      // attention_scratch_bytes(tokens, heads, rows * seq_len, …)
    View<const T> dy, y;
    View<const float> lse;        // what forward wrote
    View<const T> q, k, v;
    View<const std::int32_t> lo;
    std::int64_t head_dim;
    float scale;
};
template <class T>
void context_forward(Stream& s, const ContextParallel& cp, const ContextBuffers<T>& buffers, const ContextForward<T>& args);
template <class T>
void context_backward(Stream& s, const ContextParallel& cp, const ContextBuffers<T>& buffers, const ContextBackward<T>& args);

}  // namespace keel
