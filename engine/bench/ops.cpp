// Each op of a step alone, at the shapes and strides the step gives it.
#include <algorithm>
#include <cmath>

#include "engine/bench/bench.h"
#include "engine/model/layout.h"
#include "kernels/adamw.h"
#include "kernels/attention.h"
#include "kernels/copy.h"
#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/linear.h"
#include "kernels/reduce.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/swiglu.h"

namespace keel::bench {
namespace {

struct Entry {
    OpTime op;
    std::function<void()> body;
};

template <class T> std::vector<OpTime> measure_ops_of(Stream& s, const Config& c, int rounds) {
    const ModelSection& m = c.model;
    const BlockDims d = block_dims(m);
    const std::int64_t tokens = c.train.micro_batch * c.data.seq_len, chunk = head_chunk(0, tokens, m.vocab);
    const auto layers = static_cast<double>(m.layers), chunks = static_cast<double>(tokens) / static_cast<double>(chunk);
    const auto e = static_cast<double>(sizeof(T));
    std::vector<Entry> entries;
    const auto add = [&](std::string name, double calls, double flops, double bytes, std::function<void()> body) {
        entries.push_back({{std::move(name), calls, {}, flops, bytes}, std::move(body)});
    };

    Buffer<T> h(tokens, m.hidden), h2(tokens, m.hidden), h3(tokens, m.hidden), gain(1, m.hidden);
    Buffer<T> qkv(tokens, d.qkv_size()), dqkv(tokens, d.qkv_size()), att(tokens, d.q_size()), datt(tokens, d.q_size());
    Buffer<T> gate_up(tokens, 2 * m.ffn), dgate_up(tokens, 2 * m.ffn), act(tokens, m.ffn);
    Buffer<float> rstd(tokens, 1), dgain(1, m.hidden), lse(d.heads, tokens);
    Buffer<T> w_qkv(d.qkv_size(), m.hidden), w_out(m.hidden, d.q_size()), w_gate_up(2 * m.ffn, m.hidden), w_down(m.hidden, m.ffn), w_head(m.vocab, m.hidden);
    Buffer<float> g_qkv(d.qkv_size(), m.hidden), g_out(m.hidden, d.q_size()), g_gate_up(2 * m.ffn, m.hidden), g_down(m.hidden, m.ffn), g_head(m.vocab, m.hidden);
    Buffer<float> logits(chunk, m.vocab), stat_max(chunk, 1), stat_sum(chunk, 1), stat_target(chunk, 1), loss(chunk, 1);
    Buffer<T> dlogits(chunk, m.vocab);
    std::vector<std::int32_t> positions(static_cast<std::size_t>(tokens)), lo(positions.size()), ids(positions.size());
    for (std::int64_t i = 0; i < tokens; ++i) {
        const auto at = static_cast<std::size_t>(i);
        positions[at] = static_cast<std::int32_t>(i % c.data.seq_len);
        lo[at] = static_cast<std::int32_t>(i / c.data.seq_len * c.data.seq_len);
        ids[at] = static_cast<std::int32_t>((i * 7919) % m.vocab);
    }
    const auto ints = [&](const std::vector<std::int32_t>& x) { return View<const std::int32_t>(x.data(), {tokens}); };
    Buffer<float> table(c.data.seq_len, m.head_dim);
    rope_table(RopeConfig{}, table.view());
    const std::int64_t scratch_bytes =
        std::max(attention_scratch_bytes(tokens, d.heads, tokens, d.kv_heads, d.head_dim), rmsnorm_scratch_bytes(tokens, m.hidden));
    const Pages scratch(scratch_bytes);
    const View<std::byte> scratch_view(scratch.data(), {scratch_bytes});

    const auto linear = [&](const char* name, double calls, Buffer<T>& x, Buffer<T>& w, Buffer<T>& y, Buffer<float>& dw) {
        const auto flops = 2.0 * static_cast<double>(tokens * w.view().dim(0)) * static_cast<double>(w.view().dim(1));
        add(std::string(name) + " forward", calls, flops, 0, [&] { linear_forward<T>(s, {.y = y.view(), .x = x.view(), .w = w.view()}); });
        add(std::string(name) + " dgrad", calls, flops, 0, [&] { linear_dgrad<T>(s, {.dx = x.view(), .dy = y.view(), .w = w.view()}); });
        add(std::string(name) + " wgrad", calls, flops, 0, [&] { linear_wgrad<T>(s, {.dw = dw.view(), .dy = y.view(), .x = x.view(), .accumulate = false}); });
    };
    // Not into qkv, which attention reads: products of products, round after round, would overflow, and scores of 10^12 are
    // no softmax: where an exponential is nothing like one, subnormals turn up, and half of its time is theirs.
    linear("qkv", layers, h, w_qkv, dqkv, g_qkv);
    linear("out", layers, att, w_out, h, g_out);
    linear("gate_up", layers, h, w_gate_up, gate_up, g_gate_up);
    linear("down", layers, act, w_down, h, g_down);
    const auto head_flops = 2.0 * static_cast<double>(chunk * m.vocab) * static_cast<double>(m.hidden);
    add("head forward", chunks, head_flops, 0, [&] { linear_forward<T, float>(s, {.y = logits.view(), .x = h.view().rows(0, chunk), .w = w_head.view()}); });
    add("head dgrad", chunks, head_flops, 0, [&] { linear_dgrad<T>(s, {.dx = h2.view().rows(0, chunk), .dy = dlogits.view(), .w = w_head.view()}); });
    add("head wgrad", chunks, head_flops, 0, [&] { linear_wgrad<T>(s, {.dw = g_head.view(), .dy = dlogits.view(), .x = h.view().rows(0, chunk)}); });

    const double square = static_cast<double>(c.train.micro_batch * c.data.seq_len) * static_cast<double>(c.data.seq_len * d.q_size());
    const View<T> q = qkv.view().columns(0, d.q_size()), k = qkv.view().columns(d.q_size(), d.kv_size()), v = qkv.view().columns(d.q_size() + d.kv_size(), d.kv_size());
    const View<T> dq = dqkv.view().columns(0, d.q_size()), dk = dqkv.view().columns(d.q_size(), d.kv_size()), dv = dqkv.view().columns(d.q_size() + d.kv_size(), d.kv_size());
    const float scale = 1.0f / std::sqrt(static_cast<float>(d.head_dim));
    const RopeAngles rope{table.view(), ints(positions)};
    add("attention forward", layers, 2 * square, 0, [&, q, k, v, scale] {
        attention_forward<T>(s, {.y = att.view(), .lse = lse.view(), .q = q, .k = k, .v = v, .lo = ints(lo), .head_dim = d.head_dim, .query_offset = 0, .scale = scale});
    });
    add("attention backward", layers, 4 * square, 0, [&, q, k, v, dq, dk, dv, rope, scale] {
        attention_backward<T>(s, {.dq = dq, .dk = dk, .dv = dv, .scratch = scratch_view, .dy = datt.view(), .y = att.view(), .lse = lse.view(),
                                  .q = q, .k = k, .v = v, .lo = ints(lo), .head_dim = d.head_dim, .query_offset = 0, .scale = scale, .q_rope = rope, .k_rope = rope});
    });

    const double row = static_cast<double>(tokens * m.hidden) * e;
    add("add + rmsnorm forward", 2 * layers + 1, 0, 4 * row, [&] {
        add_rmsnorm_forward<T>(s, {.sum = h3.view(), .y = h2.view(), .rstd = rstd.flat(), .x = h.view(), .residual = h3.view(), .gain = gain.flat(), .eps = 1e-5f});
    });
    add("rmsnorm backward", 2 * layers + 1, 0, 4 * row, [&] {
        rmsnorm_backward<T>(s, {.dx = h2.view(), .dgain = dgain.flat(), .scratch = scratch_view, .dy = h3.view(), .x = h.view(), .gain = gain.flat(), .rstd = rstd.flat(), .dresidual = h2.view()});
    });
    const View<T> qk = qkv.view().columns(0, d.q_size() + d.kv_size());
    add("rope", layers, 0, 2 * static_cast<double>(qk.size()) * e, [&, qk] {
        rope_forward<T>(s, {.x = qk, .table = table.view(), .positions = ints(positions), .head_dim = d.head_dim});
    });
    const double ffn_row = static_cast<double>(tokens * m.ffn) * e;
    add("swiglu forward", layers, 0, 3 * ffn_row, [&] { swiglu_forward<T>(s, {.y = act.view(), .gate_up = gate_up.view()}); });
    // Not in place, as the step has it: gradients of gradients, round after round, would end as subnormals.
    add("swiglu backward", layers, 0, 5 * ffn_row, [&] { swiglu_backward<T>(s, {.dgate_up = dgate_up.view(), .dy = act.view(), .gate_up = gate_up.view()}); });
    const View<const std::int32_t> labels = ints(ids).rows(0, chunk);
    const double logits_bytes = static_cast<double>(chunk * m.vocab) * 4;
    add("cross-entropy", chunks, 0, 2 * logits_bytes + static_cast<double>(chunk * m.vocab) * e, [&, labels] {
        cross_entropy_stats(s, {.max = stat_max.flat(), .sum = stat_sum.flat(), .target = stat_target.flat(), .logits = logits.view(), .labels = labels, .vocab_begin = 0});
        cross_entropy_grad<T>(s, {.loss = loss.flat(), .dlogits = dlogits.view(), .logits = logits.view(), .labels = labels, .max = stat_max.flat(), .sum = stat_sum.flat(), .target = stat_target.flat(), .vocab_begin = 0, .z_loss = 0});
    });
    add("embedding", 1, 0, 2 * row, [&] { embedding_forward<T>(s, {.y = h2.view(), .ids = ints(ids), .w = w_head.view(), .vocab_begin = 0}); });
    add("embedding backward", 1, 0, 3 * row, [&] { embedding_backward<T>(s, {.dw = g_head.view(), .dy = h.view(), .ids = ints(ids), .vocab_begin = 0}); });

    const ParamTable params(m);
    Buffer<T> param(1, params.flat_size);
    Buffer<float> grad(1, params.flat_size), m1(1, params.flat_size), m2(1, params.flat_size), master(1, params.flat_size);
    for (std::int64_t i = 0; i < params.flat_size; ++i) m2.flat()[i] = std::abs(m2.flat()[i]);
    std::vector<std::byte> reduce_scratch(static_cast<std::size_t>(reduce_scratch_bytes(params.flat_size)));
    double norm = 0;
    const auto n = static_cast<double>(params.flat_size);
    const View<float> embed = params.view(grad.flat(), "embed");  // matrices are written by their wgrad
    add("zero gradients", 1, 0, 4 * static_cast<double>(embed.size()), [&, embed] { clear<float>(s, embed); });
    add("gradient norm", 1, 0, 4 * n, [&] {
        sum_of_squares(s, {.out = View<double>(&norm, {1}), .scratch = View<std::byte>(reduce_scratch.data(), {static_cast<std::int64_t>(reduce_scratch.size())}), .x = grad.flat()});
    });
    add("adamw", 1, 0, (sizeof(T) == 2 ? 30 : 28) * n, [&] {
        if constexpr (sizeof(T) == 2)
            adamw<T>(s, {.param = param.flat(), .master = master.flat(), .m = m1.flat(), .v = m2.flat(), .grad = grad.flat(), .lr = 1e-4f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .grad_scale = 1e-3f, .step = 3});
        else
            adamw<T>(s, {.param = param.flat(), .master = param.flat(), .m = m1.flat(), .v = m2.flat(), .grad = grad.flat(), .lr = 1e-4f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .grad_scale = 1e-3f, .step = 3});
    });

    std::vector<std::function<void()>> bodies;
    for (const Entry& entry : entries) bodies.push_back(entry.body);
    const std::vector<Sample> samples = measure(bodies, rounds);
    std::vector<OpTime> out;
    for (std::size_t i = 0; i < entries.size(); ++i) {
        entries[i].op.seconds = samples[i];
        out.push_back(entries[i].op);
    }
    return out;
}

}  // namespace

std::vector<OpTime> measure_ops(Stream& stream, const Case& c, int rounds) {
    return with_type(dtype_named(c.config.model.dtype), [&]<class T>() { return measure_ops_of<T>(stream, c.config, rounds); });
}

}  // namespace keel::bench
