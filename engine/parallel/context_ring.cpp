// Keys and values go around: the ring of engine/parallel/context.h.
#include "engine/parallel/context_kinds.h"
#include "kernels/attention.h"
#include "kernels/attention_merge.h"
#include "kernels/rope.h"

namespace keel {

bool ring_sees(const ContextSlices& slices, std::int64_t rank, int query_half, std::int64_t owner, int key_half,
               std::int64_t first_key) {
    return slices.chunk(owner, key_half) <= slices.chunk(rank, query_half) &&
           first_key < slices.range(owner, key_half).end;
}

namespace context {
namespace {

// Two places for what goes around: what lies in one travels on to the right, while from the left comes what the other
// will hold. A place is taken again when what lay there has arrived.
template <class E>
class Belt {
public:
    Belt(Stream& s, Group& group, View<E> memory, std::int64_t rows, std::int64_t columns, int channel)
        : s_(s),
          group_(group),
          places_{part(memory, 0, rows, columns), part(memory, 1, rows, columns)},
          channel_(channel) {}

    static View<E> part(View<E> memory, std::int64_t i, std::int64_t rows, std::int64_t columns) {
        return memory.reshape({memory.size()}).rows(i * rows * columns, rows * columns).reshape({rows, columns});
    }
    View<E> take(std::int64_t step) {
        group_.wait(s_, sent_[step % 2]);
        return places_[step % 2];
    }
    void send(std::int64_t step) {
        sent_[step % 2] = group_.send(s_, places_[step % 2], (group_.rank() + 1) % group_.size(), channel_);
    }
    void receive(View<E> to) { group_.receive(s_, to, (group_.rank() + group_.size() - 1) % group_.size(), channel_); }
    void finish() { take(0), take(1); }

private:
    Stream& s_;
    Group& group_;
    View<E> places_[2];
    Ticket sent_[2];
    int channel_;
};
constexpr int keys_channel = 0, gradients_channel = 1;

// Calls visit(queries, keys) for ranges of this rank and of `owner` that see each other, a range's own keys first. The
// host does not read the `lo` of a GPU: there every pair that a causal mask lets see each other is visited, and what sees
// nothing changes no bit.
template <class Visit>
void for_pairs(const Stream& s, const ContextParallel& cp, std::int64_t owner, View<const std::int32_t> lo, Visit visit) {
    for (std::int64_t row = 0; row < cp.rows; ++row)
        for (int half = 0; half < cp.slices.halves(); ++half) {
            const Piece queries = piece(cp, cp.group.rank(), row, half);
            const std::int32_t* const first = lo.data() + queries.local;
            const std::int64_t first_key =
                s.device() == Device::cpu ? *std::min_element(first, first + queries.size) : 0;
            for (int i = 0; i < cp.slices.halves(); ++i) {
                const int key_half = i ^ half;
                if (ring_sees(cp.slices, cp.group.rank(), half, owner, key_half, first_key))
                    visit(queries, piece(cp, owner, row, key_half));
            }
        }
}

template <class T>
View<float> sums(View<T> result, const std::optional<View<float>>& buffer) {
    if constexpr (std::is_same_v<T, float>)
        return result;
    else
        return buffer->rows(0, result.dim(0));
}

// This rank's keys and values begin their way.
template <class T>
void send_own(Stream& s, Belt<T>& belt, View<const T> k, View<const T> v) {
    const View<T> slice = belt.take(0);
    copy<T>(s, slice.rows(0, k.dim(0)), k);
    copy<T>(s, slice.rows(k.dim(0), k.dim(0)), v);
    belt.send(0);
}
// Those of another rank, come from the left; they travel on unless everybody has seen them.
template <class T>
View<const T> next(Belt<T>& belt, std::int64_t step, bool passes_on) {
    const View<T> slice = belt.take(step);
    belt.receive(slice);
    if (passes_on) belt.send(step);
    return slice;
}

}  // namespace

template <class T>
void ring_forward(Stream& s, const ContextParallel& cp, const RingBuffers<T>& b, const ContextForward<T>& a) {
    const std::int64_t heads = a.q.dim(1) / a.head_dim, n = a.q.dim(0), ranks = cp.group.size(), rank = cp.group.rank();
    const View<float> sum = sums(a.y, b.sum);
    Belt<T> belt(s, cp.group, b.slices, 2 * n, a.k.dim(1), keys_channel);
    send_own<T>(s, belt, a.k, a.v);
    View<const T> k = a.k, v = a.v;
    for (std::int64_t step = 0; step < ranks; ++step) {
        if (step > 0) {
            const View<const T> slice = next(belt, step, step + 1 < ranks);
            k = slice.rows(0, n), v = slice.rows(n, n);
        }
        for_pairs(s, cp, (rank - step + ranks) % ranks, a.lo, [&](const Piece& queries, const Piece& keys) {
            const View<T> y = b.part.rows(0, queries.size);
            const View<float> lse(b.part_lse->data(), {heads, queries.size});
            attention_forward<T>(s, {.y = y,
                                     .lse = lse,
                                     .q = a.q.rows(queries.local, queries.size),
                                     .k = k.rows(keys.local, keys.size),
                                     .v = v.rows(keys.local, keys.size),
                                     .lo = a.lo.rows(queries.local, queries.size),
                                     .head_dim = a.head_dim,
                                     .query_offset = queries.begin,
                                     .key_begin = keys.begin,
                                     .scale = a.scale});
            attention_merge<T>(s, {.sum = sum.rows(queries.local, queries.size),
                                   .lse = lse_of(a.lse, heads, queries.local, queries.size),
                                   .part = y,
                                   .part_lse = lse,
                                   .accumulate = step > 0 || keys.begin != queries.begin});
        });
    }
    belt.finish();
    if constexpr (!std::is_same_v<T, float>) round_sum<T>(s, {.y = a.y, .sum = sum});
}

// The slices of others come first, so that the gradients of this rank's keys travel home while it works on those
// itself.
template <class T>
void ring_backward(Stream& s, const ContextParallel& cp, const RingBuffers<T>& b, const ContextBackward<T>& a) {
    const std::int64_t heads = a.q.dim(1) / a.head_dim, n = a.q.dim(0), kv = a.k.dim(1), ranks = cp.group.size(),
                       rank = cp.group.rank();
    const View<float> dq = sums(a.dq, b.sum), arrived = Belt<float>::part(*b.dslices, 2, 2 * n, kv);
    Belt<T> belt(s, cp.group, b.slices, 2 * n, kv, keys_channel);
    Belt<float> gradients(s, cp.group, *b.dslices, 2 * n, kv, gradients_channel);
    send_own<T>(s, belt, a.k, a.v);
    clear(s, dq);
    for (std::int64_t step = 1; step <= ranks; ++step) {
        const bool own = step == ranks;
        View<const T> k = a.k, v = a.v;
        if (!own) {
            const View<const T> slice = next(belt, step, step + 1 < ranks);
            k = slice.rows(0, n), v = slice.rows(n, n);
        }
        const View<float> sum = gradients.take(step);
        clear(s, sum);
        for_pairs(s, cp, (rank - step + ranks) % ranks, a.lo, [&](const Piece& queries, const Piece& keys) {
            const View<T> part = b.part.rows(0, queries.size), dk = b.part_dk->rows(0, keys.size),
                          dv = b.part_dv->rows(0, keys.size);
            attention_backward<T>(s, {.dq = part,
                                      .dk = dk,
                                      .dv = dv,
                                      .scratch = a.scratch,
                                      .dy = a.dy.rows(queries.local, queries.size),
                                      .y = a.y.rows(queries.local, queries.size),
                                      .lse = lse_of(a.lse, heads, queries.local, queries.size),
                                      .q = a.q.rows(queries.local, queries.size),
                                      .k = k.rows(keys.local, keys.size),
                                      .v = v.rows(keys.local, keys.size),
                                      .lo = a.lo.rows(queries.local, queries.size),
                                      .head_dim = a.head_dim,
                                      .query_offset = queries.begin,
                                      .key_begin = keys.begin,
                                      .scale = a.scale,
                                      .q_rope = part_of(a.rope, queries)});
            add_part<T>(s, {.sum = dq.rows(queries.local, queries.size), .part = part});
            add_part<T>(s, {.sum = sum.rows(keys.local, keys.size), .part = dk});
            add_part<T>(s, {.sum = sum.rows(n + keys.local, keys.size), .part = dv});
        });
        if (step > 1) {
            gradients.receive(arrived);
            add_part<float>(s, {.sum = sum, .part = arrived});
        }
        if (!own) {
            gradients.send(step);
            continue;
        }
        rope_backward<float>(s, {sum.rows(0, n), a.rope.table, a.rope.positions, a.head_dim});
        round_sum<T>(s, {.y = a.dk, .sum = sum.rows(0, n)});
        round_sum<T>(s, {.y = a.dv, .sum = sum.rows(n, n)});
    }
    belt.finish(), gradients.finish();
    if constexpr (!std::is_same_v<T, float>) round_sum<T>(s, {.y = a.dq, .sum = dq});
}

#define KEEL_INSTANTIATE(T)                                                                                          \
    template void ring_forward<T>(Stream&, const ContextParallel&, const RingBuffers<T>&, const ContextForward<T>&); \
    template void ring_backward<T>(Stream&, const ContextParallel&, const RingBuffers<T>&, const ContextBackward<T>&);
KEEL_INSTANTIATE(float)
KEEL_INSTANTIATE(bf16)
KEEL_INSTANTIATE(f16)
#undef KEEL_INSTANTIATE

}  // namespace context
}  // namespace keel
