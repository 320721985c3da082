// engine/parallel/context_kinds.h: what gather (context.cpp) and ring (context_ring.cpp) share. Nobody else includes it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/parallel/context.h"
#include "kernels/base/dtype.h"
#include "kernels/copy.h"

namespace keel::context {

// The pieces of a micro-batch in which local tokens and tokens of whole rows are both contiguous: range `half` of row
// `row` of `rank`.
struct Piece {
    std::int64_t local;  // its first token among this rank's
    std::int64_t whole;  // among those of all whole rows
    std::int64_t begin;  // within its row
    std::int64_t size;
};
inline Piece piece(const ContextParallel& cp, std::int64_t rank, std::int64_t row, int half) {
    const TokenRange r = cp.slices.range(rank, half);
    return {row * cp.slices.local_len() + half * cp.slices.chunk_len(), row * cp.slices.seq_len + r.begin, r.begin,
            r.size()};
}

// The block of [heads, n] that belongs to a range of queries.
inline View<float> lse_of(View<const float> lse, std::int64_t heads, std::int64_t first, std::int64_t n) {
    return View<float>(const_cast<float*>(lse.data()) + heads * first, {heads, n});
}

// The angles of a range of this rank.
inline RopeAngles part_of(const RopeAngles& rope, const Piece& p) {
    return {rope.table, rope.positions.rows(p.local, p.size)};
}

template <class T>
void ring_forward(Stream& s, const ContextParallel& cp, const RingBuffers<T>& b, const ContextForward<T>& a);
template <class T>
void ring_backward(Stream& s, const ContextParallel& cp, const RingBuffers<T>& b, const ContextBackward<T>& a);

}  // namespace keel::context
