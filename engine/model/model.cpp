#include "engine/model/model.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "engine/memory/host_copy.h"
#include "engine/model/batch_slots.h"
#include "engine/model/bind.h"
#include "engine/model/head.h"
#include "engine/model/narrow.h"
#include "engine/model/step_numbers.h"
#include "kernels/adamw.h"
#include "kernels/convert.h"
#include "kernels/copy.h"
#include "kernels/embedding.h"
#include "kernels/gpu_range.h"
#include "kernels/linear.h"
#include "kernels/reduce.h"
#include "kernels/rmsnorm.h"

namespace keel {
namespace {

template <class T> class LlamaModel : public Model {
public:
    LlamaModel(const Config& config, const Backend& backend, const ModelUse& use, const Ranks& ranks)
        : config_(config.model), backend_(backend), stream_(backend.stream), ranks_(ranks),
          z_loss_(static_cast<float>(config.optim.z_loss)), plan_(),
          layout_(plan_, config.model, use, shard_of(config, ranks.place)), arena_(assigned(plan_), backend),
          numbers_(backend_, arena_.view(layout_.numbers), use.micro_batches, layout_.hashes.count()),
          tp_{ranks_.tp, layout_.shard.sequence}, slices_(use.positions, use.training ? layout_.shard.cp : 1),
          batches_(backend_, slices_, layout_.shard.cp_rank, {use.tokens, use.micro_batches * std::ssize(layout_.shard.chunks)}, batch_copies()) {
        if (use.device != stream_.device())
            fail("model: planned for ", name(use.device), ", but its stream is of ", name(stream_.device()));
        bind_state();
        make_rope_table(backend_, rope_config(config_, use.positions), arena_.view(layout_.rope));
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
        if (layout_.on_gpu()) {
            const View<std::byte> workspace = arena_.view(layout_.products);
            products_ = stream_.lend(workspace.data(), workspace.size());
        }
        if (layout_.peers.index >= 0) lend(ranks_, arena_.view(layout_.peers));
        if (layout_.peers_beside.index >= 0) ranks_.beside.lend(arena_.view(layout_.peers_beside));
        if (use.training)
            gradients_.emplace(backend_, ranks_, config_, layout_.shard, params(),
                               Gradients::Buffers{.grad = grads(), .lookup = lookup(), .gains = arena_.view(layout_.gains),
                                                  .squares = numbers_.squares(),
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
        const HostState state = host_state();
        init_params<T>(backend_.host, params(), seed, View<T>(reinterpret_cast<T*>(state.param), {params().flat_size}));
        if (!std::is_same_v<T, float>) init_owned(backend_.host, params(), seed, state.master);
        state_->send();
        fill_zero(grads());
        fill_zero(first_moment());
        fill_zero(second_moment());
    }

    void zero_grads() override {
        for (int chunk = 0; chunk < static_cast<int>(started_.size()); ++chunk) restart(chunk);
        gradients_->begin();
        numbers_.begin();
        batches_.begin();
    }

    void scale_loss(float scale) override { loss_scale_ = scale; }

    void load(int slot, const Batch& batch) override { batches_.load(slot, batch); }

    void repeat(std::int64_t micro_batches) override {
        numbers_.repeat(micro_batches);
        gradients_->repeat();
    }
    void refill(std::int64_t i, const Batch& batch) override { batches_.refill(i, batch); }

    void forward(int chunk, int slot) override {
        const SlotBatch& at = batches_[slot];
        const LayerRange& range = layout_.shard.chunks[static_cast<std::size_t>(chunk)];
        const std::size_t begin = chunk_begin_[static_cast<std::size_t>(chunk)], end = chunk_begin_[static_cast<std::size_t>(chunk) + 1];
        const View<T> first = chunk_input(chunk, slot).rows(0, rows(at));
        const GpuRange profiled(backend_.stream.device(), "forward", slot);
        if (range.embedding) embed(at, first);
        View<const T> x = first;
        std::optional<View<const T>> delta;
        for (std::size_t i = begin; i < end; ++i) {
            const Block& b = blocks_[i];
            const GpuRange layer(backend_.stream.device(), "layer", static_cast<std::int64_t>(i));
            need(b);
            const BlockSaved<T> saved = narrow(b.forward[static_cast<std::size_t>(slot)], rows(at), at.tokens);
            const View<T> next_delta = b.next_delta.rows(0, rows(at));
            block_forward<T>(stream_, layout_.dims, block_ranks(at), b.params, saved, narrow(b.meet_forward, at.tokens),
                             sequence(at), x, delta, b.branch.rows(0, rows(at)), next_delta);
            x = saved.mid;
            delta = next_delta;
        }
        const View<T> out = slot_view(slot, &SlotLayout<T>::out);
        if (range.head) final_norm_forward(slot, x, delta, out);
        else if (delta) add<T>(stream_, {.y = flat(out), .a = flat(x), .b = flat(*delta)});
        else if (out.data() != x.data()) copy<T>(stream_, out, x);
    }

    void backward(int chunk, int slot, int buffer, bool last) override {
        const SlotBatch& at = batches_[slot];
        const LayerRange& range = layout_.shard.chunks[static_cast<std::size_t>(chunk)];
        const Span all = chunk_params_[static_cast<std::size_t>(chunk)];
        if (layout_.use.exact) restart(chunk);  // the gradient of one sequence at a time
        const bool accumulate = started_[static_cast<std::size_t>(chunk)];
        const auto final = [&](Span s) {
            if (last && !layout_.use.exact) ready(s);
        };
        const View<T> dh = arena_.view(layout_.dh[static_cast<std::size_t>(buffer)]).rows(0, rows(at));
        const GpuRange profiled(backend_.stream.device(), "backward", slot);
        if (range.head) {
            head_backward(slot, dh, accumulate);
            queue_loss(at.tokens);
            final(head_params_);
        }
        for (std::size_t i = chunk_begin_[static_cast<std::size_t>(chunk) + 1]; i-- > chunk_begin_[static_cast<std::size_t>(chunk)];) {
            const Block& b = blocks_[i];
            const TrainingBlock& t = *b.training;
            const GpuRange layer(backend_.stream.device(), "layer", static_cast<std::int64_t>(i));
            const BlockSaved<T> saved = narrow(t.backward[static_cast<std::size_t>(slot)], rows(at), at.tokens);
            const BlockMeetings<T> meet = narrow(t.meet, at.tokens);
            block_recompute<T>(stream_, layout_.dims, block_ranks(at), b.params, saved, meet.ffn, sequence(at), layout_.use.recompute,
                               t.branch.rows(0, rows(at)));
            BlockGrads grads_of_block = t.grads;
            grads_of_block.accumulate = accumulate;
            block_backward<T>(stream_, layout_.dims, block_ranks(at), b.params, grads_of_block, saved, narrow(t.temp, rows(at), at.tokens),
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
    }

    std::span<const double> take_losses() override { return numbers_.take_losses(); }

    double loss(int slot) override {
        const SlotBatch& at = batches_[slot];
        if (!layout_.shard.has_head()) return 0;
        head_loss<T>(stream_, tp_, head_buffers(), {.loss = arena_.view(layout_.loss).rows(0, at.tokens), .dnorm = {}, .dw = {},
                                                    .norm = slot_view(slot, &SlotLayout<T>::final_norm), .w = head_weight(),
                                                    .labels = labels(at), .vocab_begin = layout_.shard.vocab.begin,
                                                    .z_loss = 0});
        numbers_.begin();
        queue_loss(at.tokens);
        return take_losses().front();
    }

    View<const float> token_loss() const override { return arena_.view(layout_.loss); }
    View<std::byte> snapshot() override {
        if (!layout_.use.snapshot) return {nullptr, {0}};
        if (!backend_.gpu) return arena_.view(layout_.snapshot);
        if (!snapshot_.data()) snapshot_ = Pages(layout_.snapshot_bytes());
        return {snapshot_.data(), {layout_.snapshot_bytes()}};
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

    void hash(std::int64_t slot, View<const std::byte> x) override {
        keel::hash(stream_, {.out = numbers_.next_hash(slot), .scratch = arena_.view(layout_.reduce_scratch), .x = x});
    }
    const HashSlots& hash_slots() const override { return layout_.hashes; }
    std::span<const std::uint64_t> hashes() override { return numbers_.host_hashes(); }

    void reduce_grads() override {
        if (!gradients_->all_ready()) gradients_->ready(0, static_cast<int>(params().specs.size()));
        gradients_->finish();
        numbers_.send();
    }
    double grad_norm() override { return gradients_->norm(numbers_.host_squares()) / static_cast<double>(loss_scale_); }

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
                               .grad_scale = u.grad_scale / loss_scale_, .step = u.step});
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
    HostState host_state() override {
        const auto floats = [&](std::size_t part, std::int64_t size) {
            const bool there = part < state_->parts();  // only the parameters, if the model is not for training
            return View<float>(there ? reinterpret_cast<float*>(state_->part(part)) : nullptr, {there ? size : 0});
        };
        const std::int64_t owned = params().owned_size;
        return {.param = state_->part(0), .master = std::is_same_v<T, float> ? floats(0, params().flat_size) : floats(3, owned),
                .m = floats(1, owned), .v = floats(2, owned)};
    }
    void fetch_state() override { state_->fetch(); }
    void share_params() override {
        state_->send();
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
    // Of the residual stream: with sequence parallelism each rank has its share of the tokens.
    std::int64_t rows(const SlotBatch& at) const { return layout_.shard.sequence ? at.tokens / layout_.shard.tp : at.tokens; }
    std::vector<View<std::int32_t>> batch_copies() const {
        std::vector<View<std::int32_t>> copies;
        for (const SlotLayout<T>& slot : layout_.slots)
            copies.push_back(slot.batch.index < 0 ? View<std::int32_t>(nullptr, {0}) : arena_.view(slot.batch));
        return copies;
    }

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

    void bind_state() {
        const auto bytes_of = [](auto flat) { return View<std::byte>(reinterpret_cast<std::byte*>(flat.data()), {flat.bytes()}); };
        std::vector<View<std::byte>> parts{bytes_of(param())};
        if (layout_.use.training) {
            parts.push_back(bytes_of(first_moment())), parts.push_back(bytes_of(second_moment()));
            if (!std::is_same_v<T, float>) parts.push_back(bytes_of(master()));
        }
        state_.emplace(backend_, std::move(parts));
    }

    View<T> param() const { return arena_.view(layout_.param); }
    View<const T> head_weight() const { return params().view(param(), config_.tied ? "embed" : "head"); }
    std::optional<View<float>> lookup() const {
        if (layout_.lookup_grad.index < 0) return std::nullopt;
        return arena_.view(layout_.lookup_grad);
    }
    View<std::byte> bytes(int slot, View<T> v) const {
        return View<std::byte>(reinterpret_cast<std::byte*>(v.data()),
                               {rows(batches_[slot]) * v.dim(1) * static_cast<std::int64_t>(sizeof(T))});
    }
    // Where a chunk's first block reads: what a stage before sent, or the embedding. A chunk without blocks passes it on.
    View<T> chunk_input(int chunk, int slot) const {
        const std::size_t begin = chunk_begin_[static_cast<std::size_t>(chunk)];
        if (begin == chunk_begin_[static_cast<std::size_t>(chunk) + 1])
            return arena_.view(layout_.slots[static_cast<std::size_t>(slot)].out);
        return blocks_[begin].forward[static_cast<std::size_t>(slot)].in;
    }
    View<T> slot_view(int slot, Reserved<T> SlotLayout<T>::*which) const {
        return arena_.view(layout_.slots[static_cast<std::size_t>(slot)].*which).rows(0, rows(batches_[slot]));
    }
    template <class E> static View<E> flat(View<E> x) { return x.reshape({x.size()}); }

    BlockRanks block_ranks(const SlotBatch& at) const { return {tp_, {ranks_.cp, slices_, at.batch_rows}}; }
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
    Sequence sequence(const SlotBatch& at) const {
        return {.positions = View<const std::int32_t>(at.positions, {at.tokens}), .lo = View<const std::int32_t>(at.lo, {at.tokens}),
                .rope = arena_.view(layout_.rope)};
    }
    static View<const std::int32_t> labels(const SlotBatch& at) { return View<const std::int32_t>(at.labels, {at.tokens}); }

    void need(const Block& b) {
        if (gradients_) gradients_->need(b.specs.first, b.specs.last);
    }
    void ready(Span s) { gradients_->ready(s.first, s.last); }

    void fill_zero(View<float> x) { backend_.zero(x.data(), x.bytes()); }

    // The embedding is cut by vocabulary: a rank has zeros for what others hold, and the sum is the row.
    void embed(const SlotBatch& at, View<T> rows) {
        if (gradients_) gradients_->need(embed_params_.first, embed_params_.last);
        const View<T> partial = tp_.sequence ? arena_.view(layout_.whole_embed).rows(0, at.tokens) : rows;
        embedding_forward<T>(stream_, {.y = partial, .ids = View<const std::int32_t>(at.ids, {at.tokens}),
                                       .w = params().view(param(), "embed"), .vocab_begin = layout_.shard.vocab.begin});
        leave_forward<T>(stream_, tp_, rows, partial);
    }
    void embed_backward(const SlotBatch& at, View<T> dh) {
        const View<T> buffer = tp_.sequence ? arena_.view(layout_.whole_dembed).rows(0, at.tokens) : dh;
        const View<const T> dy = leave_backward<T>(stream_, tp_, dh, buffer);
        EmbeddingBackward<T> args{.dw = lookup() ? *lookup() : params().view(grads(), "embed"), .dy = dy,
                                  .ids = View<const std::int32_t>(at.ids, {at.tokens}), .vocab_begin = layout_.shard.vocab.begin};
        if (layout_.on_gpu()) args.scratch = arena_.view(layout_.embed_scratch);
        embedding_backward<T>(stream_, args);
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
        const SlotBatch& at = batches_[slot];
        const View<T> dnorm = arena_.view(layout_.dfinal).rows(0, rows(at));
        /*2*/ head_loss<T>(stream_, tp_, head_buffers(),
                           {.loss = arena_.view(layout_.loss).rows(0, at.tokens), .dnorm = dnorm,
                            .dw = params().view(grads(), config_.tied ? "embed" : "head"), .accumulate = accumulate,
                            .norm = slot_view(slot, &SlotLayout<T>::final_norm), .w = head_weight(), .labels = labels(at),
                            .vocab_begin = layout_.shard.vocab.begin, .z_loss = z_loss_, .scale = loss_scale_});
        /*1*/ rmsnorm_backward<T>(stream_, {.dx = dh, .dgain = params().view(grads(), "final_norm"),
                                            .scratch = arena_.view(layout_.head_norm_scratch), .dy = dnorm,
                                            .x = slot_view(slot, &SlotLayout<T>::out), .gain = params().view(param(), "final_norm"),
                                            .rstd = arena_.view(layout_.slots[static_cast<std::size_t>(slot)].final_rstd).rows(0, rows(at))});
    }

    void queue_loss(std::int64_t tokens) {
        sum(stream_, {.out = numbers_.next_loss(), .scratch = arena_.view(layout_.reduce_scratch),
                      .x = arena_.view(layout_.loss).rows(0, tokens)});
    }

    const ModelSection config_;
    const Backend backend_;  // the run's; it outlives its model
    Stream& stream_;         // of the backend
    const Ranks ranks_;
    const float z_loss_;
    float loss_scale_ = 1;
    MemoryPlan plan_;
    ModelLayout<T> layout_;
    Arena arena_;
    Stream::Loan products_;  // of the arena's workspace of products
    StepNumbers numbers_;
    std::optional<HostCopy> state_;          // parameters; in training also moments and master weights
    Pages snapshot_;                         // of a GPU's state
    TensorParallel tp_;
    ContextSlices slices_;
    std::vector<Block> blocks_;
    std::vector<std::size_t> chunk_begin_;   // first block of each chunk, and one past the last
    BatchSlots batches_;
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
    OnlyModel(const Config& config, const Backend& backend, const ModelUse& use) : LlamaModel<T>(config, backend, use, solo.ranks()) {}
};

}  // namespace

std::unique_ptr<Model> make_model(const Config& config, const Backend& backend, const ModelUse& use, const Ranks& ranks) {
    return with_type(dtype_named(config.model.dtype), [&]<class T>() -> std::unique_ptr<Model> {
        return std::make_unique<LlamaModel<T>>(config, backend, use, ranks);
    });
}

std::unique_ptr<Model> make_model(const Config& config, const Backend& backend, const ModelUse& use) {
    return with_type(dtype_named(config.model.dtype), [&]<class T>() -> std::unique_ptr<Model> {
        return std::make_unique<OnlyModel<T>>(config, backend, use);
    });
}

}  // namespace keel
