#include "engine/model/model.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "engine/model/bind.h"
#include "engine/model/head.h"
#include "kernels/adamw.h"
#include "kernels/convert.h"
#include "kernels/embedding.h"
#include "kernels/linear.h"
#include "kernels/reduce.h"
#include "kernels/rmsnorm.h"

namespace keel {
namespace {

// The first rows of buffers sized for the largest micro-batch: `rows` of the residual stream, `tokens` of the rest.
template <class T> BlockSaved<T> narrow(BlockSaved<T> s, std::int64_t rows, std::int64_t tokens) {
    const auto cut = [](auto& view, std::int64_t n) { view = view.rows(0, n); };
    for (auto* v : {&s.in, &s.attn_norm, &s.mid, &s.ffn_norm}) cut(*v, rows);
    for (auto* v : {&s.attn_rstd, &s.ffn_rstd}) cut(*v, rows);
    for (auto* v : {&s.qkv, &s.att, &s.gate_up, &s.act}) cut(*v, tokens);
    if (s.qk) cut(*s.qk, tokens), cut(*s.q_rstd, tokens), cut(*s.k_rstd, tokens);
    s.lse = View<float>(s.lse.data(), {s.lse.dim(0), tokens});
    return s;
}
template <class T> BlockTemp<T> narrow(BlockTemp<T> t, std::int64_t rows, std::int64_t tokens) {
    t.dact = t.dact.rows(0, tokens), t.dnorm = t.dnorm.rows(0, rows);
    t.datt = t.datt.rows(0, tokens), t.dqkv = t.dqkv.rows(0, tokens);
    if (t.row_sums) t.row_sums = t.row_sums->rows(0, tokens);
    return t;
}
template <class T> Meeting<T> narrow(Meeting<T> m, std::int64_t tokens) {
    if (m.whole_a) m.whole_a = m.whole_a->rows(0, tokens), m.whole_b = m.whole_b->rows(0, tokens);
    return m;
}
template <class T> BlockMeetings<T> narrow(const BlockMeetings<T>& m, std::int64_t tokens) {
    return {narrow(m.attention, tokens), narrow(m.ffn, tokens)};
}

template <class T> class LlamaModel : public Model {
public:
    LlamaModel(const Config& config, Stream& stream, const ModelUse& use, const Ranks& ranks)
        : config_(config.model), stream_(stream), ranks_(ranks), z_loss_(static_cast<float>(config.optim.z_loss)), plan_(),
          layout_(plan_, config.model, use, shard_of(config, ranks.place)), arena_(assigned(plan_), stream),
          tp_{ranks_.tp, layout_.shard.sequence}, slices_(use.positions, use.training ? layout_.shard.cp : 1),
          slots_(layout_.slots.size()) {
        rope_table(rope_config(config_, use.positions), arena_.view(layout_.rope));
        std::size_t n = 0;
        for (const LayerRange& range : layout_.shard.chunks) {
            chunk_begin_.push_back(n);
            for (int i = range.begin; i < range.end; ++i, ++n) blocks_.push_back(bind_block(n, i, i - range.begin));
        }
        chunk_begin_.push_back(n);
        started_.resize(layout_.shard.chunks.size()), chunk_params_.resize(started_.size());
        for (int i = static_cast<int>(params().specs.size()); i-- > 0;) {  // a chunk's parameters lie side by side
            Span& span = chunk_params_[static_cast<std::size_t>(params().specs[static_cast<std::size_t>(i)].chunk)];
            span = {i, std::max(span.last, i + 1)};
        }
        if (layout_.shard.has_embedding()) embed_params_ = params_named("embed");
        if (layout_.shard.has_head()) head_params_ = {params_named("final_norm").first, static_cast<int>(params().specs.size())};
        if (use.training)
            gradients_.emplace(stream_, ranks_, config_, layout_.shard, params(),
                               Gradients::Buffers{.grad = grads(), .lookup = lookup(), .gains = arena_.view(layout_.gains),
                                                  .squares = arena_.view(layout_.squares),
                                                  .scratch = arena_.view(layout_.reduce_scratch), .param = param_data(),
                                                  .param_bytes = size_bytes(dtype()), .exact = exact_buffers()});
    }

    const ParamTable& params() const override { return layout_.params; }
    const Shard& shard() const override { return layout_.shard; }
    Dtype dtype() const override { return dtype_of<T>(); }
    const MemoryPlan& plan() const override { return plan_; }
    std::int64_t arena_bytes() const override { return arena_.bytes(); }
    Gradients& gradients() override { return *gradients_; }

    void init(std::uint64_t seed) override {
        init_params<T>(stream_, params(), seed, param());
        if (!std::is_same_v<T, float>) init_owned(stream_, params(), seed, master());
        fill_zero(grads());
        fill_zero(first_moment());
        fill_zero(second_moment());
    }

    void zero_grads() override {
        for (int chunk = 0; chunk < static_cast<int>(started_.size()); ++chunk) restart(chunk);
        gradients_->begin();
    }

    void load(int slot, const Batch& batch) override {
        const std::int64_t all = batch.ids.dim(0), tokens = all / slices_.ranks;
        if (tokens > layout_.use.tokens)
            fail("model: a micro-batch of ", tokens, " tokens, but memory was planned for ", layout_.use.tokens);
        Slot& to = slots_[static_cast<std::size_t>(slot)];
        to.tokens = tokens, to.rows = layout_.shard.sequence ? tokens / layout_.shard.tp : tokens;
        to.batch_rows = all / slices_.seq_len;
        if (!layout_.copies_batch()) {
            to.ids = batch.ids.data(), to.labels = batch.labels.data(), to.positions = batch.positions.data(), to.lo = batch.lo.data();
            return;
        }
        const SlotLayout<T>& at = layout_.slots[static_cast<std::size_t>(slot)];
        const auto keep = [&](const std::int32_t*& place, const Reserved<std::int32_t>& buffer, View<const std::int32_t> from) {
            const View<std::int32_t> copy = arena_.view(buffer).rows(0, tokens);
            if (slices_.ranks > 1) cut_slice(slices_, layout_.shard.cp_rank, from, copy);
            else std::copy_n(from.data(), from.size(), copy.data());
            place = copy.data();
            return copy;
        };
        keep(to.ids, at.ids, batch.ids), keep(to.labels, at.labels, batch.labels);
        keep(to.positions, at.positions, batch.positions);
        const View<std::int32_t> lo = keep(to.lo, at.lo, batch.lo);
        if (slices_.ranks == 1) return;
        for (std::int64_t i = 0; i < tokens; ++i)  // attention over slices counts keys from the beginning of the row
            lo[i] -= static_cast<std::int32_t>(i / slices_.local_len() * slices_.seq_len);
    }

    void forward(int chunk, int slot) override {
        const Slot& at = slots_[static_cast<std::size_t>(slot)];
        const LayerRange& range = layout_.shard.chunks[static_cast<std::size_t>(chunk)];
        const std::size_t begin = chunk_begin_[static_cast<std::size_t>(chunk)], end = chunk_begin_[static_cast<std::size_t>(chunk) + 1];
        const View<T> first = chunk_input(chunk, slot).rows(0, at.rows);
        if (range.embedding) embed(at, first);
        View<const T> x = first;
        std::optional<View<const T>> delta;
        for (std::size_t i = begin; i < end; ++i) {
            const Block& b = blocks_[i];
            need(b);
            const BlockSaved<T> saved = narrow(b.forward[static_cast<std::size_t>(slot)], at.rows, at.tokens);
            const View<T> next_delta = b.next_delta.rows(0, at.rows);
            block_forward<T>(stream_, layout_.dims, block_ranks(at), b.params, saved, narrow(b.meet_forward, at.tokens),
                             sequence(at), x, delta, b.branch.rows(0, at.rows), next_delta);
            x = saved.mid;
            delta = next_delta;
        }
        const View<T> out = slot_view(slot, &SlotLayout<T>::out);
        if (range.head) final_norm_forward(slot, x, delta, out);
        else if (delta) add<T>(stream_, {.y = flat(out), .a = flat(x), .b = flat(*delta)});
        else if (out.data() != x.data()) std::memcpy(out.data(), x.data(), static_cast<std::size_t>(x.bytes()));
    }

    double backward(int chunk, int slot, int buffer, bool last) override {
        const Slot& at = slots_[static_cast<std::size_t>(slot)];
        const LayerRange& range = layout_.shard.chunks[static_cast<std::size_t>(chunk)];
        const Span all = chunk_params_[static_cast<std::size_t>(chunk)];
        if (layout_.use.exact) restart(chunk);  // the gradient of one sequence at a time
        const bool accumulate = started_[static_cast<std::size_t>(chunk)];
        const auto final = [&](Span s) {
            if (last && !layout_.use.exact) ready(s);
        };
        const View<T> dh = arena_.view(layout_.dh[static_cast<std::size_t>(buffer)]).rows(0, at.rows);
        double loss = 0;
        if (range.head) {
            head_backward(slot, dh, accumulate);
            loss = total_loss(at.tokens);
            final(head_params_);
        }
        for (std::size_t i = chunk_begin_[static_cast<std::size_t>(chunk) + 1]; i-- > chunk_begin_[static_cast<std::size_t>(chunk)];) {
            const Block& b = blocks_[i];
            const TrainingBlock& t = *b.training;
            const BlockSaved<T> saved = narrow(t.backward[static_cast<std::size_t>(slot)], at.rows, at.tokens);
            const BlockMeetings<T> meet = narrow(t.meet, at.tokens);
            block_recompute<T>(stream_, layout_.dims, block_ranks(at), b.params, saved, meet.ffn, sequence(at), layout_.use.recompute,
                               t.branch.rows(0, at.rows));
            BlockGrads grads_of_block = t.grads;
            grads_of_block.accumulate = accumulate;
            block_backward<T>(stream_, layout_.dims, block_ranks(at), b.params, grads_of_block, saved, narrow(t.temp, at.rows, at.tokens),
                              meet, sequence(at), dh);
            final(b.specs);
        }
        if (range.embedding) {
            embed_backward(at, dh);
            final(embed_params_);
        }
        started_[static_cast<std::size_t>(chunk)] = 1;
        if (layout_.use.exact) {
            gradients_->add_sequence(all.first, all.last);
            if (last) ready(all);
        }
        return loss;
    }

    double loss(int slot) override {
        const Slot& at = slots_[static_cast<std::size_t>(slot)];
        if (!layout_.shard.has_head()) return 0;
        head_loss<T>(stream_, tp_, head_buffers(), {.loss = arena_.view(layout_.loss).rows(0, at.tokens), .dnorm = {}, .dw = {},
                                                    .norm = slot_view(slot, &SlotLayout<T>::final_norm), .w = head_weight(),
                                                    .labels = labels(at), .vocab_begin = layout_.shard.vocab.begin,
                                                    .z_loss = 0});
        return total_loss(at.tokens);
    }

    View<const float> token_loss() const override { return arena_.view(layout_.loss); }
    View<std::byte> snapshot() override {
        return layout_.use.snapshot ? arena_.view(layout_.snapshot) : View<std::byte>(nullptr, {0});
    }

    View<std::byte> input(int chunk, int slot) override { return bytes(slot, chunk_input(chunk, slot)); }
    View<std::byte> output(int slot) override { return bytes(slot, arena_.view(layout_.slots[static_cast<std::size_t>(slot)].out)); }
    View<std::byte> gradient(int slot, int buffer) override {
        return bytes(slot, arena_.view(layout_.dh[static_cast<std::size_t>(buffer)]));
    }

    View<std::byte> layer_input(int chunk, int layer, int slot) override {
        const Block& b = blocks_[chunk_begin_[static_cast<std::size_t>(chunk)] + static_cast<std::size_t>(layer)];
        return bytes(slot, b.forward[static_cast<std::size_t>(slot)].in);
    }

    void logits(const Batch& batch, View<float> out) override {
        if (layout_.shard.tp * layout_.shard.cp * layout_.shard.stages > 1) fail("model: logits of a whole model are asked of a part");
        expect_shape("logits", out, {batch.ids.dim(0), config_.vocab});
        load(0, batch), forward(0, 0);
        linear_forward<T, float>(stream_, {.y = out, .x = slot_view(0, &SlotLayout<T>::final_norm), .w = head_weight()});
    }

    void reduce_grads() override {
        if (!gradients_->all_ready()) gradients_->ready(0, static_cast<int>(params().specs.size()));
        gradients_->finish();
    }
    double grad_norm() override { return gradients_->norm(); }

    void update(const Update& u) override {
        gradients_->need_all();
        for (const ShardPiece& piece : params().owned) {
            const Param& spec = params().specs[static_cast<std::size_t>(piece.param)];
            const auto in_buffer = [&](auto flat) { return flat.rows(piece.in_buffer, piece.size); };
            const auto in_owned = [&](auto flat) { return flat.rows(piece.in_owned, piece.size); };
            View<float> master_piece = std::is_same_v<T, float> ? in_buffer(master()) : in_owned(master());
            adamw<T>(stream_, {.param = in_buffer(param()), .master = master_piece, .m = in_owned(first_moment()),
                               .v = in_owned(second_moment()), .grad = in_buffer(grads()), .lr = u.lr, .beta1 = u.beta1,
                               .beta2 = u.beta2, .eps = u.eps, .weight_decay = spec.decays() ? u.weight_decay : 0.0f,
                               .grad_scale = u.grad_scale, .step = u.step});
        }
        gradients_->gather();
    }

    View<float> grads() override { return arena_.view(layout_.grad); }
    View<float> master() override {
        if constexpr (std::is_same_v<T, float>) return param();
        else return arena_.view(layout_.master);
    }
    View<float> first_moment() override { return arena_.view(layout_.m); }
    View<float> second_moment() override { return arena_.view(layout_.v); }
    std::byte* param_data() override { return reinterpret_cast<std::byte*>(param().data()); }
    void share_params() override {
        gradients_->gather();
        gradients_->need_all();
    }
    void master_from_params() override {
        if constexpr (!std::is_same_v<T, float>)
            for (const ShardPiece& p : params().owned)
                convert<float, T>(stream_, {.y = master().rows(p.in_owned, p.size), .x = param().rows(p.in_buffer, p.size)});
    }

private:
    struct Span {
        int first = 0, last = 0;  // of the parameter table
    };
    struct TrainingBlock {
        BlockGrads grads;
        std::vector<BlockSaved<T>> backward;  // by slot
        BlockTemp<T> temp;
        BlockMeetings<T> meet;
        View<T> branch;
    };
    struct Block {
        Span specs;
        BlockParams<T> params;
        std::vector<BlockSaved<T>> forward;   // by slot
        View<T> branch, next_delta;
        BlockMeetings<T> meet_forward;
        std::optional<TrainingBlock> training;
    };
    struct Slot {
        std::int64_t tokens = 0, rows = 0, batch_rows = 0;
        const std::int32_t *ids = nullptr, *labels = nullptr, *positions = nullptr, *lo = nullptr;
    };

    static const MemoryPlan& assigned(MemoryPlan& plan) {
        plan.assign();
        return plan;
    }

    // The `n`th block of this rank, layer `i` of the model, `place` in its chunk.
    Block bind_block(std::size_t n, int i, int place) {
        const BlockLayout<T>& b = layout_.blocks[n];
        Block block{.specs = {}, .params = block_params<T>(params(), param(), i, config_), .forward = {},
                    .branch = arena_.view(b.branch), .next_delta = arena_.view(b.next_delta),
                    .meet_forward = {bind(b.meet_forward), bind(b.meet_ffn_forward)}, .training = {}};
        block.specs = params_named("layers." + std::to_string(i) + ".");
        const auto kept = [&](const SlotLayout<T>& slot) {
            return static_cast<std::size_t>(place) < slot.kept.size() ? slot.kept[static_cast<std::size_t>(place)] : BlockReserved<T>{};
        };
        for (const SlotLayout<T>& slot : layout_.slots)
            block.forward.push_back(kept(slot).or_else(b.forward).bind(arena_, config_.qk_norm));
        if (!layout_.use.training) return block;
        block.training = TrainingBlock{
            .grads = block_grads(params(), grads(), i, config_), .backward = {},
            .temp = {.dact = arena_.view(b.dact), .dnorm = arena_.view(b.dnorm), .datt = arena_.view(b.datt),
                     .dqkv = arena_.view(b.dqkv), .attention_scratch = arena_.view(b.attention_scratch),
                     .norm_scratch = arena_.view(b.norm_scratch), .row_sums = {}},
            .meet = {bind(b.meet_backward), bind(b.meet_ffn_backward)},
            .branch = layout_.use.recompute == Recompute::block ? arena_.view(b.branch_recompute) : block.branch};
        if (config_.qk_norm_whole) block.training->temp.row_sums = arena_.view(b.row_sums);
        for (const SlotLayout<T>& slot : layout_.slots)
            block.training->backward.push_back(kept(slot).or_else(b.backward).bind(arena_, config_.qk_norm));
        return block;
    }
    Meeting<T> bind(const typename BlockLayout<T>::Meeting& m) const {
        Meeting<T> out;
        if (m.whole_a.index >= 0) out.whole_a = arena_.view(m.whole_a), out.whole_b = arena_.view(m.whole_b);
        out.context = m.context.bind(arena_);
        return out;
    }
    // Parameters whose names begin with `prefix`; they lie side by side in the table.
    Span params_named(const std::string& prefix) const {
        Span span{-1, -1};
        for (int i = 0; i < static_cast<int>(params().specs.size()); ++i)
            if (params().specs[static_cast<std::size_t>(i)].name.starts_with(prefix)) {
                if (span.first < 0) span.first = i;
                span.last = i + 1;
            }
        return span.first < 0 ? Span{} : span;
    }

    View<T> param() const { return arena_.view(layout_.param); }
    View<const T> head_weight() const { return params().view(param(), config_.tied ? "embed" : "head"); }
    std::optional<View<float>> lookup() const {
        if (layout_.lookup_grad.index < 0) return std::nullopt;
        return arena_.view(layout_.lookup_grad);
    }
    View<std::byte> bytes(int slot, View<T> v) const {
        const std::int64_t rows = slots_[static_cast<std::size_t>(slot)].rows;
        return View<std::byte>(reinterpret_cast<std::byte*>(v.data()), {rows * v.dim(1) * static_cast<std::int64_t>(sizeof(T))});
    }
    // Where a chunk's first block reads: what a stage before sent, or the embedding. A chunk without blocks passes it on.
    View<T> chunk_input(int chunk, int slot) const {
        const std::size_t begin = chunk_begin_[static_cast<std::size_t>(chunk)];
        if (begin == chunk_begin_[static_cast<std::size_t>(chunk) + 1])
            return arena_.view(layout_.slots[static_cast<std::size_t>(slot)].out);
        return blocks_[begin].forward[static_cast<std::size_t>(slot)].in;
    }
    View<T> slot_view(int slot, Reserved<T> SlotLayout<T>::*which) const {
        return arena_.view(layout_.slots[static_cast<std::size_t>(slot)].*which).rows(0, slots_[static_cast<std::size_t>(slot)].rows);
    }
    template <class E> static View<E> flat(View<E> x) { return x.reshape({x.size()}); }

    BlockRanks block_ranks(const Slot& at) const { return {tp_, {ranks_.cp, slices_, at.batch_rows}}; }
    std::optional<ExactSums::Buffers> exact_buffers() const {
        if (!layout_.use.exact) return std::nullopt;
        return ExactSums::Buffers{arena_.view(layout_.exact), arena_.view(layout_.largest), arena_.view(layout_.limbs)};
    }
    // The next micro-batch starts the gradients of a chunk anew: matrices are written then, the rest is added to zero.
    void restart(int chunk) {
        const Span span = chunk_params_[static_cast<std::size_t>(chunk)];
        for (int i = span.first; i < span.last; ++i) {
            const Param& p = params().specs[static_cast<std::size_t>(i)];
            if (p.shape.size() == 1 || (p.name == "embed" && !p.copy && !lookup())) fill_zero(grads().rows(p.offset, p.size()));
            if (p.name == "embed" && lookup()) fill_zero(lookup()->reshape({lookup()->size()}));
        }
        started_[static_cast<std::size_t>(chunk)] = 0;
    }
    Sequence sequence(const Slot& at) const {
        return {.positions = View<const std::int32_t>(at.positions, {at.tokens}), .lo = View<const std::int32_t>(at.lo, {at.tokens}),
                .rope = arena_.view(layout_.rope)};
    }
    static View<const std::int32_t> labels(const Slot& at) { return View<const std::int32_t>(at.labels, {at.tokens}); }

    void need(const Block& b) {
        if (gradients_) gradients_->need(b.specs.first, b.specs.last);
    }
    void ready(Span s) { gradients_->ready(s.first, s.last); }

    void fill_zero(View<float> x) {
        constexpr std::int64_t tile = 1 << 16;
        stream_.parallel(ceil_div(x.size(), tile), [&](std::int64_t t, int) {
            std::memset(x.data() + t * tile, 0, static_cast<std::size_t>(std::min(tile, x.size() - t * tile)) * sizeof(float));
        });
    }

    // The embedding is cut by vocabulary: a rank has zeros for what others hold, and the sum is the row.
    void embed(const Slot& at, View<T> rows) {
        if (gradients_) gradients_->need(embed_params_.first, embed_params_.last);
        const View<T> partial = tp_.sequence ? arena_.view(layout_.whole_embed).rows(0, at.tokens) : rows;
        embedding_forward<T>(stream_, {.y = partial, .ids = View<const std::int32_t>(at.ids, {at.tokens}),
                                       .w = params().view(param(), "embed"), .vocab_begin = layout_.shard.vocab.begin});
        leave_forward<T>(stream_, tp_, rows, partial);
    }
    void embed_backward(const Slot& at, View<T> dh) {
        const View<T> buffer = tp_.sequence ? arena_.view(layout_.whole_dembed).rows(0, at.tokens) : dh;
        const View<const T> dy = leave_backward<T>(stream_, tp_, dh, buffer);
        embedding_backward<T>(stream_, {.dw = lookup() ? *lookup() : params().view(grads(), "embed"), .dy = dy,
                                        .ids = View<const std::int32_t>(at.ids, {at.tokens}),
                                        .vocab_begin = layout_.shard.vocab.begin});
    }

    void final_norm_forward(int slot, View<const T> x, std::optional<View<const T>> delta, View<T> out) {
        if (gradients_) gradients_->need(head_params_.first, head_params_.last);
        const View<T> y = slot_view(slot, &SlotLayout<T>::final_norm);
        const View<float> rstd = arena_.view(layout_.slots[static_cast<std::size_t>(slot)].final_rstd).rows(0, x.dim(0));
        const View<const T> gain = params().view(param(), "final_norm");
        if (delta)
            add_rmsnorm_forward<T>(stream_, {.sum = out, .y = y, .rstd = rstd, .x = x, .residual = *delta, .gain = gain, .eps = layout_.dims.eps});
        else
            rmsnorm_forward<T>(stream_, {.y = y, .rstd = rstd, .x = x, .gain = gain, .eps = layout_.dims.eps});
    }

    HeadBuffers<T> head_buffers() const {
        HeadBuffers<T> b{.chunk = layout_.use.head_chunk, .logits = arena_.view(layout_.logits), .max = arena_.view(layout_.max),
                         .sum = arena_.view(layout_.sum), .target = arena_.view(layout_.target), .common = {}, .dlogits = {},
                         .whole_norm = {}, .whole_dnorm = {}};
        if (layout_.common.index >= 0) b.common = arena_.view(layout_.common);
        if (layout_.dlogits.index >= 0) b.dlogits = arena_.view(layout_.dlogits);
        if (layout_.whole_norm.index >= 0) b.whole_norm = arena_.view(layout_.whole_norm);
        if (layout_.whole_dnorm.index >= 0) b.whole_dnorm = arena_.view(layout_.whole_dnorm);
        return b;
    }

    // Losses per token, gradients of the head and, in dh, that of the residual stream.
    void head_backward(int slot, View<T> dh, bool accumulate) {
        const Slot& at = slots_[static_cast<std::size_t>(slot)];
        const View<T> dnorm = arena_.view(layout_.dfinal).rows(0, at.rows);
        /*2*/ head_loss<T>(stream_, tp_, head_buffers(),
                           {.loss = arena_.view(layout_.loss).rows(0, at.tokens), .dnorm = dnorm,
                            .dw = params().view(grads(), config_.tied ? "embed" : "head"), .accumulate = accumulate,
                            .norm = slot_view(slot, &SlotLayout<T>::final_norm), .w = head_weight(), .labels = labels(at),
                            .vocab_begin = layout_.shard.vocab.begin, .z_loss = z_loss_});
        /*1*/ rmsnorm_backward<T>(stream_, {.dx = dh, .dgain = params().view(grads(), "final_norm"),
                                            .scratch = arena_.view(layout_.head_norm_scratch), .dy = dnorm,
                                            .x = slot_view(slot, &SlotLayout<T>::out), .gain = params().view(param(), "final_norm"),
                                            .rstd = arena_.view(layout_.slots[static_cast<std::size_t>(slot)].final_rstd).rows(0, at.rows)});
    }

    double total_loss(std::int64_t tokens) {
        const View<double> total = arena_.view(layout_.total);
        sum(stream_, {.out = total, .scratch = arena_.view(layout_.reduce_scratch), .x = arena_.view(layout_.loss).rows(0, tokens)});
        stream_.synchronize();
        return total[0];
    }

    const ModelSection config_;
    Stream& stream_;  // the run's; it outlives its model
    const Ranks ranks_;
    const float z_loss_;
    MemoryPlan plan_;
    ModelLayout<T> layout_;
    Arena arena_;
    TensorParallel tp_;
    ContextSlices slices_;
    std::vector<Block> blocks_;
    std::vector<std::size_t> chunk_begin_;   // first block of each chunk, and one past the last
    std::vector<Slot> slots_;
    std::vector<char> started_;              // per chunk: a micro-batch of this step has been through its backward
    std::vector<Span> chunk_params_;
    Span embed_params_, head_params_;
    std::optional<Gradients> gradients_;     // in training
};

// A model that is the only rank, with groups of its own, which must be there before it.
struct OwnRanks {
    SoloRanks solo;
};
template <class T> class OnlyModel final : private OwnRanks, public LlamaModel<T> {
public:
    OnlyModel(const Config& config, Stream& stream, const ModelUse& use) : LlamaModel<T>(config, stream, use, solo.ranks()) {}
};

bool is_float(const Config& config) {
    if (config.model.dtype != "f32" && config.model.dtype != "bf16")
        fail_usage("--model.dtype is \"" + config.model.dtype + "\"; it can be bf16 or f32");
    return config.model.dtype == "f32";
}

}  // namespace

std::unique_ptr<Model> make_model(const Config& config, Stream& stream, const ModelUse& use, const Ranks& ranks) {
    if (is_float(config)) return std::make_unique<LlamaModel<float>>(config, stream, use, ranks);
    return std::make_unique<LlamaModel<bf16>>(config, stream, use, ranks);
}

std::unique_ptr<Model> make_model(const Config& config, Stream& stream, const ModelUse& use) {
    if (is_float(config)) return std::make_unique<OnlyModel<float>>(config, stream, use);
    return std::make_unique<OnlyModel<bf16>>(config, stream, use);
}

}  // namespace keel
