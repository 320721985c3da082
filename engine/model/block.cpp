#include "engine/model/block.h"

#include <cmath>

#include "kernels/attention.h"
#include "kernels/convert.h"
#include "kernels/head_norm.h"
#include "kernels/linear.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/split_norm.h"
#include "kernels/swiglu.h"

namespace keel {
namespace {

float attention_scale(const BlockDims& dims) { return 1.0f / std::sqrt(static_cast<float>(dims.head_dim)); }

template <class T> View<T> q_columns(const BlockDims& d, View<T> qkv) { return qkv.columns(0, d.q_size()); }
template <class T> View<T> k_columns(const BlockDims& d, View<T> qkv) { return qkv.columns(d.q_size(), d.kv_size()); }
template <class T> View<T> v_columns(const BlockDims& d, View<T> qkv) {
    return qkv.columns(d.q_size() + d.kv_size(), d.kv_size());
}

template <class T>
void attend(Stream& s, const BlockDims& dims, const BlockRanks& ranks, const BlockSaved<T>& saved, const Meeting<T>& meet,
            const Sequence& seq) {
    const View<T> q = rotated_q(dims, saved), k = rotated_k(dims, saved), v = v_columns(dims, saved.qkv);
    if (meet.context)
        context_forward<T>(s, ranks.cp, *meet.context, {.y = saved.att, .lse = saved.lse, .q = q, .k = k, .v = v, .lo = seq.lo,
                                                        .head_dim = dims.head_dim, .scale = attention_scale(dims)});
    else
        attention_forward<T>(s, {.y = saved.att, .lse = saved.lse, .q = q, .k = k, .v = v, .lo = seq.lo,
                                 .head_dim = dims.head_dim, .query_offset = 0, .scale = attention_scale(dims)});
}
template <class T>
void attend_backward(Stream& s, const BlockDims& dims, const BlockRanks& ranks, const BlockSaved<T>& saved, const BlockTemp<T>& t,
                     const Meeting<T>& meet, const Sequence& seq) {
    const View<T> q = rotated_q(dims, saved), k = rotated_k(dims, saved), v = v_columns(dims, saved.qkv);
    const View<T> dq = q_columns(dims, t.dqkv), dk = k_columns(dims, t.dqkv), dv = v_columns(dims, t.dqkv);
    const RopeAngles rope{seq.rope, seq.positions};
    if (meet.context)
        context_backward<T>(s, ranks.cp, *meet.context,
                            {.dq = dq, .dk = dk, .dv = dv, .scratch = t.attention_scratch, .dy = t.datt, .y = saved.att,
                             .lse = saved.lse, .q = q, .k = k, .v = v, .lo = seq.lo, .rope = rope,
                             .head_dim = dims.head_dim, .scale = attention_scale(dims)});
    else
        attention_backward<T>(s, {.dq = dq, .dk = dk, .dv = dv, .scratch = t.attention_scratch, .dy = t.datt, .y = saved.att,
                                  .lse = saved.lse, .q = q, .k = k, .v = v, .lo = seq.lo, .head_dim = dims.head_dim,
                                  .query_offset = 0, .scale = attention_scale(dims), .q_rope = rope, .k_rope = rope});
}

// A buffer that is there only with sequence parallelism; without it nobody looks at it.
template <class T> View<T> buffer(const std::optional<View<T>>& lent, View<T> rows) { return lent ? *lent : rows; }

template <class E> View<E> flat(View<E> x) { return x.reshape({x.size()}); }

// The norm of all of q, or of all of k, whose heads the ranks share.
template <class T> void whole_norm_forward(Stream& s, const TensorParallel& tp, const SplitNormForward<T>& a) {
    split_norm_squares<T>(s, {.sums = a.rstd, .x = a.x});
    tp.group.all_reduce(s, a.rstd);
    split_norm_forward<T>(s, a);
}
template <class T>
void whole_norm_backward(Stream& s, const TensorParallel& tp, View<float> sums, const SplitNormBackward<T>& a) {
    split_norm_dots<T>(s, {.sums = sums, .dy = a.dy, .x = a.x, .gain = a.gain, .rstd = a.rstd});
    tp.group.all_reduce(s, sums);
    split_norm_backward<T>(s, a);
}

}  // namespace

template <class T> View<T> rotated_q(const BlockDims& dims, const BlockSaved<T>& saved) {
    return dims.qk_norm ? saved.qk->columns(0, dims.q_size()) : q_columns(dims, saved.qkv);
}
template <class T> View<T> rotated_k(const BlockDims& dims, const BlockSaved<T>& saved) {
    return dims.qk_norm ? saved.qk->columns(dims.q_size(), dims.kv_size()) : k_columns(dims, saved.qkv);
}

template <class T>
void qkv_forward(Stream& s, const BlockDims& dims, const TensorParallel& tp, const BlockParams<T>& p,
                 const BlockSaved<T>& saved, View<const T> x, const Sequence& seq) {
    linear_forward<T>(s, {.y = saved.qkv, .x = x, .w = p.qkv, .bias = p.qkv_bias});
    if (dims.qk_norm_whole) {
        const std::int64_t ranks = tp.group.size();
        whole_norm_forward<T>(s, tp, {.y = rotated_q(dims, saved), .rstd = flat(*saved.q_rstd), .x = q_columns(dims, saved.qkv),
                                      .gain = *p.q_norm, .width = ranks * dims.q_size(), .eps = dims.eps});
        whole_norm_forward<T>(s, tp, {.y = rotated_k(dims, saved), .rstd = flat(*saved.k_rstd), .x = k_columns(dims, saved.qkv),
                                      .gain = *p.k_norm, .width = ranks * dims.kv_size(), .eps = dims.eps});
    } else if (dims.qk_norm) {
        const View<T> q = rotated_q(dims, saved), k = rotated_k(dims, saved);
        head_norm_forward<T>(s, {.y = q, .rstd = *saved.q_rstd, .x = q_columns(dims, saved.qkv), .gain = *p.q_norm, .eps = dims.eps});
        head_norm_forward<T>(s, {.y = k, .rstd = *saved.k_rstd, .x = k_columns(dims, saved.qkv), .gain = *p.k_norm, .eps = dims.eps});
    }
    // q and k lie side by side in either buffer, so one pass rotates both.
    rope_forward<T>(s, {.x = (dims.qk_norm ? *saved.qk : saved.qkv).columns(0, dims.q_size() + dims.kv_size()), .table = seq.rope,
                        .positions = seq.positions, .head_dim = dims.head_dim});
}

namespace {

// What the branches read.
template <class T> View<T> attention_input(const BlockDims& d, const BlockSaved<T>& saved) {
    return d.post_norm ? saved.in : saved.attn_norm;
}
template <class T> View<T> ffn_input(const BlockDims& d, const BlockSaved<T>& saved) {
    return d.post_norm ? saved.mid : saved.ffn_norm;
}

// Steps that forward and recomputation share.
template <class T>
void attention_half(Stream& s, const BlockDims& dims, const BlockRanks& ranks, const BlockParams<T>& p, const BlockSaved<T>& saved,
                    const Meeting<T>& meet, const Sequence& seq) {
    const View<T> in = attention_input(dims, saved);
    /*2*/ qkv_forward<T>(s, dims, ranks.tp, p, saved, enter_forward<T>(s, ranks.tp, in, buffer(meet.whole_a, in)), seq);
    /*3*/ attend(s, dims, ranks, saved, meet, seq);
}
// Steps 4 and 5: what attention found joins the residual stream, and the feed-forward part has its input.
template <class T>
void attention_out(Stream& s, const BlockDims& dims, const BlockRanks& ranks, const BlockParams<T>& p, const BlockSaved<T>& saved,
                   const Meeting<T>& meet, View<T> branch) {
    const View<T> out = dims.post_norm ? saved.attn_norm : branch, partial = buffer(meet.whole_b, out);
    /*4*/ linear_forward<T>(s, {.y = partial, .x = saved.att, .w = p.out});  // w is cut by what it reads
          leave_forward<T>(s, ranks.tp, out, partial);
    /*5*/ if (dims.post_norm) {
              rmsnorm_forward<T>(s, {.y = branch, .rstd = saved.attn_rstd, .x = out, .gain = p.attn_norm, .eps = dims.eps});
              add<T>(s, {.y = flat(saved.mid), .a = flat(saved.in), .b = flat(branch)});
          } else {
              add_rmsnorm_forward<T>(s, {.sum = saved.mid, .y = saved.ffn_norm, .rstd = saved.ffn_rstd, .x = saved.in,
                                         .residual = out, .gain = p.ffn_norm, .eps = dims.eps});
          }
}
template <class T>
void ffn_in(Stream& s, const BlockDims& dims, const BlockRanks& ranks, const BlockParams<T>& p, const BlockSaved<T>& saved,
            const Meeting<T>& meet) {
    const View<T> in = ffn_input(dims, saved);
    /*6*/ linear_forward<T>(s, {.y = saved.gate_up, .x = enter_forward<T>(s, ranks.tp, in, buffer(meet.whole_a, in)),
                                .w = p.gate_up});  // w is cut by what it writes
}
// `out` is the next delta, or with post_norm what the norm behind it reads.
template <class T>
void ffn_out(Stream& s, const BlockRanks& ranks, const BlockParams<T>& p, const BlockSaved<T>& saved, const Meeting<T>& meet,
             View<T> out) {
    const View<T> partial = buffer(meet.whole_b, out);
    /*8*/ linear_forward<T>(s, {.y = partial, .x = saved.act, .w = p.down});
          leave_forward<T>(s, ranks.tp, out, partial);
}

// One of a block's two norms, on the way back. It stands before its branch or, with post_norm, behind it.
template <class T> struct NormBackward {
    View<float> dgain;
    View<const T> x, gain;
    View<const float> rstd;
};
// The gradient of the branch's output, given that of the residual stream.
template <class T>
View<const T> into_branch(Stream& s, const BlockDims& dims, const BlockTemp<T>& t, const NormBackward<T>& n, View<T> dh) {
    if (!dims.post_norm) return dh;
    rmsnorm_backward<T>(s, {.dx = t.dnorm, .dgain = n.dgain, .scratch = t.norm_scratch, .dy = dh, .x = n.x, .gain = n.gain,
                            .rstd = n.rstd});
    return t.dnorm;
}
// t.dnorm, the gradient of the branch's input, joins dh.
template <class T>
void out_of_branch(Stream& s, const BlockDims& dims, const BlockTemp<T>& t, const NormBackward<T>& n, View<T> dh) {
    if (dims.post_norm)
        return add<T>(s, {.y = flat(dh), .a = flat(dh), .b = flat(t.dnorm)});
    rmsnorm_backward<T>(s, {.dx = dh, .dgain = n.dgain, .scratch = t.norm_scratch, .dy = t.dnorm, .x = n.x, .gain = n.gain,
                            .rstd = n.rstd, .dresidual = dh});
}

}  // namespace

template <class T>
void block_forward(Stream& s, const BlockDims& dims, const BlockRanks& ranks, const BlockParams<T>& p, const BlockSaved<T>& saved,
                   const BlockMeetings<T>& meet, const Sequence& seq, View<const T> x, std::optional<View<const T>> delta,
                   View<T> branch, View<T> next_delta) {
    if (!delta && x.data() != saved.in.data()) fail("block: without a delta, x must be saved.in itself");
    /*1*/ if (dims.post_norm) {
              if (delta) add<T>(s, {.y = flat(saved.in), .a = flat(x), .b = flat(*delta)});
          } else if (delta) add_rmsnorm_forward<T>(s, {.sum = saved.in, .y = saved.attn_norm, .rstd = saved.attn_rstd, .x = x,
                                                       .residual = *delta, .gain = p.attn_norm, .eps = dims.eps});
          else rmsnorm_forward<T>(s, {.y = saved.attn_norm, .rstd = saved.attn_rstd, .x = x, .gain = p.attn_norm, .eps = dims.eps});
    /*2…3*/ attention_half(s, dims, ranks, p, saved, meet.attention, seq);
    /*4…5*/ attention_out(s, dims, ranks, p, saved, meet.attention, branch);
    /*6*/ ffn_in(s, dims, ranks, p, saved, meet.ffn);
    /*7*/ swiglu_forward<T>(s, {.y = saved.act, .gate_up = saved.gate_up});
    /*8*/ ffn_out(s, ranks, p, saved, meet.ffn, dims.post_norm ? saved.ffn_norm : next_delta);
          if (dims.post_norm)
              rmsnorm_forward<T>(s, {.y = next_delta, .rstd = saved.ffn_rstd, .x = saved.ffn_norm, .gain = p.ffn_norm,
                                     .eps = dims.eps});
}

// With post_norm what the norms read is a branch's output: it is kept but for a policy that recomputes all of the block.
template <class T>
void block_recompute(Stream& s, const BlockDims& dims, const BlockRanks& ranks, const BlockParams<T>& p,
                     const BlockSaved<T>& saved, const Meeting<T>& meet, const Sequence& seq, Recompute policy, View<T> branch) {
    const bool block = policy == Recompute::block, norms = policy >= Recompute::norms && !dims.post_norm;
    if (norms)
        /*1*/ rmsnorm_forward<T>(s, {.y = saved.attn_norm, .rstd = saved.attn_rstd, .x = saved.in, .gain = p.attn_norm, .eps = dims.eps});
    if (policy >= Recompute::attention)
        /*2…3*/ attention_half(s, dims, ranks, p, saved, meet, seq);
    if (block) {
        /*4…5*/ attention_out(s, dims, ranks, p, saved, meet, branch);
        /*6*/ ffn_in(s, dims, ranks, p, saved, meet);
    } else if (norms) {
        /*5*/ rmsnorm_forward<T>(s, {.y = saved.ffn_norm, .rstd = saved.ffn_rstd, .x = saved.mid, .gain = p.ffn_norm, .eps = dims.eps});
    }
    if (policy >= Recompute::swiglu)
        /*7*/ swiglu_forward<T>(s, {.y = saved.act, .gate_up = saved.gate_up});
    if (block && dims.post_norm)
        /*8*/ ffn_out(s, ranks, p, saved, meet, saved.ffn_norm);
}

template <class T>
void block_backward(Stream& s, const BlockDims& dims, const BlockRanks& ranks, const BlockParams<T>& p, const BlockGrads& g,
                    const BlockSaved<T>& saved, const BlockTemp<T>& t, const BlockMeetings<T>& meet, const Sequence& seq,
                    View<T> dh) {
    const TensorParallel& tp = ranks.tp;
    const View<T> ffn_a = buffer(meet.ffn.whole_a, dh), ffn_b = buffer(meet.ffn.whole_b, saved.ffn_norm);
    const View<T> att_a = buffer(meet.attention.whole_a, dh), att_b = buffer(meet.attention.whole_b, saved.attn_norm);
    const View<T> ffn_dnorm = whole(tp, t.dnorm, ffn_a), att_dnorm = whole(tp, t.dnorm, att_a);
    const NormBackward<T> attn_norm{g.attn_norm, dims.post_norm ? saved.attn_norm : saved.in, p.attn_norm, saved.attn_rstd},
        ffn_norm{g.ffn_norm, dims.post_norm ? saved.ffn_norm : saved.mid, p.ffn_norm, saved.ffn_rstd};

    /*8*/ const View<const T> ddown = leave_backward<T>(s, tp, into_branch(s, dims, t, ffn_norm, dh), ffn_a);
          linear_dgrad<T>(s, {.dx = t.dact, .dy = ddown, .w = p.down});
          linear_wgrad<T>(s, {.dw = g.down, .dy = ddown, .x = saved.act, .accumulate = g.accumulate});
    /*7*/ swiglu_backward<T>(s, {.dgate_up = saved.gate_up, .dy = t.dact, .gate_up = saved.gate_up});
    /*6*/ linear_wgrad<T>(s, {.dw = g.gate_up, .dy = saved.gate_up, .x = enter_forward<T>(s, tp, ffn_input(dims, saved), ffn_b),
                              .accumulate = g.accumulate});
          linear_dgrad<T>(s, {.dx = ffn_dnorm, .dy = saved.gate_up, .w = p.gate_up});
          enter_backward<T>(s, tp, t.dnorm, ffn_dnorm);
    /*5*/ out_of_branch(s, dims, t, ffn_norm, dh);
    /*4*/ const View<const T> dout = leave_backward<T>(s, tp, into_branch(s, dims, t, attn_norm, dh), att_a);
          linear_dgrad<T>(s, {.dx = t.datt, .dy = dout, .w = p.out});
          linear_wgrad<T>(s, {.dw = g.out, .dy = dout, .x = saved.att, .accumulate = g.accumulate});
    /*3*/ attend_backward(s, dims, ranks, saved, t, meet.attention, seq);  // and the rotation: it turns dq and dk back
    /*2*/ if (dims.qk_norm_whole) {
              const View<T> dq = q_columns(dims, t.dqkv), dk = k_columns(dims, t.dqkv);
              const View<float> sums = *t.row_sums;
              whole_norm_backward<T>(s, tp, sums, {.dx = dq, .dgain = *g.q_norm, .scratch = t.norm_scratch, .dy = dq,
                                                   .x = q_columns(dims, saved.qkv), .gain = *p.q_norm, .rstd = flat(*saved.q_rstd),
                                                   .sums = sums, .width = tp.group.size() * dims.q_size()});
              whole_norm_backward<T>(s, tp, sums, {.dx = dk, .dgain = *g.k_norm, .scratch = t.norm_scratch, .dy = dk,
                                                   .x = k_columns(dims, saved.qkv), .gain = *p.k_norm, .rstd = flat(*saved.k_rstd),
                                                   .sums = sums, .width = tp.group.size() * dims.kv_size()});
          } else if (dims.qk_norm) {
              const View<T> dq = q_columns(dims, t.dqkv), dk = k_columns(dims, t.dqkv);
              head_norm_backward<T>(s, {.dx = dq, .dgain = *g.q_norm, .scratch = t.norm_scratch, .dy = dq,
                                        .x = q_columns(dims, saved.qkv), .gain = *p.q_norm, .rstd = *saved.q_rstd});
              head_norm_backward<T>(s, {.dx = dk, .dgain = *g.k_norm, .scratch = t.norm_scratch, .dy = dk,
                                        .x = k_columns(dims, saved.qkv), .gain = *p.k_norm, .rstd = *saved.k_rstd});
          }
          if (g.qkv_bias) bias_grad<T>(s, {.dbias = *g.qkv_bias, .dy = t.dqkv});
          linear_wgrad<T>(s, {.dw = g.qkv, .dy = t.dqkv, .x = enter_forward<T>(s, tp, attention_input(dims, saved), att_b),
                              .accumulate = g.accumulate});
          linear_dgrad<T>(s, {.dx = att_dnorm, .dy = t.dqkv, .w = p.qkv});
          enter_backward<T>(s, tp, t.dnorm, att_dnorm);
    /*1*/ out_of_branch(s, dims, t, attn_norm, dh);
}

#define KEEL_INSTANTIATE(T)                                                                                           \
    template View<T> rotated_q<T>(const BlockDims&, const BlockSaved<T>&);                                            \
    template View<T> rotated_k<T>(const BlockDims&, const BlockSaved<T>&);                                            \
    template void qkv_forward<T>(Stream&, const BlockDims&, const TensorParallel&, const BlockParams<T>&,             \
                                 const BlockSaved<T>&, View<const T>, const Sequence&);                               \
    template void block_forward<T>(Stream&, const BlockDims&, const BlockRanks&, const BlockParams<T>&, const BlockSaved<T>&, \
                                   const BlockMeetings<T>&, const Sequence&, View<const T>, std::optional<View<const T>>, \
                                   View<T>, View<T>);                                                                 \
    template void block_recompute<T>(Stream&, const BlockDims&, const BlockRanks&, const BlockParams<T>&,             \
                                     const BlockSaved<T>&, const Meeting<T>&, const Sequence&, Recompute, View<T>);   \
    template void block_backward<T>(Stream&, const BlockDims&, const BlockRanks&, const BlockParams<T>&, const BlockGrads&, \
                                    const BlockSaved<T>&, const BlockTemp<T>&, const BlockMeetings<T>&, const Sequence&, \
                                    View<T>);
KEEL_INSTANTIATE(float)
KEEL_INSTANTIATE(bf16)
KEEL_INSTANTIATE(f16)
#undef KEEL_INSTANTIATE

}  // namespace keel
