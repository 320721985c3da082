#include "engine/parallel/model_work.h"

#include "engine/model/block.h"
#include "engine/model/layout.h"
#include "engine/model_shape.h"
#include "engine/observe/flops.h"

namespace keel {
namespace {

// What a policy computes again, and what it fetches again from other ranks.
PassWork recomputed(Recompute policy, const PassWork& forward, double qkv_flops, double down_flops, double norm_bytes,
                    double swiglu_bytes, double attention_bytes) {
    PassWork again;
    if (policy >= Recompute::swiglu) again.split_bytes += swiglu_bytes;
    if (policy >= Recompute::norms) again.row_bytes += norm_bytes;
    if (policy == Recompute::attention) {
        again.gemm_flops = qkv_flops;
        again.attention_flops = forward.attention_flops;
        again.split_bytes += attention_bytes;
        again.tp_passes = 1;
        again.cp_passes = forward.cp_passes;
    }
    if (policy == Recompute::block) {  // all but the last product and the meeting after it
        again = forward;
        again.gemm_flops -= down_flops;
        again.tp_passes -= 1;
    }
    return again;
}

}  // namespace

ModelWork model_work(const ModelSection& m, std::int64_t seq_len, const std::string& recompute, bool sequence) {
    const auto h = static_cast<double>(m.hidden), ffn = static_cast<double>(m.ffn),
               vocab = static_cast<double>(m.vocab);
    const auto q = static_cast<double>(m.heads * m.head_dim), kv = static_cast<double>(m.kv_heads * m.head_dim);
    const double bytes = m.dtype == "f32" ? 4 : 2;
    const double qkv_flops = 2 * h * (q + 2 * kv), down_flops = 2 * h * ffn,
                 weights = h * (2 * q + 2 * kv) + 3 * h * ffn;
    // Attention reads q, k, v and writes y; rotation reads and writes q and k. SwiGLU reads two and writes one.
    const double attention_bytes = bytes * (2 * q + 2 * kv + 2 * (q + kv)), swiglu_bytes = bytes * 3 * ffn;
    // A norm with the sum before it reads two streams and writes two; alone, recomputed, it reads and writes one.
    const double norm_bytes = bytes * 8 * h;

    ModelWork w;
    w.layers = m.layers;
    w.forward = {.gemm_flops = 2 * weights,
                 .attention_flops = 2 * q * static_cast<double>(seq_len),  // the causal half of two products
                 .split_bytes = attention_bytes + swiglu_bytes,
                 .row_bytes = norm_bytes,
                 .weight_bytes = bytes * weights,
                 .tp_passes = 4,  // before and after attention, before and after the feed-forward part
                 .cp_passes = 1};
    w.again = recomputed(recompute_policy(recompute), w.forward, qkv_flops, down_flops, norm_bytes / 2, swiglu_bytes,
                         attention_bytes);
    w.backward = {
        .gemm_flops = 2 * w.forward.gemm_flops,
        // One kernel for dq, one for dk and dv, so that nothing is summed in an order that varies: seven products.
        .attention_flops = 3.5 * w.forward.attention_flops,
        .split_bytes = bytes * (2 * (3 * q + 2 * kv) + 2 * (q + kv) + 5 * ffn),
        .row_bytes = bytes * 9 * h,
        .weight_bytes = (bytes + 8) * weights,  // read for dx; gradients in float are read and written
        // The weight gradients need the gathered rows once more.
        .tp_passes = sequence ? 6.0 : 4.0,
        .cp_passes = 2};
    // The head works in backward, by chunks: logits in float are written, read twice and turned into their gradient.
    w.head_backward = {.gemm_flops = 6 * h * vocab,
                       .attention_flops = 0,
                       .split_bytes = (4 + 8 + 4 + bytes + 2 * bytes) * vocab,
                       .row_bytes = bytes * 8 * h,
                       .weight_bytes = (2 * bytes + 8) * h * vocab,
                       .tp_passes = 2,
                       .cp_passes = 0};
    const ParameterCount count = parameter_count(m);
    w.embedding_parameters = static_cast<double>(count.embedding);
    w.head_parameters = static_cast<double>(m.vocab * m.hidden + m.hidden);
    w.block_parameters =
        (static_cast<double>(count.attention + count.ffn + count.norms) - h) / static_cast<double>(m.layers);
    w.tied = m.tied;
    w.hidden_bytes = bytes * h;
    w.kv_bytes = bytes * 2 * kv;
    w.useful_flops = Flops(m).at_length(seq_len);
    w.grad_bytes = 4;
    w.param_bytes = bytes;
    // Master weights and moments are read and written, gradients read for the norm and for the update.
    w.optimizer_bytes = 24 + 8 + (bytes == 2 ? 2 : 0);
    return w;
}

}  // namespace keel
