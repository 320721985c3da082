#include "engine/parallel/context.h"

#include "engine/parallel/context_kinds.h"
#include "kernels/attention.h"
#include "kernels/convert.h"
#include "kernels/rope.h"

namespace keel {
namespace {

using namespace context;

// This rank's rows at their places in `whole`, those of the others filled in.
template <class T>
void gather(Stream& s, const ContextParallel& cp, View<T> whole, View<T> ranks, View<const T> local) {
    const std::int64_t n = local.dim(0);
    copy<T>(s, ranks.rows(cp.group.rank() * n, n), local);
    cp.group.all_gather(s, ranks, View<const T>(ranks.rows(cp.group.rank() * n, n)));
    for (std::int64_t rank = 0; rank < cp.group.size(); ++rank)
        for (std::int64_t row = 0; row < cp.rows; ++row)
            for (int half = 0; half < cp.slices.halves(); ++half) {
                const Piece p = piece(cp, rank, row, half);
                copy<T>(s, whole.rows(p.whole, p.size), View<const T>(ranks.rows(rank * n + p.local, p.size)));
            }
}

// The conjugate: sums over the ranks, of which each keeps its own rows.
template <class T>
void scatter(Stream& s, const ContextParallel& cp, View<T> local, View<T> ranks, View<const T> whole) {
    const std::int64_t n = local.dim(0);
    for (std::int64_t rank = 0; rank < cp.group.size(); ++rank)
        for (std::int64_t row = 0; row < cp.rows; ++row)
            for (int half = 0; half < cp.slices.halves(); ++half) {
                const Piece p = piece(cp, rank, row, half);
                copy<T>(s, ranks.rows(rank * n + p.local, p.size), whole.rows(p.whole, p.size));
            }
    const View<T> own = ranks.rows(cp.group.rank() * n, n);
    cp.group.reduce_scatter(s, own, View<const T>(ranks));
    copy<T>(s, local, own);
}

template <class T>
void gather_forward(Stream& s, const ContextParallel& cp, const GatherBuffers<T>& b, const ContextForward<T>& a) {
    const std::int64_t heads = a.q.dim(1) / a.head_dim, n = a.q.dim(0) * cp.group.size();
    const View<T> keys = b.keys.rows(0, n), values = b.values.rows(0, n);
    gather<T>(s, cp, keys, b.staging.rows(0, n), a.k);
    gather<T>(s, cp, values, b.staging.rows(0, n), a.v);
    for (std::int64_t row = 0; row < cp.rows; ++row)
        for (int half = 0; half < cp.slices.halves(); ++half) {
            const Piece p = piece(cp, cp.group.rank(), row, half);
            const std::int64_t first = row * cp.slices.seq_len, seen = p.begin + p.size;
            attention_forward<T>(s, {.y = a.y.rows(p.local, p.size),
                                     .lse = lse_of(a.lse, heads, p.local, p.size),
                                     .q = a.q.rows(p.local, p.size),
                                     .k = keys.rows(first, seen),
                                     .v = values.rows(first, seen),
                                     .lo = a.lo.rows(p.local, p.size),
                                     .head_dim = a.head_dim,
                                     .query_offset = p.begin,
                                     .scale = a.scale});
        }
}

template <class T>
void gather_backward(Stream& s, const ContextParallel& cp, const GatherBuffers<T>& b, const ContextBackward<T>& a) {
    const std::int64_t heads = a.q.dim(1) / a.head_dim, n = a.q.dim(0) * cp.group.size(), seq_len = cp.slices.seq_len;
    const View<T> keys = b.keys.rows(0, n), values = b.values.rows(0, n), dkeys = b.dkeys.rows(0, n),
                  dvalues = b.dvalues.rows(0, n);
    gather<T>(s, cp, keys, b.staging.rows(0, n), a.k);
    gather<T>(s, cp, values, b.staging.rows(0, n), a.v);
    for (std::int64_t row = 0; row < cp.rows; ++row) {
        const std::int64_t first = row * seq_len;
        std::int64_t written = 0;  // keys of this row that have a gradient already
        // The later range sees more: it writes, the earlier adds.
        for (int half = cp.slices.halves() - 1; half >= 0; --half) {
            const Piece p = piece(cp, cp.group.rank(), row, half);
            const std::int64_t seen = p.begin + p.size;
            const View<T> dk = written ? b.staging.rows(0, seen) : dkeys.rows(first, seen),
                          dv = written ? b.part_v.rows(0, seen) : dvalues.rows(first, seen);
            attention_backward<T>(s, {.dq = a.dq.rows(p.local, p.size),
                                      .dk = dk,
                                      .dv = dv,
                                      .scratch = a.scratch,
                                      .dy = a.dy.rows(p.local, p.size),
                                      .y = a.y.rows(p.local, p.size),
                                      .lse = lse_of(a.lse, heads, p.local, p.size),
                                      .q = a.q.rows(p.local, p.size),
                                      .k = keys.rows(first, seen),
                                      .v = values.rows(first, seen),
                                      .lo = a.lo.rows(p.local, p.size),
                                      .head_dim = a.head_dim,
                                      .query_offset = p.begin,
                                      .scale = a.scale,
                                      .q_rope = part_of(a.rope, p)});
            if (!written) {
                clear(s, dkeys.rows(first + seen, seq_len - seen));
                clear(s, dvalues.rows(first + seen, seq_len - seen));
            } else {
                const auto flat = [&](View<T> x, std::int64_t at) {
                    return x.rows(at, seen).reshape({seen * x.dim(1)});
                };
                add<T>(s, {.y = flat(dkeys, first), .a = flat(dkeys, first), .b = flat(b.staging, 0)});
                add<T>(s, {.y = flat(dvalues, first), .a = flat(dvalues, first), .b = flat(b.part_v, 0)});
            }
            written = seen;
        }
    }
    scatter<T>(s, cp, a.dk, b.staging.rows(0, n), dkeys);
    rope_backward<T>(s, {a.dk, a.rope.table, a.rope.positions, a.head_dim});
    scatter<T>(s, cp, a.dv, b.staging.rows(0, n), dvalues);
}

}  // namespace

using context::ring_backward, context::ring_forward;

template <class T>
void context_forward(Stream& s, const ContextParallel& cp, const ContextBuffers<T>& buffers,
                     const ContextForward<T>& args) {
    if (const auto* lent = std::get_if<RingBuffers<T>>(&buffers))
        ring_forward(s, cp, *lent, args);
    else
        gather_forward(s, cp, std::get<GatherBuffers<T>>(buffers), args);
}
template <class T>
void context_backward(Stream& s, const ContextParallel& cp, const ContextBuffers<T>& buffers,
                      const ContextBackward<T>& args) {
    if (const auto* lent = std::get_if<RingBuffers<T>>(&buffers))
        ring_backward(s, cp, *lent, args);
    else
        gather_backward(s, cp, std::get<GatherBuffers<T>>(buffers), args);
}

#define KEEL_INSTANTIATE(T)                                                                      \
    template void context_forward<T>(Stream&, const ContextParallel&, const ContextBuffers<T>&,  \
                                     const ContextForward<T>&);                                  \
    template void context_backward<T>(Stream&, const ContextParallel&, const ContextBuffers<T>&, \
                                      const ContextBackward<T>&);
KEEL_INSTANTIATE(float)
KEEL_INSTANTIATE(bf16)
KEEL_INSTANTIATE(f16)
#undef KEEL_INSTANTIATE

}  // namespace keel
