// engine/parallel/context_kinds.h: what gather (context.cpp) and ring (context_ring.cpp) share. Nobody else includes it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "engine/parallel/context.h"
#include "kernels/base/dtype.h"

namespace keel::context {

template <class T>
void copy_rows(Stream& s, View<T> to, View<const T> from) {
    constexpr std::int64_t tile = 64;
    s.parallel(ceil_div(from.dim(0), tile), [&](std::int64_t t, int) {
        for (std::int64_t i = t * tile; i < std::min(from.dim(0), (t + 1) * tile); ++i)
            std::memcpy(to.row(i), from.row(i), static_cast<std::size_t>(from.dim(1)) * sizeof(T));
    });
}

template <class T>
void clear_rows(Stream& s, View<T> x) {
    s.parallel(x.dim(0),
               [&](std::int64_t i, int) { std::memset(x.row(i), 0, static_cast<std::size_t>(x.dim(1)) * sizeof(T)); });
}

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

template <class T>
void ring_forward(Stream& s, const ContextParallel& cp, const RingBuffers<T>& b, const ContextForward<T>& a);
template <class T>
void ring_backward(Stream& s, const ContextParallel& cp, const RingBuffers<T>& b, const ContextBackward<T>& a);

}  // namespace keel::context
