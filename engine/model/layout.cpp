#include "engine/model/layout.h"

#include <algorithm>
#include <type_traits>

#include "kernels/attention.h"
#include "kernels/head_norm.h"
#include "kernels/reduce.h"
#include "kernels/rmsnorm.h"

namespace keel {

Recompute recompute_policy(const std::string& name) {
    constexpr const char* names[] = {"none", "swiglu", "norms", "attention", "block"};
    for (int i = 0; i < 5; ++i)
        if (name == names[i]) return static_cast<Recompute>(i);
    fail_usage("--memory.recompute is \"" + name + "\"; it can be none, swiglu, norms, attention or block");
}

BlockDims block_dims(const ModelSection& m) {
    return {m.hidden, m.heads, m.kv_heads, m.head_dim, m.ffn, m.qk_norm, static_cast<float>(m.norm_eps)};
}

std::int64_t head_chunk(std::int64_t asked, std::int64_t tokens, std::int64_t vocab) {
    if (asked > 0) return std::min(asked, tokens);
    // A chunk reads the whole output matrix three times: many tokens share that. Past some tens of MiB nothing is gained.
    constexpr std::int64_t logits_bytes = 64 << 20;
    const std::int64_t fit = std::max<std::int64_t>(256, logits_bytes / (4 * vocab) / 64 * 64);
    return std::min(tokens, fit);
}

template <class T> BlockSaved<T> BlockReserved<T>::bind(const Arena& arena, bool qk_norm) const {
    BlockSaved<T> s{.in = arena.view(in), .attn_rstd = arena.view(attn_rstd), .attn_norm = arena.view(attn_norm),
                    .qkv = arena.view(qkv), .qk = std::nullopt, .q_rstd = std::nullopt, .k_rstd = std::nullopt,
                    .att = arena.view(att), .lse = arena.view(lse), .mid = arena.view(mid),
                    .ffn_rstd = arena.view(ffn_rstd), .ffn_norm = arena.view(ffn_norm),
                    .gate_up = arena.view(gate_up), .act = arena.view(act)};
    if (qk_norm) s.qk = arena.view(qk), s.q_rstd = arena.view(q_rstd), s.k_rstd = arena.view(k_rstd);
    return s;
}

template <class T>
ModelLayout<T>::ModelLayout(MemoryPlan& plan, const ModelSection& model, const ModelUse& u)
    : params(model), use(u), dims(block_dims(model)) {
    const Timeline time(plan, model.layers);
    const std::int64_t tokens = use.tokens, hidden = model.hidden, chunk = use.head_chunk;
    const int layers = static_cast<int>(model.layers);
    const Life always = Life::always(), at_head{time.head, time.head};

    param = plan.reserve<T>("parameters", {params.flat_size}, always, Use::parameter);
    if (use.training) {
        grad = plan.reserve<float>("gradients", {params.flat_size}, always, Use::gradient);
        if constexpr (!std::is_same_v<T, float>)
            master = plan.reserve<float>("master weights", {params.flat_size}, always, Use::optimizer);
        m = plan.reserve<float>("first moment", {params.flat_size}, always, Use::optimizer);
        v = plan.reserve<float>("second moment", {params.flat_size}, always, Use::optimizer);
    }
    rope = plan.reserve<float>("rope table", {use.positions, model.head_dim}, always, Use::temporary);

    for (int i = 0; i < layers; ++i) {
        const std::string block = "block" + std::to_string(i) + "/";
        const int attn = time.attn_forward(i), ffn = time.ffn_forward(i);
        const int next = i + 1 < layers ? time.attn_forward(i + 1) : time.head;
        const int ffn_back = time.ffn_backward(i), attn_back = time.attn_backward(i);
        BlockLayout<T> b;

        // A member whose policy keeps it lives to the end of its backward; otherwise it lives twice.
        const auto member = [&]<class E>(Reserved<E> BlockReserved<T>::*which, const char* name,
                                         std::initializer_list<std::int64_t> shape, Life in_forward, Life in_backward,
                                         Recompute dropped_from) {
            if (use.training && use.recompute < dropped_from) {
                b.forward.*which = plan.reserve<E>(block + name, shape, {in_forward.first, in_backward.last}, Use::saved);
                b.backward.*which = b.forward.*which;
                return;
            }
            b.forward.*which = plan.reserve<E>(block + name, shape, in_forward, Use::temporary);
            if (use.training)
                b.backward.*which = plan.reserve<E>(block + name + " again", shape, in_backward, Use::temporary);
        };
        using R = BlockReserved<T>;
        constexpr auto never = static_cast<Recompute>(255);
        const Life f_attn{attn, attn}, f_ffn{ffn, ffn}, b_ffn{ffn_back, ffn_back}, b_both{ffn_back, attn_back};
        member(&R::in, "in", {tokens, hidden}, {i ? attn : time.embed, ffn}, b_both, never);
        member(&R::attn_rstd, "attn_rstd", {tokens}, f_attn, b_both, never);
        member(&R::attn_norm, "attn_norm", {tokens, hidden}, f_attn, b_both, Recompute::norms);
        member(&R::qkv, "qkv", {tokens, dims.qkv_size()}, f_attn, b_both, Recompute::attention);
        if (dims.qk_norm) {
            member(&R::qk, "qk", {tokens, dims.q_size() + dims.kv_size()}, f_attn, b_both, Recompute::attention);
            member(&R::q_rstd, "q_rstd", {tokens, dims.heads}, f_attn, b_both, Recompute::attention);
            member(&R::k_rstd, "k_rstd", {tokens, dims.kv_heads}, f_attn, b_both, Recompute::attention);
        }
        member(&R::att, "att", {tokens, dims.q_size()}, f_attn, b_both, Recompute::attention);
        member(&R::lse, "lse", {dims.heads, tokens}, f_attn, b_both, Recompute::attention);
        member(&R::mid, "mid", {tokens, hidden}, {ffn, next}, b_ffn, Recompute::block);
        member(&R::ffn_rstd, "ffn_rstd", {tokens}, f_ffn, b_ffn, never);
        member(&R::ffn_norm, "ffn_norm", {tokens, hidden}, f_ffn, b_ffn, Recompute::norms);
        member(&R::gate_up, "gate_up", {tokens, 2 * dims.ffn}, f_ffn, b_ffn, Recompute::block);
        member(&R::act, "act", {tokens, dims.ffn}, f_ffn, b_ffn, Recompute::swiglu);

        const auto temp = [&](const char* name, std::initializer_list<std::int64_t> shape, Life life) {
            return plan.reserve<T>(block + name, shape, life, Use::temporary);
        };
        b.branch = temp("branch", {tokens, hidden}, {attn, ffn});
        b.next_delta = temp("delta", {tokens, hidden}, {ffn, next});
        if (use.training) {
            if (use.recompute == Recompute::block) b.branch_recompute = temp("branch again", {tokens, hidden}, b_ffn);
            b.dact = temp("dact", {tokens, dims.ffn}, b_ffn);
            b.dnorm = temp("dnorm", {tokens, hidden}, b_both);
            b.datt = temp("datt", {tokens, dims.q_size()}, {attn_back, attn_back});
            b.dqkv = temp("dqkv", {tokens, dims.qkv_size()}, {attn_back, attn_back});
            const std::int64_t attention_bytes =
                attention_scratch_bytes(tokens, dims.heads, tokens, dims.kv_heads, dims.head_dim);
            const std::int64_t norm_bytes =
                std::max(rmsnorm_scratch_bytes(tokens, hidden), head_norm_scratch_bytes(tokens, dims.head_dim));
            b.attention_scratch = plan.reserve<std::byte>(block + "attention scratch", {attention_bytes},
                                                          {attn_back, attn_back}, Use::temporary);
            b.norm_scratch = plan.reserve<std::byte>(block + "norm scratch", {norm_bytes}, b_both, Use::temporary);
        }
        blocks.push_back(b);
    }

    final_in = plan.reserve<T>("head/in", {tokens, hidden}, at_head, Use::temporary);
    final_norm = plan.reserve<T>("head/norm", {tokens, hidden}, at_head, Use::temporary);
    final_rstd = plan.reserve<float>("head/rstd", {tokens}, at_head, Use::temporary);
    logits = plan.reserve<float>("head/logits of a chunk", {chunk, model.vocab}, at_head, Use::temporary);
    max = plan.reserve<float>("head/max", {chunk}, at_head, Use::temporary);
    sum = plan.reserve<float>("head/sum", {chunk}, at_head, Use::temporary);
    target = plan.reserve<float>("head/target", {chunk}, at_head, Use::temporary);
    loss = plan.reserve<float>("loss", {tokens}, always, Use::temporary);  // still there to be read after the micro-batch
    if (use.training) {
        dh = plan.reserve<T>("dh", {tokens, hidden}, {time.head, time.embed_backward}, Use::temporary);
        dfinal = plan.reserve<T>("head/dnorm", {tokens, hidden}, at_head, Use::temporary);
        if constexpr (!std::is_same_v<T, float>)
            dlogits = plan.reserve<T>("head/dlogits of a chunk", {chunk, model.vocab}, at_head, Use::temporary);
        head_norm_scratch = plan.reserve<std::byte>("head/norm scratch", {rmsnorm_scratch_bytes(tokens, hidden)},
                                                    at_head, Use::temporary);
    }
    reduce_scratch = plan.reserve<std::byte>("reduction scratch", {reduce_scratch_bytes(std::max(params.flat_size, tokens))},
                                             always, Use::temporary);
    total = plan.reserve<double>("total", {1}, always, Use::temporary);
}

template struct BlockReserved<float>;
template struct BlockReserved<bf16>;
template struct ModelLayout<float>;
template struct ModelLayout<bf16>;

}  // namespace keel
