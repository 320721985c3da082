// One layer of Llama-3.1-8B, forward and backward, as the engine runs it: one row of 8192 tokens, nothing recomputed.
#include "comm/world.h"
#include "engine/model/block.h"
#include "kernels/attention.h"
#include "kernels/rmsnorm.h"
#include "tests/gpu/models.h"

namespace keel::gpu_check {

void layer(const Check& c, Result& result) {
    const Shape m = large_model(c.tiny);
    const std::int64_t n = m.tokens(), d = m.hidden;
    Stream& s = *c.stream;
    const auto activations = [&](std::int64_t columns) { return std::make_unique<Buffer<bf16>>(c, n, columns); };
    const auto floats = [&](std::int64_t rows, std::int64_t columns) { return std::make_unique<Buffer<float>>(c, rows, columns, true); };
    const auto matrix = [&](std::int64_t rows, std::int64_t columns) { return std::make_unique<Buffer<bf16>>(c, rows, columns); };

    const auto norm_1 = matrix(1, d), qkv = matrix(m.qkv_size(), d), out = matrix(d, m.q_size()), norm_2 = matrix(1, d);
    const auto gate_up = matrix(2 * m.ffn, d), down = matrix(d, m.ffn);
    const BlockParams<bf16> params{.attn_norm = norm_1->flat(), .qkv = qkv->view(), .out = out->view(), .ffn_norm = norm_2->flat(),
                                   .gate_up = gate_up->view(), .down = down->view(), .qkv_bias = {}, .q_norm = {}, .k_norm = {}};
    const auto g_norm_1 = floats(1, d), g_qkv = floats(m.qkv_size(), d), g_out = floats(d, m.q_size()), g_norm_2 = floats(1, d);
    const auto g_gate_up = floats(2 * m.ffn, d), g_down = floats(d, m.ffn);
    const BlockGrads grads{.attn_norm = g_norm_1->flat(), .qkv = g_qkv->view(), .out = g_out->view(), .ffn_norm = g_norm_2->flat(),
                           .gate_up = g_gate_up->view(), .down = g_down->view(), .qkv_bias = {}, .q_norm = {}, .k_norm = {}};
    const auto in = activations(d), normed_1 = activations(d), of_qkv = activations(m.qkv_size()), att = activations(m.q_size());
    const auto mid = activations(d), normed_2 = activations(d), of_gate_up = activations(2 * m.ffn), act = activations(m.ffn);
    const auto rstd_1 = floats(1, n), rstd_2 = floats(1, n), lse = floats(m.heads, n);
    const BlockSaved<bf16> saved{.in = in->view(), .attn_rstd = rstd_1->flat(), .attn_norm = normed_1->view(), .qkv = of_qkv->view(), .qk = {},
                                 .q_rstd = {}, .k_rstd = {}, .att = att->view(), .lse = lse->view(), .mid = mid->view(),
                                 .ffn_rstd = rstd_2->flat(), .ffn_norm = normed_2->view(), .gate_up = of_gate_up->view(), .act = act->view()};
    const auto dact = activations(m.ffn), dnorm = activations(d), datt = activations(m.q_size()), dqkv = activations(m.qkv_size());
    const auto dh = activations(d), x = activations(d), delta = activations(d), branch = activations(d), next = activations(d);
    const Buffer<std::byte> attention_scratch(c, 1, attention_scratch_bytes(n, m.heads, n, m.kv_heads, m.head_dim), true);
    const Buffer<std::byte> norm_scratch(c, 1, rmsnorm_scratch_bytes(n, d), true);
    const BlockTemp<bf16> temp{.dact = dact->view(), .dnorm = dnorm->view(), .datt = datt->view(), .dqkv = dqkv->view(),
                               .attention_scratch = attention_scratch.flat(), .norm_scratch = norm_scratch.flat(), .row_sums = {}};
    const DevicePlaces at(c, places(m));
    const Buffer<float> rope(c, m.seq_len, m.head_dim, true);
    const Sequence sequence{.positions = at.positions.flat(), .lo = at.lo.flat(), .rope = rope.view()};
    const BlockDims dims{.hidden = d, .heads = m.heads, .kv_heads = m.kv_heads, .head_dim = m.head_dim, .ffn = m.ffn, .qk_norm = false,
                         .qk_norm_whole = false, .post_norm = false, .eps = 1e-5f};
    SoloWorld world;
    const auto group = world.everyone();
    const BlockRanks ranks{{*group, false}, {*group, ContextSlices(m.seq_len, 1), m.rows}};

    const double forward = c.seconds([&] {
        block_forward<bf16>(s, dims, ranks, params, saved, {}, sequence, x->view(), delta->view(), branch->view(), next->view());
    });
    // Backward overwrites what forward kept of gate and up: values go astray from the second time on, times do not.
    const double backward = c.seconds([&] { block_backward<bf16>(s, dims, ranks, params, grads, saved, temp, {}, sequence, dh->view()); });

    const double matrices = static_cast<double>(m.qkv_size() * d + d * m.q_size() + 3 * m.ffn * d);
    const double flops = 6 * matrices * static_cast<double>(n) + 3.5 * 4 * at.seen * static_cast<double>(m.q_size());
    const double total = forward + backward, most_ms = 22;
    result.add({{"forward_ms", 1e3 * forward}, {"backward_ms", 1e3 * backward}, {"TFLOP/s", tera(flops / total)}, {"accepted_ms", most_ms}},
               {most_ms / (1e3 * total), "the time that is accepted", c.on_h200(1)});
    result.summary = text("forward %.2f ms, backward %.2f ms: %.2f ms, %.0f TFLOP/s, %.0f %% of the largest product (at most %.0f ms is accepted)", 1e3 * forward,
                          1e3 * backward, 1e3 * total, tera(flops / total), 100 * flops / total / largest_product(c), most_ms);
}

}  // namespace keel::gpu_check
