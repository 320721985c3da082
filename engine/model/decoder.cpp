#include "engine/model/decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "comm/group.h"
#include "engine/model/bind.h"
#include "engine/model_shape.h"
#include "kernels/attention.h"
#include "kernels/convert.h"
#include "kernels/embedding.h"
#include "kernels/linear.h"
#include "kernels/rmsnorm.h"
#include "kernels/swiglu.h"

namespace keel {
namespace {

constexpr std::int64_t max_tokens_per_call = 128;  // a longer prompt goes through in pieces

// One block's buffers serve all blocks: nothing is kept but the cache.
template <class T> struct DecoderLayout {
    BlockReserved<T> saved;
    Reserved<T> x, delta, last, cache_k, cache_v;
    Reserved<float> rope, last_rstd, logits;
    Reserved<std::int32_t> ids, positions, lo;

    DecoderLayout(MemoryPlan& plan, const ModelSection& m, std::int64_t capacity) {
        plan.moment("decode");
        const BlockDims d = block_dims(m);
        const std::int64_t n = std::min(max_tokens_per_call, capacity);
        const auto take = [&]<class E>(Reserved<E>& r, const char* name, std::initializer_list<std::int64_t> shape, Use use) {
            r = plan.reserve<E>(name, shape, Life::always(), use);
        };
        take(cache_k, "keys", {m.layers, capacity, d.kv_size()}, Use::cache);
        take(cache_v, "values", {m.layers, capacity, d.kv_size()}, Use::cache);
        take(rope, "rope table", {capacity, rotary_dim(m)}, Use::temporary);
        take(saved.in, "in", {n, m.hidden}, Use::temporary);
        take(saved.attn_norm, "attn_norm", {n, m.hidden}, Use::temporary);
        take(saved.attn_rstd, "attn_rstd", {n}, Use::temporary);
        take(saved.qkv, "qkv", {n, d.qkv_size()}, Use::temporary);
        if (m.qk_norm) {
            take(saved.qk, "qk", {n, d.q_size() + d.kv_size()}, Use::temporary);
            take(saved.q_rstd, "q_rstd", {n, d.qk_norm_whole ? 1 : d.heads}, Use::temporary);
            take(saved.k_rstd, "k_rstd", {n, d.qk_norm_whole ? 1 : d.kv_heads}, Use::temporary);
        }
        take(saved.att, "att", {n, d.q_size()}, Use::temporary);
        take(saved.lse, "lse", {d.heads, n}, Use::temporary);
        take(saved.mid, "mid", {n, m.hidden}, Use::temporary);
        take(saved.ffn_rstd, "ffn_rstd", {n}, Use::temporary);
        take(saved.ffn_norm, "ffn_norm", {n, m.hidden}, Use::temporary);
        take(saved.gate_up, "gate_up", {n, 2 * d.ffn}, Use::temporary);
        take(saved.act, "act", {n, d.ffn}, Use::temporary);
        take(x, "x", {n, m.hidden}, Use::temporary);
        take(delta, "delta", {n, m.hidden}, Use::temporary);
        take(last, "last", {1, m.hidden}, Use::temporary);
        take(last_rstd, "last_rstd", {1}, Use::temporary);
        take(logits, "logits", {1, m.vocab}, Use::temporary);
        take(ids, "ids", {n}, Use::temporary);
        take(positions, "positions", {n}, Use::temporary);
        take(lo, "lo", {n}, Use::temporary);
        plan.assign();
    }
};

template <class T> class LlamaDecoder final : public Decoder {
public:
    LlamaDecoder(const Config& config, Stream& stream, Model& model, std::int64_t capacity)
        : m_(config.model), dims_(block_dims(m_)), stream_(stream), table_(model.params()),
          param_(reinterpret_cast<T*>(model.param_data()), {model.params().flat_size}), capacity_(capacity), plan_(),
          layout_(plan_, m_, capacity), arena_(plan_, stream), saved_(layout_.saved.bind(arena_, m_.qk_norm)) {
        rope_table(rope_config(m_, capacity), arena_.view(layout_.rope));
        for (int i = 0; i < static_cast<int>(m_.layers); ++i) blocks_.push_back(block_params<T>(table_, param_, i, m_));
    }

    std::int64_t length() const override { return length_; }
    std::int64_t capacity() const override { return capacity_; }
    void clear() override { length_ = 0; }

    View<const float> append(std::span<const std::int32_t> ids) override {
        if (ids.empty()) fail("decoder: append needs at least one token");
        if (length_ + static_cast<std::int64_t>(ids.size()) > capacity_)
            fail("decoder: ", length_, " + ", ids.size(), " tokens do not fit into a cache of ", capacity_);
        for (const std::int32_t id : ids)
            if (id < 0 || id >= m_.vocab) fail("decoder: token ", id, " is not in the vocabulary of ", m_.vocab);
        while (!ids.empty()) {
            const auto n = std::min<std::size_t>(ids.size(), static_cast<std::size_t>(max_tokens_per_call));
            append_piece(ids.first(n), n == ids.size());
            ids = ids.subspan(n);
        }
        return arena_.view(layout_.logits).reshape({m_.vocab});
    }

private:
    void append_piece(std::span<const std::int32_t> ids, bool last_piece) {
        const auto n = static_cast<std::int64_t>(ids.size());
        const auto at = [&](const auto& r) { return arena_.view(r).rows(0, n); };
        const View<std::int32_t> id = at(layout_.ids), position = at(layout_.positions), lo = at(layout_.lo);
        for (std::int64_t i = 0; i < n; ++i) {
            id[i] = ids[static_cast<std::size_t>(i)];
            position[i] = static_cast<std::int32_t>(length_ + i);
            lo[i] = static_cast<std::int32_t>(m_.window > 0 ? std::max<std::int64_t>(0, length_ + i - m_.window + 1) : 0);
        }
        const Sequence seq{.positions = position, .lo = lo, .rope = arena_.view(layout_.rope)};
        BlockSaved<T> s = saved_;
        const auto cut = [&](auto& view) { view = view.rows(0, n); };
        cut(s.in), cut(s.attn_norm), cut(s.attn_rstd), cut(s.qkv), cut(s.att), cut(s.mid), cut(s.ffn_rstd);
        cut(s.ffn_norm), cut(s.gate_up), cut(s.act);
        if (s.qk) cut(*s.qk), cut(*s.q_rstd), cut(*s.k_rstd);
        s.lse = View<float>(s.lse.data(), {dims_.heads, n});
        const View<T> x = at(layout_.x), delta = at(layout_.delta);

        embedding_forward<T>(stream_, {.y = s.in, .ids = id, .w = table_.view(param_, "embed"), .vocab_begin = 0});
        for (std::size_t i = 0; i < blocks_.size(); ++i) {
            const BlockParams<T>& p = blocks_[i];
            const auto norm = [&](View<T> y, View<float> rstd, View<const T> of, View<const T> gain) {
                rmsnorm_forward<T>(stream_, {.y = y, .rstd = rstd, .x = of, .gain = gain, .eps = dims_.eps});
            };
            // Sums and the norms before attention and feed-forward; or with post_norm (block.h) those behind them.
            if (m_.post_norm) {
                if (i > 0) add<T>(stream_, {.y = flat(s.in), .a = flat(s.mid), .b = flat(delta)});
            } else if (i == 0) {
                norm(s.attn_norm, s.attn_rstd, s.in, p.attn_norm);
            } else {
                add_rmsnorm_forward<T>(stream_, {.sum = s.in, .y = s.attn_norm, .rstd = s.attn_rstd, .x = s.mid,
                                                 .residual = delta, .gain = p.attn_norm, .eps = dims_.eps});
            }
            qkv_forward<T>(stream_, dims_, {solo_, false}, p, s, m_.post_norm ? s.in : s.attn_norm, seq);
            attend(static_cast<std::int64_t>(i), s, lo, n);
            linear_forward<T>(stream_, {.y = x, .x = s.att, .w = p.out});
            if (m_.post_norm) {
                norm(x, s.attn_rstd, x, p.attn_norm);
                add<T>(stream_, {.y = flat(s.mid), .a = flat(s.in), .b = flat(x)});
            } else {
                add_rmsnorm_forward<T>(stream_, {.sum = s.mid, .y = s.ffn_norm, .rstd = s.ffn_rstd, .x = s.in, .residual = x,
                                                 .gain = p.ffn_norm, .eps = dims_.eps});
            }
            linear_forward<T>(stream_, {.y = s.gate_up, .x = m_.post_norm ? s.mid : s.ffn_norm, .w = p.gate_up});
            swiglu_forward<T>(stream_, {.y = s.act, .gate_up = s.gate_up});
            linear_forward<T>(stream_, {.y = delta, .x = s.act, .w = p.down});
            if (m_.post_norm) norm(delta, s.ffn_rstd, delta, p.ffn_norm);
        }
        if (last_piece) {
            const View<T> last = arena_.view(layout_.last);
            add_rmsnorm_forward<T>(stream_, {.sum = s.mid.rows(n - 1, 1), .y = last, .rstd = arena_.view(layout_.last_rstd),
                                             .x = s.mid.rows(n - 1, 1), .residual = delta.rows(n - 1, 1),
                                             .gain = table_.view(param_, "final_norm"), .eps = dims_.eps});
            linear_forward<T, float>(stream_, {.y = arena_.view(layout_.logits), .x = last,
                                               .w = table_.view(param_, m_.tied ? "embed" : "head")});
        }
        stream_.synchronize();
        length_ += n;
    }

    // Copies the new keys and values behind the old ones, and attends to all of them.
    void attend(std::int64_t layer, const BlockSaved<T>& s, View<const std::int32_t> lo, std::int64_t n) {
        const std::int64_t kv = dims_.kv_size(), total = length_ + n;
        const View<T> k(arena_.view(layout_.cache_k).row(layer), {total, kv}), v(arena_.view(layout_.cache_v).row(layer), {total, kv});
        const View<T> new_k = rotated_k(dims_, s), new_v = s.qkv.columns(dims_.q_size() + kv, kv);
        for (std::int64_t i = 0; i < n; ++i) {
            std::memcpy(k.row(length_ + i), new_k.row(i), static_cast<std::size_t>(kv) * sizeof(T));
            std::memcpy(v.row(length_ + i), new_v.row(i), static_cast<std::size_t>(kv) * sizeof(T));
        }
        attention_forward<T>(stream_, {.y = s.att, .lse = s.lse, .q = rotated_q(dims_, s), .k = k, .v = v, .lo = lo,
                                       .head_dim = dims_.head_dim, .query_offset = length_,
                                       .scale = 1.0f / std::sqrt(static_cast<float>(dims_.head_dim))});
    }

    template <class E> static View<E> flat(View<E> x) { return x.reshape({x.size()}); }

    const ModelSection m_;
    const BlockDims dims_;
    SoloGroup solo_;           // a decoder is the only rank
    Stream& stream_;           // the run's
    const ParamTable& table_;  // the model's
    View<T> param_;
    const std::int64_t capacity_;
    std::int64_t length_ = 0;
    MemoryPlan plan_;
    DecoderLayout<T> layout_;
    Arena arena_;
    BlockSaved<T> saved_;
    std::vector<BlockParams<T>> blocks_;
};

}  // namespace

std::unique_ptr<Decoder> make_decoder(const Config& config, Stream& stream, Model& model, std::int64_t capacity) {
    return with_type(model.dtype(), [&]<class T>() -> std::unique_ptr<Decoder> {
        return std::make_unique<LlamaDecoder<T>>(config, stream, model, capacity);
    });
}

}  // namespace keel
