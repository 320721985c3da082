// tests/engine/reference_model.h: the Llama shape, forward and backward, as plain loops over the meaning of each op.
//
// R is the type of arithmetic, Store the type that values are rounded to where an op of keel stores them. <double,
// double> is the reference: goldens hold it to the truth, and it is the truth for shapes that have no golden. <float,
// float> and <float, bf16> are the naive evaluation in keel's own precisions: keel's error is measured against theirs.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "engine/model/params.h"
#include "tests/engine/model_golden.h"
#include "tests/engine/reference_ops.h"
#include "tests/kernels/reference.h"

namespace keel {

enum class Fault : std::uint8_t { none, eps_outside };  // eps_outside: 1 / (sqrt(mean square) + eps); forward only

template <class R, class Store> class ReferenceModel {
public:
    using Array = ref::Array<R>;

    ReferenceModel(const ModelSection& model, const Weights& weights, double z_loss = 0, Fault fault = Fault::none)
        : model_(model), z_loss_(z_loss), fault_(fault) {
        for (const auto& [name, values] : weights) {
            master[name] = ref::cast<R>(values);
            grads[name] = m_[name] = v_[name] = Array(values.size(), R(0));
        }
        store_params();
    }

    struct Result {
        Array logits, token_loss;
        double loss = 0;  // summed
    };
    Result forward(const Rows& rows) {
        layers_.assign(static_cast<std::size_t>(model_.layers), {});
        Array x = ref::embedding(at("embed"), rows.ids, 0, size(model_.hidden));
        for (std::size_t i = 0; i < layers_.size(); ++i) x = layer_forward(i, rows, x);
        final_in_ = x;
        final_ = norm(x, at("final_norm"));
        Result out;
        out.logits =
            ref::linear<R, R>(final_.y, at(head()), rows.ids.size(), first_term);  // not rounded: logits stay wide
        auto entropy = ref::cross_entropy<R, Store>(out.logits, rows.labels, z_loss_);
        dlogits_ = std::move(entropy.dlogits);
        out.token_loss = std::move(entropy.loss);
        for (const R loss : out.token_loss) out.loss += static_cast<double>(loss);
        return out;
    }

    // Of the rows of the last forward; gradients of the summed loss accumulate.
    void backward(const Rows& rows) {
        const Array dy = linear_backward(head(), dlogits_, final_.y, rows);
        Array dx = norm_backward("final_norm", dy, final_in_, final_.rstd);
        for (std::size_t i = layers_.size(); i-- > 0;) dx = layer_backward(i, rows, dx);
        grads["embed"] = ref::embedding_backward(grads["embed"], dx, rows.ids, 0, size(model_.hidden));
    }

    void zero_grads() {
        for (auto& [name, g] : grads) g.assign(g.size(), R(0));
    }
    double grad_norm() const {
        double sum = 0;
        for (const auto& [name, g] : grads)
            for (const R x : g) sum += static_cast<double>(x) * static_cast<double>(x);
        return std::sqrt(sum);
    }
    void update(const ref::AdamwScalars& scalars, int step) {
        for (const Param& param : ParamTable(model_).specs) {
            ref::AdamwScalars s = scalars;
            if (!param.decays()) s.weight_decay = 0;
            ref::adamw<R>(master[param.name], m_[param.name], v_[param.name], grads[param.name], s, step);
        }
        store_params();
    }

    std::map<std::string, Array> master, grads;
    std::size_t first_term = 0;  // where the sums of matrix products begin: another order, another sample of rounding

private:
    struct Layer {
        Array in, qkv, att_out, mid, gate_up, act, ffn_out;
        ref::Norm<R> attn_norm, q_norm, k_norm, ffn_norm;
        ref::Heads<R> heads;  // rotated q and k, v, and what attention made of them
    };

    static std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }
    std::string head() const { return model_.tied ? "embed" : "head"; }
    const Array& at(const std::string& name) const { return params_.at(name); }
    void store_params() {
        for (const auto& [name, w] : master) {
            params_[name] = w;
            for (R& x : params_[name]) x = ref::stored<Store>(x);
        }
    }

    Array layer_forward(std::size_t i, const Rows& rows, const Array& x) {
        const std::string p = "layers." + std::to_string(i) + ".";
        const std::size_t tokens = rows.ids.size(), dim = size(model_.head_dim);
        const std::size_t q_size = size(model_.heads) * dim, kv_size = size(model_.kv_heads) * dim;
        Layer& l = layers_[i];
        l.in = x;
        if (!model_.post_norm) l.attn_norm = norm(x, at(p + "attn_norm"));
        l.qkv = ref::linear<R, Store>(model_.post_norm ? x : l.attn_norm.y, at(p + "qkv"), tokens, first_term,
                                      model_.qkv_bias ? &at(p + "qkv_bias") : nullptr);
        Array q = ref::columns(l.qkv, tokens, 0, q_size), k = ref::columns(l.qkv, tokens, q_size, kv_size);
        if (model_.qk_norm) {
            l.q_norm = norm(q, at(p + "q_norm")), q = l.q_norm.y;
            l.k_norm = norm(k, at(p + "k_norm")), k = l.k_norm.y;
        }
        l.heads.q = rotate(q, rows, 1);
        l.heads.k = rotate(k, rows, 1);
        l.heads.v = ref::columns(l.qkv, tokens, q_size + kv_size, kv_size);
        ref::attention<R, Store>(l.heads, rows.lo, dim);
        l.att_out = ref::linear<R, Store>(l.heads.y, at(p + "out"), tokens, first_term);
        if (model_.post_norm) l.attn_norm = norm(l.att_out, at(p + "attn_norm"));
        l.mid = ref::add<R, Store>(x, model_.post_norm ? l.attn_norm.y : l.att_out);
        if (!model_.post_norm) l.ffn_norm = norm(l.mid, at(p + "ffn_norm"));
        l.gate_up = ref::linear<R, Store>(model_.post_norm ? l.mid : l.ffn_norm.y, at(p + "gate_up"), tokens, first_term);
        l.act = ref::swiglu<R, Store>(l.gate_up, size(model_.ffn));
        l.ffn_out = ref::linear<R, Store>(l.act, at(p + "down"), tokens, first_term);
        if (model_.post_norm) l.ffn_norm = norm(l.ffn_out, at(p + "ffn_norm"));
        return ref::add<R, Store>(l.mid, model_.post_norm ? l.ffn_norm.y : l.ffn_out);
    }

    Array layer_backward(std::size_t i, const Rows& rows, const Array& dy) {
        const std::string p = "layers." + std::to_string(i) + ".";
        const std::size_t tokens = rows.ids.size(), dim = size(model_.head_dim);
        const std::size_t q_size = size(model_.heads) * dim, kv_size = size(model_.kv_heads) * dim;
        const Layer& l = layers_[i];
        const bool post = model_.post_norm;
        const Array dffn_out = post ? norm_backward(p + "ffn_norm", dy, l.ffn_out, l.ffn_norm.rstd) : dy;
        const Array dact = linear_backward(p + "down", dffn_out, l.act, rows);
        const Array dgate_up = ref::swiglu_backward<R, Store>(dact, l.gate_up, size(model_.ffn));
        const Array dffn = linear_backward(p + "gate_up", dgate_up, post ? l.mid : l.ffn_norm.y, rows);
        const Array dmid = post ? ref::add<R, Store>(dy, dffn) : norm_backward(p + "ffn_norm", dffn, l.mid, l.ffn_norm.rstd, dy);
        const Array datt_out = post ? norm_backward(p + "attn_norm", dmid, l.att_out, l.attn_norm.rstd) : dmid;
        const Array datt = linear_backward(p + "out", datt_out, l.heads.y, rows);
        ref::HeadGrads<R> d = ref::attention_backward<R, Store>(l.heads, datt, rows.lo, dim);
        d.dq = rotate(d.dq, rows, -1);
        d.dk = rotate(d.dk, rows, -1);
        if (model_.qk_norm) {
            d.dq = norm_backward(p + "q_norm", d.dq, ref::columns(l.qkv, tokens, 0, q_size), l.q_norm.rstd);
            d.dk = norm_backward(p + "k_norm", d.dk, ref::columns(l.qkv, tokens, q_size, kv_size), l.k_norm.rstd);
        }
        const Array dqkv = ref::joined(tokens, d.dq, d.dk, d.dv);
        if (model_.qkv_bias)
            for (std::size_t j = 0; j < dqkv.size(); ++j) grads[p + "qkv_bias"][j % (q_size + 2 * kv_size)] += dqkv[j];
        const Array dattn = linear_backward(p + "qkv", dqkv, post ? l.in : l.attn_norm.y, rows);
        return post ? ref::add<R, Store>(dmid, dattn) : norm_backward(p + "attn_norm", dattn, l.in, l.attn_norm.rstd, dmid);
    }

    ref::Norm<R> norm(const Array& x, const Array& gain) const {
        if (fault_ == Fault::eps_outside) return ref::rmsnorm_eps_outside<R, Store>(x, gain, model_.norm_eps);
        return ref::rmsnorm<R, Store>(x, gain, model_.norm_eps);
    }
    Array norm_backward(const std::string& name, const Array& dy, const Array& x, const Array& rstd,
                        const Array& dresidual = {}) {
        auto g = ref::rmsnorm_backward<R, Store>(dy, x, at(name), rstd, dresidual, R(0));
        for (std::size_t i = 0; i < g.dgain.size(); ++i) grads[name][i] += g.dgain[i];
        return std::move(g.dx);
    }
    Array rotate(const Array& x, const Rows& rows, double sign) const {
        const std::int32_t last = *std::max_element(rows.positions.begin(), rows.positions.end());
        const ref::Rotary rotary(model_, size(last) + 1);
        return ref::rope<R, Store>(x, rows.positions, rotary.frequency, size(model_.head_dim), sign, rotary.scale);
    }
    Array linear_backward(const std::string& name, const Array& dy, const Array& x, const Rows& rows) {
        ref::linear_wgrad(grads[name], dy, x, rows.ids.size(), first_term);
        return ref::linear_dgrad<R, Store>(dy, at(name), rows.ids.size(), first_term);
    }

    const ModelSection model_;
    const double z_loss_;
    const Fault fault_;
    std::map<std::string, Array> params_, m_, v_;
    std::vector<Layer> layers_;
    Array final_in_, dlogits_;
    ref::Norm<R> final_;
};

}  // namespace keel
