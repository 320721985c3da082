#include "engine/model/layout.h"

#include <algorithm>
#include <type_traits>

#include "comm/nccl.h"
#include "engine/model/batch_slots.h"
#include "engine/model_shape.h"
#include "engine/parallel/gradients.h"
#include "kernels/attention.h"
#include "kernels/embedding.h"
#include "kernels/head_norm.h"
#include "kernels/products.h"
#include "kernels/reduce.h"
#include "kernels/rmsnorm.h"
#include "kernels/split_norm.h"

namespace keel {

Recompute recompute_policy(const std::string& name) {
    constexpr const char* names[] = {"none", "swiglu", "norms", "attention", "block"};
    for (int i = 0; i < 5; ++i)
        if (name == names[i]) return static_cast<Recompute>(i);
    fail_usage("--memory.recompute is \"" + name + "\"; it can be none, swiglu, norms, attention or block");
}

BlockDims block_dims(const ModelSection& m, std::int64_t tp) {
    return {.hidden = m.hidden, .heads = m.heads / tp, .kv_heads = m.kv_heads / tp, .head_dim = m.head_dim, .ffn = m.ffn / tp,
            .qk_norm = m.qk_norm, .qk_norm_whole = m.qk_norm_whole, .post_norm = m.post_norm, .eps = static_cast<float>(m.norm_eps)};
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

template <class T> BlockReserved<T> BlockReserved<T>::or_else(const BlockReserved& other) const {
    BlockReserved r = *this;
    const auto fill = [&](auto BlockReserved::*which) {
        if ((r.*which).index < 0) r.*which = other.*which;
    };
    using R = BlockReserved;
    fill(&R::in), fill(&R::attn_norm), fill(&R::qkv), fill(&R::qk), fill(&R::att), fill(&R::mid), fill(&R::ffn_norm);
    fill(&R::gate_up), fill(&R::act), fill(&R::attn_rstd), fill(&R::q_rstd), fill(&R::k_rstd), fill(&R::lse), fill(&R::ffn_rstd);
    return r;
}

template <class T> std::optional<ContextBuffers<T>> ContextReserved<T>::bind(const Arena& arena) const {
    const auto maybe = [&]<class E>(const Reserved<E>& r) {
        return r.index >= 0 ? std::optional<View<E>>(arena.view(r)) : std::nullopt;
    };
    if (slices.index >= 0)
        return RingBuffers<T>{.slices = arena.view(slices), .part = arena.view(part), .sum = maybe(sum),
                              .part_lse = maybe(part_lse), .dslices = maybe(dslices), .part_dk = maybe(part_dk),
                              .part_dv = maybe(part_dv)};
    if (keys.index < 0) return std::nullopt;
    const View<T> none = arena.view(keys);  // forward uses none of the last three
    return GatherBuffers<T>{.keys = arena.view(keys), .values = arena.view(values), .staging = arena.view(staging),
                            .dkeys = maybe(dkeys).value_or(none), .dvalues = maybe(dvalues).value_or(none),
                            .part_v = maybe(part_v).value_or(none)};
}

namespace {

// The reservations of the blocks of one rank.
template <class T> class BlockPlanner {
public:
    BlockPlanner(MemoryPlan& plan, const Timeline& time, ModelLayout<T>& layout) : plan_(plan), time_(time), l_(layout) {}

    // Block `i` of the model, the `place`th of chunk `c`.
    BlockLayout<T> block(int c, int place, int i) {
        const ModelUse& use = l_.use;
        const BlockDims& d = l_.dims;
        const std::int64_t tokens = use.tokens, rows = l_.rows, hidden = d.hidden;
        const LayerRange& range = l_.shard.chunks[static_cast<std::size_t>(c)];
        const int attn = time_.attn_forward(c, i), ffn = time_.ffn_forward(c, i);
        const int next = i + 1 < range.end ? time_.attn_forward(c, i + 1) : time_.end_forward(c);
        const int ffn_back = time_.ffn_backward(c, i), attn_back = time_.attn_backward(c, i);
        prefix_ = "block" + std::to_string(i) + "/";
        place_ = place;
        BlockLayout<T> b;
        using R = BlockReserved<T>;
        constexpr auto never = static_cast<Recompute>(255);
        const Life f_attn{attn, attn}, f_ffn{ffn, ffn}, b_ffn{ffn_back, ffn_back}, b_attn{attn_back, attn_back},
            b_both{ffn_back, attn_back};
        member(b, &R::in, "in", {rows, hidden}, {place ? attn : time_.begin_forward(c), ffn}, b_both, never);
        member(b, &R::attn_rstd, "attn_rstd", {rows}, f_attn, b_both, never);
        // A branch's output, which a norm behind it reads, costs a matrix product to make again.
        const Recompute norms = d.post_norm ? Recompute::block : Recompute::norms;
        member(b, &R::attn_norm, "attn_norm", {rows, hidden}, f_attn, b_both, norms);
        member(b, &R::qkv, "qkv", {tokens, d.qkv_size()}, f_attn, b_both, Recompute::attention);
        if (d.qk_norm) {
            member(b, &R::qk, "qk", {tokens, d.q_size() + d.kv_size()}, f_attn, b_both, Recompute::attention);
            member(b, &R::q_rstd, "q_rstd", {tokens, d.qk_norm_whole ? 1 : d.heads}, f_attn, b_both, Recompute::attention);
            member(b, &R::k_rstd, "k_rstd", {tokens, d.qk_norm_whole ? 1 : d.kv_heads}, f_attn, b_both, Recompute::attention);
        }
        member(b, &R::att, "att", {tokens, d.q_size()}, f_attn, b_both, Recompute::attention);
        member(b, &R::lse, "lse", {d.heads, tokens}, f_attn, b_both, Recompute::attention);
        member(b, &R::mid, "mid", {rows, hidden}, {ffn, next}, b_ffn, Recompute::block);
        member(b, &R::ffn_rstd, "ffn_rstd", {rows}, f_ffn, b_ffn, never);
        member(b, &R::ffn_norm, "ffn_norm", {rows, hidden}, f_ffn, b_ffn, norms);
        member(b, &R::gate_up, "gate_up", {tokens, 2 * d.ffn}, f_ffn, b_ffn, Recompute::block);
        member(b, &R::act, "act", {tokens, d.ffn}, f_ffn, b_ffn, Recompute::swiglu);

        b.branch = temp("branch", {rows, hidden}, {attn, ffn});
        b.next_delta = temp("delta", {rows, hidden}, {ffn, next});
        b.meet_forward = meeting("attention", f_attn, true, false);
        b.meet_ffn_forward = meeting("ffn", f_ffn, false, false);
        if (!use.training) return b;
        if (use.recompute == Recompute::block) b.branch_recompute = temp("branch again", {rows, hidden}, b_ffn);
        b.dact = temp("dact", {tokens, d.ffn}, b_ffn);
        b.dnorm = temp("dnorm", {rows, hidden}, b_both);
        b.datt = temp("datt", {tokens, d.q_size()}, b_attn);
        b.dqkv = temp("dqkv", {tokens, d.qkv_size()}, b_attn);
        // Recomputing attention in a block's backward happens in its first moment.
        b.meet_ffn_backward = meeting("ffn backward", b_ffn, use.recompute >= Recompute::attention, false);
        b.meet_backward = meeting("attention backward", b_attn, true, true);
        const std::int64_t keys = tokens * l_.shard.cp, queries = l_.shard.cp > 1 ? range_len() : tokens;
        const std::int64_t attention_bytes = attention_scratch_bytes(queries, d.heads, keys, d.kv_heads, d.head_dim);
        const std::int64_t norm_bytes =
            std::max({rmsnorm_scratch_bytes(rows, hidden), head_norm_scratch_bytes(tokens, d.head_dim),
                      d.qk_norm_whole ? split_norm_scratch_bytes(tokens, d.q_size()) : 0});
        if (d.qk_norm_whole)
            b.row_sums = plan_.reserve<float>(prefix_ + "row sums", {tokens}, b_attn, Use::temporary);
        b.attention_scratch =
            plan_.reserve<std::byte>(prefix_ + "attention scratch", {attention_bytes}, b_attn, Use::temporary);
        b.norm_scratch = plan_.reserve<std::byte>(prefix_ + "norm scratch", {norm_bytes}, b_both, Use::temporary);
        return b;
    }

private:
    Reserved<T> temp(const std::string& name, std::initializer_list<std::int64_t> shape, Life life) {
        return plan_.reserve<T>(prefix_ + name, shape, life, Use::temporary);
    }

    // A member whose policy keeps it lives to the end of its backward, in every slot; otherwise it lives twice.
    template <class E>
    void member(BlockLayout<T>& b, Reserved<E> BlockReserved<T>::*which, const char* name,
                std::initializer_list<std::int64_t> shape, Life in_forward, Life in_backward, Recompute dropped_from) {
        if (l_.use.training && l_.use.recompute < dropped_from) {
            const bool alone = l_.slots.size() == 1 && l_.shard.chunks.size() == 1;
            for (std::size_t s = 0; s < l_.slots.size(); ++s) {
                auto& kept = l_.slots[s].kept;
                if (static_cast<std::size_t>(place_) < kept.size() && (kept[static_cast<std::size_t>(place_)].*which).index >= 0)
                    continue;  // another chunk has reserved it
                kept.resize(std::max(kept.size(), static_cast<std::size_t>(place_) + 1));
                const std::string owner = alone ? prefix_ : "slot" + std::to_string(s) + "/" + std::to_string(place_) + "/";
                kept[static_cast<std::size_t>(place_)].*which = plan_.reserve<E>(
                    owner + name, shape, alone ? Life{in_forward.first, in_backward.last} : Life::always(), Use::saved);
            }
            return;
        }
        b.forward.*which = plan_.reserve<E>(prefix_ + name, shape, in_forward, Use::temporary);
        if (l_.use.training)
            b.backward.*which = plan_.reserve<E>(prefix_ + name + " again", shape, in_backward, Use::temporary);
    }

    typename BlockLayout<T>::Meeting meeting(const std::string& where, Life life, bool attention, bool backward) {
        typename BlockLayout<T>::Meeting m;
        const std::int64_t tokens = l_.use.tokens;
        const auto take = [&](const char* what, std::int64_t rows, std::int64_t columns) {
            return plan_.reserve<T>(prefix_ + what + " (" + where + ")", {rows, columns}, life, Use::communication);
        };
        if (l_.shard.sequence) {
            m.whole_a = take("rows of all ranks", tokens, l_.dims.hidden);
            m.whole_b = take("partial sums", tokens, l_.dims.hidden);
        }
        if (l_.shard.cp > 1 && attention && l_.shard.ring) ring(m.context, where, life, backward);
        if (l_.shard.cp == 1 || !attention || l_.shard.ring) return m;
        const std::int64_t keys = tokens * l_.shard.cp, kv = l_.dims.kv_size();
        ContextReserved<T>& c = m.context;
        c.keys = take("keys of all ranks", keys, kv), c.values = take("values of all ranks", keys, kv);
        c.staging = take("keys or values by rank", keys, kv);
        if (backward) {
            c.dkeys = take("dkeys of all ranks", keys, kv), c.dvalues = take("dvalues of all ranks", keys, kv);
            c.part_v = take("dvalues of one slice", keys, kv);
        }
        return m;
    }

    // Queries of one call of attention under context parallelism.
    std::int64_t range_len() const { return l_.use.positions / (2 * l_.shard.cp); }

    void ring(ContextReserved<T>& c, const std::string& where, Life life, bool backward) {
        const std::int64_t tokens = l_.use.tokens, chunk = range_len(), kv = l_.dims.kv_size(), q = l_.dims.q_size();
        const auto take = [&]<class E>(Reserved<E>& r, const char* what, std::int64_t rows, std::int64_t columns) {
            r = plan_.reserve<E>(prefix_ + what + " (" + where + ")", {rows, columns}, life, Use::communication);
        };
        take(c.slices, "two slices of keys and values", 4 * tokens, kv);
        take(c.part, backward ? "dq of one part" : "y of one part", chunk, q);
        if (!std::is_same_v<T, float>) take(c.sum, backward ? "sum of dq" : "sum of y", tokens, q);
        if (!backward) return take(c.part_lse, "lse of one part", l_.dims.heads, chunk);
        take(c.dslices, "sums of dk and dv on their way", 6 * tokens, kv);
        take(c.part_dk, "dk of one part", chunk, kv), take(c.part_dv, "dv of one part", chunk, kv);
    }

    MemoryPlan& plan_;
    const Timeline& time_;
    ModelLayout<T>& l_;
    std::string prefix_;
    int place_ = 0;
};

}  // namespace

template <class T>
ModelLayout<T>::ModelLayout(MemoryPlan& plan, const ModelSection& model, const ModelUse& u, const Shard& s)
    : shard(s), params(model, shard, u.bucket), use(u), dims(block_dims(model, shard.tp)),
      rows(shard.sequence ? u.tokens / shard.tp : u.tokens) {
    const Timeline time(plan, shard.chunks);
    const std::int64_t tokens = use.tokens, hidden = model.hidden, chunk = use.head_chunk;
    const Life always = Life::always();

    param = plan.reserve<T>("parameters", {params.flat_size}, always, Use::parameter);
    if (use.training) {
        grad = plan.reserve<float>("gradients", {params.flat_size}, always, Use::gradient);
        if (model.tied && shard.stages == 1)
            lookup_grad = plan.reserve<float>("gradient of the embedding", {shard.vocab.size(), hidden}, always, Use::gradient);
        if (use.exact) exact = plan.reserve<std::int64_t>("exact gradients", {params.flat_size}, always, Use::gradient);
        if constexpr (!std::is_same_v<T, float>)
            master = plan.reserve<float>("master weights", {params.owned_size}, always, Use::optimizer);
        m = plan.reserve<float>("first moment", {params.owned_size}, always, Use::optimizer);
        v = plan.reserve<float>("second moment", {params.owned_size}, always, Use::optimizer);
        if (use.snapshot && !on_gpu())
            snapshot = plan.reserve<std::byte>("snapshot of a checkpoint", {snapshot_bytes()}, always, Use::optimizer);
    }
    if (on_gpu())
        products = plan.reserve<std::byte>("workspace of products", {product_workspace_bytes(use.device)}, always,
                                           Use::products);
    rope = plan.reserve<float>("rope table", {use.positions, rotary_dim(model)}, always, Use::temporary);

    const int last = static_cast<int>(shard.chunks.size()) - 1;
    const bool alone = use.slots == 1 && last == 0;
    slots.resize(static_cast<std::size_t>(use.slots));
    BlockPlanner<T> planner(plan, time, *this);
    for (int c = 0; c <= last; ++c) {
        const LayerRange& range = shard.chunks[static_cast<std::size_t>(c)];
        for (int i = range.begin; i < range.end; ++i) blocks.push_back(planner.block(c, i - range.begin, i));
    }

    // Between stages, and in front of the head. With one slot everything is over when its moments are.
    const bool passes = shard.stages > 1;  // what was sent stays until it was received
    const Life from_forward = alone && !passes ? Life{time.end_forward(0), time.end_forward(0)} : always;
    const Life in_backward = alone && !passes ? Life{time.end_forward(0), time.end_backward(0)} : always;
    for (std::size_t i = 0; i < slots.size(); ++i) {
        SlotLayout<T>& slot = slots[i];
        const std::string owner = alone ? "head/" : "slot" + std::to_string(i) + "/";
        slot.out = plan.reserve<T>(owner + "residual", {rows, hidden}, from_forward, Use::temporary);
        if (shard.has_head()) {
            slot.final_norm = plan.reserve<T>(owner + "norm", {rows, hidden}, from_forward, Use::temporary);
            slot.final_rstd = plan.reserve<float>(owner + "rstd", {rows}, from_forward, Use::temporary);
        }
        if (copies_batch())
            slot.batch = plan.reserve<std::int32_t>(owner + "batch", {BatchSlots::arrays * tokens}, always, Use::temporary);
    }

    for (int i = 0; use.training && i < use.gradients; ++i)
        dh.push_back(plan.reserve<T>("dh", {rows, hidden}, in_backward, Use::temporary));
    if (shard.sequence && shard.has_embedding()) {
        const auto at = [&](const char* name, int moment) {
            return plan.reserve<T>(name, {tokens, hidden}, {moment, moment}, Use::communication);
        };
        whole_embed = at("partial embedding", time.begin_forward(0));
        if (use.training) whole_dembed = at("gradient of the embedding's rows", time.end_backward(0));
    }
    if (on_gpu() && use.training && shard.has_embedding()) {
        const int end = time.end_backward(0);
        embed_scratch = plan.reserve<std::byte>("embedding scratch", {embedding_scratch_bytes(tokens)}, {end, end}, Use::temporary);
    }
    if (shard.has_head()) {
        const int head = alone ? time.end_forward(0) : time.begin_backward(last);
        const Life at_head{std::min(head, time.end_forward(last)), head};
        const std::int64_t vocab = shard.vocab.size();
        logits = plan.reserve<float>("head/logits of a chunk", {chunk, vocab}, at_head, Use::temporary);
        max = plan.reserve<float>("head/max", {chunk}, at_head, Use::temporary);
        sum = plan.reserve<float>("head/sum", {chunk}, at_head, Use::temporary);
        target = plan.reserve<float>("head/target", {chunk}, at_head, Use::temporary);
        if (shard.tp > 1) common = plan.reserve<float>("head/max of all ranks", {chunk}, at_head, Use::communication);
        if (shard.sequence) whole_norm = plan.reserve<T>("head/norm of all ranks", {tokens, hidden}, at_head, Use::communication);
        if (use.training) {
            dfinal = plan.reserve<T>("head/dnorm", {rows, hidden}, at_head, Use::temporary);
            if (shard.sequence)
                whole_dnorm = plan.reserve<T>("head/partial dnorm", {tokens, hidden}, at_head, Use::communication);
            if constexpr (!std::is_same_v<T, float>)
                dlogits = plan.reserve<T>("head/dlogits of a chunk", {chunk, vocab}, at_head, Use::temporary);
            head_norm_scratch = plan.reserve<std::byte>("head/norm scratch", {rmsnorm_scratch_bytes(rows, hidden)},
                                                        at_head, Use::temporary);
        }
    }
    loss = plan.reserve<float>("loss", {tokens}, always, Use::temporary);  // still there to be read after the micro-batch
    std::int64_t hashed = rows * hidden * static_cast<std::int64_t>(sizeof(T));  // bytes at once, at most
    for (const Param& p : params.specs) hashed = std::max(hashed, p.size() * static_cast<std::int64_t>(sizeof(float)));
    reduce_scratch = plan.reserve<std::byte>("reduction scratch", {reduce_scratch_bytes(std::max({params.flat_size, tokens, hashed}))},
                                             always, Use::temporary);
    const std::int64_t pieces = use.training ? static_cast<std::int64_t>(params.owned.size()) : 0;
    if (use.training)  // where sums are exact, every sequence shows its gradients, and a tied embedding twice
        hashes = {.micro_batches = use.micro_batches, .chunks = last + 1, .params = static_cast<std::int64_t>(params.specs.size()),
                  .uses = use.exact ? use.micro_batches * (model.tied ? 2 : 1) : 1};
    numbers = plan.reserve<double>("losses, squares and hashes", {use.micro_batches + pieces + hashes.count()}, always, Use::temporary);
    if (on_gpu() && use.training) lend_to_groups(plan, model);
    if (use.training) {
        gains = plan.reserve<float>("gains of all ranks", {Gradients::gain_elements(params)}, always, Use::communication);
        if (use.exact) {
            const auto whole = static_cast<std::int64_t>(ParamTable(model).specs.size());
            largest = plan.reserve<float>("largest elements", {whole}, always, Use::temporary);
            limbs = plan.reserve<std::int64_t>("exact squares", {3 * whole}, always, Use::temporary);
        }
    }
}

// As much as the largest sum of each brings: activations and gradients of keys, a bucket, the embedding.
template <class T> void ModelLayout<T>::lend_to_groups(MemoryPlan& plan, const ModelSection& model) {
    constexpr std::int64_t element = sizeof(T);
    const std::int64_t summed = use.exact ? 8 : 4, keys = use.tokens * shard.cp * dims.kv_size(), tokens = use.tokens * model.hidden;
    std::int64_t bucket = 0, most = 0;
    for (const Bucket& b : params.buckets.buckets) bucket = std::max(bucket, b.size() * summed);
    const auto take = [&](std::int64_t ranks, std::int64_t bytes) {
        if (ranks > 1) most = std::max(most, nccl_buffer_bytes(bytes, ranks));
    };
    take(shard.tp, tokens * element);
    take(shard.cp, keys * element);
    take(shard.replicas, bucket);
    if (model.tied && (shard.has_embedding() || shard.has_head())) take(shard.stages > 1 ? 2 : 1, shard.vocab.size() * model.hidden * summed);
    if (most > 0) peers = plan.reserve<std::byte>("sums of ranks", {most}, Life::always(), Use::communication);
    if (shard.replicas > 1)
        peers_beside = plan.reserve<std::byte>("sums of ranks, beside", {nccl_buffer_bytes(bucket, shard.replicas)}, Life::always(),
                                               Use::communication);
}

// Of each element owned; and each rectangle of its own line.
template <class T> std::int64_t ModelLayout<T>::snapshot_bytes() const {
    std::int64_t bytes = params.owned_size * static_cast<std::int64_t>(sizeof(T) + (std::is_same_v<T, float> ? 8 : 12));
    for (const ShardPiece& piece : params.owned)
        bytes += 3 * 4 * 64 * static_cast<std::int64_t>(params.specs[static_cast<std::size_t>(piece.param)].rows.size());
    return bytes;
}

template struct BlockReserved<float>;
template struct BlockReserved<bf16>;
template struct BlockReserved<f16>;
template struct ContextReserved<float>;
template struct ContextReserved<bf16>;
template struct ContextReserved<f16>;
template struct ModelLayout<float>;
template struct ModelLayout<bf16>;
template struct ModelLayout<f16>;

}  // namespace keel
