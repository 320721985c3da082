// engine/parallel/tensor.h: the two places where tensor-parallel ranks meet in a block, each with its backward beside it.
//
// A matrix that is cut by columns of its output (qkv, gate_up, the head) reads what every rank must hold whole: `enter`
// stands in front of it. One that is cut by its input (out, down) and a vocabulary's embedding leave partial sums: `leave`
// stands behind it. The backward of one is the forward of the other. Shoeybi et al. 2019, arXiv:1909.08053.
//
//                        forward                          backward
//     enter              nothing                          all-reduce
//     leave              all-reduce                       nothing
//     enter, sequence    all-gather                       reduce-scatter
//     leave, sequence    reduce-scatter                   all-gather
//
// With sequence parallelism the residual stream and the norms are cut by tokens, rank r holding rows [r n/t, (r+1) n/t); the
// memory and work of the norms are a t-th. Backward gathers again what `enter` gathered, so a quarter more bytes are sent. Korthikanti et al. 2022, arXiv:2205.05198.
// Sums are formed in the order of ranks (comm/group.h). With one rank nothing here does anything.
#pragma once

#include "comm/group.h"
#include "kernels/base/stream.h"
#include "kernels/base/view.h"

namespace keel {

struct TensorParallel {
    Group& group;     // whoever holds the model holds its groups, and longer
    bool sequence;    // only with more than one rank
};

// Where a matrix writes its partial sums or reads its whole input: `rows` itself, or with sequence parallelism `buffer`.
template <class T> View<T> whole(const TensorParallel& tp, View<T> rows, View<T> buffer) {
    return tp.sequence ? buffer : rows;
}

// x [rows, hidden] → the same for all tokens. `buffer` [tokens, hidden] is used with sequence parallelism only.
template <class T> View<const T> enter_forward(Stream& s, const TensorParallel& tp, View<const T> x, View<T> buffer) {
    if (!tp.sequence) return x;
    tp.group.all_gather(s, buffer, x);
    return buffer;
}
// dx [rows, hidden], written from the partial sums that lie in whole(tp, dx, buffer).
template <class T> void enter_backward(Stream& s, const TensorParallel& tp, View<T> dx, View<T> buffer) {
    if (tp.sequence) tp.group.reduce_scatter(s, dx, buffer);
    else tp.group.all_reduce(s, dx);
}

// y [rows, hidden], written from the partial sums that lie in whole(tp, y, buffer).
template <class T> void leave_forward(Stream& s, const TensorParallel& tp, View<T> y, View<T> buffer) {
    enter_backward(s, tp, y, buffer);
}
// dy [rows, hidden] → the same for all tokens.
template <class T> View<const T> leave_backward(Stream& s, const TensorParallel& tp, View<const T> dy, View<T> buffer) {
    return enter_forward(s, tp, dy, buffer);
}

}  // namespace keel
