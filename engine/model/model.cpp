#include "engine/model/model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "engine/model/bind.h"
#include "kernels/adamw.h"
#include "kernels/convert.h"
#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/linear.h"
#include "kernels/reduce.h"
#include "kernels/rmsnorm.h"

namespace keel {
namespace {

// The first `tokens` of a buffer sized for the largest micro-batch.
template <class T> BlockSaved<T> narrow(BlockSaved<T> s, std::int64_t tokens) {
    const auto cut = [&](auto view) { return view.rows(0, tokens); };
    s.in = cut(s.in), s.attn_rstd = cut(s.attn_rstd), s.attn_norm = cut(s.attn_norm), s.qkv = cut(s.qkv);
    if (s.qk) s.qk = cut(*s.qk), s.q_rstd = cut(*s.q_rstd), s.k_rstd = cut(*s.k_rstd);
    s.att = cut(s.att), s.lse = View<float>(s.lse.data(), {s.lse.dim(0), tokens});
    s.mid = cut(s.mid), s.ffn_rstd = cut(s.ffn_rstd), s.ffn_norm = cut(s.ffn_norm);
    s.gate_up = cut(s.gate_up), s.act = cut(s.act);
    return s;
}
template <class T> BlockTemp<T> narrow(BlockTemp<T> t, std::int64_t tokens) {
    t.dact = t.dact.rows(0, tokens), t.dnorm = t.dnorm.rows(0, tokens);
    t.datt = t.datt.rows(0, tokens), t.dqkv = t.dqkv.rows(0, tokens);
    return t;
}

template <class T> class LlamaModel final : public Model {
public:
    LlamaModel(const Config& config, Stream& stream, const ModelUse& use)
        : config_(config.model), stream_(stream), z_loss_(static_cast<float>(config.optim.z_loss)), plan_(),
          layout_(plan_, config.model, use), arena_(assigned(plan_), stream) {
        const bool training = use.training;
        const View<float> table = arena_.view(layout_.rope);
        rope_table(rope_config(config_), table);
        for (int i = 0; i < static_cast<int>(layout_.blocks.size()); ++i) {
            const BlockLayout<T>& b = layout_.blocks[static_cast<std::size_t>(i)];
            Block block{.params = block_params<T>(params(), param(), i, config_),
                        .forward = b.forward.bind(arena_, config_.qk_norm),
                        .branch = arena_.view(b.branch), .next_delta = arena_.view(b.next_delta), .training = {}};
            if (training)
                block.training = TrainingBlock{
                    .grads = block_grads(params(), grads(), i, config_),
                    .backward = b.backward.bind(arena_, config_.qk_norm),
                    .temp = {.dact = arena_.view(b.dact), .dnorm = arena_.view(b.dnorm), .datt = arena_.view(b.datt),
                             .dqkv = arena_.view(b.dqkv), .attention_scratch = arena_.view(b.attention_scratch),
                             .norm_scratch = arena_.view(b.norm_scratch)},
                    .branch = use.recompute == Recompute::block ? arena_.view(b.branch_recompute) : block.branch};
            blocks_.push_back(block);
        }
    }

    const ParamTable& params() const override { return layout_.params; }
    Dtype dtype() const override { return dtype_of<T>(); }
    const MemoryPlan& plan() const override { return plan_; }
    std::int64_t arena_bytes() const override { return arena_.bytes(); }

    void init(std::uint64_t seed) override {
        init_params<T>(stream_, params(), seed, master(), param());
        fill_zero(grads());
        first_micro_batch_ = false;
        fill_zero(first_moment());
        fill_zero(second_moment());
    }

    void zero_grads() override {
        for (const Param& p : params().specs)
            if (p.shape.size() == 1 || (p.name == "embed" && !config_.tied)) fill_zero(grads().rows(p.offset, p.size()));
        first_micro_batch_ = true;
    }

    double train_micro_batch(const Batch& batch) override {
        const Sequence seq = sequence(batch);
        const std::int64_t tokens = batch.ids.dim(0);
        View<const T> last = forward_blocks(batch, seq);
        const View<T> dh = arena_.view(layout_.dh).rows(0, tokens);
        head_and_loss(batch, last, dh);
        for (std::size_t i = blocks_.size(); i-- > 0;) {
            const Block& b = blocks_[i];
            const BlockSaved<T> saved = narrow(b.training->backward, tokens);
            block_recompute<T>(stream_, layout_.dims, b.params, saved, seq, layout_.use.recompute, b.training->branch.rows(0, tokens));
            BlockGrads grads_of_block = b.training->grads;
            grads_of_block.accumulate = !first_micro_batch_;
            block_backward<T>(stream_, layout_.dims, b.params, grads_of_block, saved, narrow(b.training->temp, tokens), seq, dh);
        }
        embedding_backward<T>(stream_, {.dw = params().view(grads(), "embed"), .dy = dh, .ids = batch.ids, .vocab_begin = 0});
        first_micro_batch_ = false;
        return total_loss(tokens);
    }

    double evaluate(const Batch& batch) override {
        const Sequence seq = sequence(batch);
        head_and_loss(batch, forward_blocks(batch, seq), std::nullopt);
        return total_loss(batch.ids.dim(0));
    }

    View<const float> token_loss() const override { return arena_.view(layout_.loss); }

    void logits(const Batch& batch, View<float> out) override {
        const std::int64_t tokens = batch.ids.dim(0);
        expect_shape("logits", out, {tokens, config_.vocab});
        final_norm_forward(forward_blocks(batch, sequence(batch)), tokens);
        linear_forward<T, float>(stream_, {.y = out, .x = arena_.view(layout_.final_norm).rows(0, tokens), .w = head_weight()});
    }

    double grad_norm() override {
        const View<double> total = arena_.view(layout_.total);
        sum_of_squares(stream_, {.out = total, .scratch = arena_.view(layout_.reduce_scratch), .x = grads()});
        stream_.synchronize();
        return std::sqrt(total[0]);
    }

    void update(const Update& u) override {
        for (const Param& spec : params().specs) {
            const auto part = [&](auto flat) { return flat.rows(spec.offset, spec.size()); };
            adamw<T>(stream_, {.param = part(param()), .master = part(master()), .m = part(first_moment()),
                               .v = part(second_moment()), .grad = part(grads()), .lr = u.lr, .beta1 = u.beta1,
                               .beta2 = u.beta2, .eps = u.eps, .weight_decay = spec.decays() ? u.weight_decay : 0.0f,
                               .grad_scale = u.grad_scale, .step = u.step});
        }
    }

    View<float> grads() override { return arena_.view(layout_.grad); }
    View<float> master() override {
        if constexpr (std::is_same_v<T, float>) return param();
        else return arena_.view(layout_.master);
    }
    View<float> first_moment() override { return arena_.view(layout_.m); }
    View<float> second_moment() override { return arena_.view(layout_.v); }
    std::byte* param_data() override { return reinterpret_cast<std::byte*>(param().data()); }
    void params_from_master() override {
        if constexpr (!std::is_same_v<T, float>) convert<T, float>(stream_, {.y = param(), .x = master()});
    }
    void master_from_params() override {
        if constexpr (!std::is_same_v<T, float>) convert<float, T>(stream_, {.y = master(), .x = param()});
    }

private:
    struct TrainingBlock {
        BlockGrads grads;
        BlockSaved<T> backward;
        BlockTemp<T> temp;
        View<T> branch;
    };
    struct Block {
        BlockParams<T> params;
        BlockSaved<T> forward;
        View<T> branch, next_delta;
        std::optional<TrainingBlock> training;
    };

    static const MemoryPlan& assigned(MemoryPlan& plan) {
        plan.assign();
        return plan;
    }

    View<T> param() const { return arena_.view(layout_.param); }
    View<const T> head_weight() const { return params().view(param(), config_.tied ? "embed" : "head"); }

    void fill_zero(View<float> x) {
        constexpr std::int64_t tile = 1 << 16;
        stream_.parallel(ceil_div(x.size(), tile), [&](std::int64_t t, int) {
            std::memset(x.data() + t * tile, 0, static_cast<std::size_t>(std::min(tile, x.size() - t * tile)) * sizeof(float));
        });
    }

    Sequence sequence(const Batch& batch) {
        if (batch.ids.dim(0) > layout_.use.tokens)
            fail("model: a micro-batch of ", batch.ids.dim(0), " tokens, but memory was planned for ", layout_.use.tokens);
        return {.positions = batch.positions, .lo = batch.lo, .rope = arena_.view(layout_.rope)};
    }

    // Returns the residual stream after the last block, before its delta is added; both stay in their buffers.
    View<const T> forward_blocks(const Batch& batch, const Sequence& seq) {
        const std::int64_t tokens = batch.ids.dim(0);
        View<const T> x = narrow(blocks_.front().forward, tokens).in;
        embedding_forward<T>(stream_, {.y = narrow(blocks_.front().forward, tokens).in, .ids = batch.ids,
                                       .w = params().view(param(), "embed"), .vocab_begin = 0});
        std::optional<View<const T>> delta;
        for (const Block& b : blocks_) {
            const BlockSaved<T> saved = narrow(b.forward, tokens);
            const View<T> next_delta = b.next_delta.rows(0, tokens);
            block_forward<T>(stream_, layout_.dims, b.params, saved, seq, x, delta, b.branch.rows(0, tokens), next_delta);
            x = saved.mid;
            delta = next_delta;
        }
        return x;
    }

    void final_norm_forward(View<const T> last, std::int64_t tokens) {
        const auto at = [&](const auto& r) { return arena_.view(r).rows(0, tokens); };
        add_rmsnorm_forward<T>(stream_, {.sum = at(layout_.final_in), .y = at(layout_.final_norm), .rstd = at(layout_.final_rstd),
                                         .x = last, .residual = blocks_.back().next_delta.rows(0, tokens),
                                         .gain = params().view(param(), "final_norm"), .eps = layout_.dims.eps});
    }

    // Losses per token; with `dh` also the gradients of the head and, in dh, that of the residual stream.
    void head_and_loss(const Batch& batch, View<const T> last, std::optional<View<T>> dh) {
        const std::int64_t tokens = batch.ids.dim(0);
        final_norm_forward(last, tokens);
        const View<T> norm = arena_.view(layout_.final_norm).rows(0, tokens);
        const View<float> loss = arena_.view(layout_.loss);
        for (std::int64_t begin = 0; begin < tokens; begin += layout_.use.head_chunk) {
            const std::int64_t n = std::min(layout_.use.head_chunk, tokens - begin);
            const auto chunk = [&](const auto& r) { return arena_.view(r).rows(0, n); };
            const View<float> logits = chunk(layout_.logits), max = chunk(layout_.max), sum = chunk(layout_.sum),
                              target = chunk(layout_.target);
            const View<const std::int32_t> labels = batch.labels.rows(begin, n);
            /*1*/ linear_forward<T, float>(stream_, {.y = logits, .x = norm.rows(begin, n), .w = head_weight()});
            /*2*/ cross_entropy_stats(stream_, {.max = max, .sum = sum, .target = target, .logits = logits, .labels = labels, .vocab_begin = 0});
            if (!dh) {
                cross_entropy_loss(stream_, {.loss = loss.rows(begin, n), .labels = labels, .max = max, .sum = sum, .target = target});
                continue;
            }
            const View<T> dlogits = dlogits_chunk(n);
            /*2*/ cross_entropy_grad<T>(stream_, {.loss = loss.rows(begin, n), .dlogits = dlogits, .logits = logits, .labels = labels,
                                                  .max = max, .sum = sum, .target = target, .vocab_begin = 0, .z_loss = z_loss_});
            /*1*/ linear_dgrad<T>(stream_, {.dx = arena_.view(layout_.dfinal).rows(begin, n), .dy = dlogits, .w = head_weight()});
                  linear_wgrad<T>(stream_, {.dw = params().view(grads(), config_.tied ? "embed" : "head"), .dy = dlogits, .x = norm.rows(begin, n),
                                            .accumulate = !first_micro_batch_ || begin > 0});
        }
        if (dh)
            rmsnorm_backward<T>(stream_, {.dx = *dh, .dgain = params().view(grads(), "final_norm"),
                                          .scratch = arena_.view(layout_.head_norm_scratch),
                                          .dy = arena_.view(layout_.dfinal).rows(0, tokens),
                                          .x = arena_.view(layout_.final_in).rows(0, tokens),
                                          .gain = params().view(param(), "final_norm"),
                                          .rstd = arena_.view(layout_.final_rstd).rows(0, tokens)});
    }

    View<T> dlogits_chunk(std::int64_t n) const {
        if constexpr (std::is_same_v<T, float>) return arena_.view(layout_.logits).rows(0, n);
        else return arena_.view(layout_.dlogits).rows(0, n);
    }

    double total_loss(std::int64_t tokens) {
        const View<double> total = arena_.view(layout_.total);
        sum(stream_, {.out = total, .scratch = arena_.view(layout_.reduce_scratch), .x = arena_.view(layout_.loss).rows(0, tokens)});
        stream_.synchronize();
        return total[0];
    }

    const ModelSection config_;
    Stream& stream_;  // the run's; it outlives its model
    const float z_loss_;
    MemoryPlan plan_;
    ModelLayout<T> layout_;
    Arena arena_;
    std::vector<Block> blocks_;
    bool first_micro_batch_ = false;  // of a step, since zero_grads
};

}  // namespace

std::unique_ptr<Model> make_model(const Config& config, Stream& stream, const ModelUse& use) {
    if (config.model.dtype == "f32") return std::make_unique<LlamaModel<float>>(config, stream, use);
    if (config.model.dtype == "bf16") return std::make_unique<LlamaModel<bf16>>(config, stream, use);
    fail_usage("--model.dtype is \"" + config.model.dtype + "\"; it can be bf16 or f32");
}

MemoryPlan plan_model(const Config& config, const ModelUse& use) {
    MemoryPlan plan;
    if (config.model.dtype == "f32") ModelLayout<float>(plan, config.model, use);
    else ModelLayout<bf16>(plan, config.model, use);
    plan.assign();
    return plan;
}

ModelUse training_use(const Config& config) {
    const std::int64_t tokens = config.train.micro_batch * config.data.seq_len;
    return {.tokens = tokens, .positions = config.data.seq_len,
            .head_chunk = head_chunk(config.memory.head_chunk, tokens, config.model.vocab),
            .recompute = recompute_policy(config.memory.recompute), .training = true};
}

}  // namespace keel
