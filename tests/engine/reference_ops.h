// tests/engine/reference_ops.h: what tests/kernels/reference.h leaves out of a model: matrix products, attention over
// whole rows of scores, rotary frequencies. R is the type of arithmetic, Store the type results are rounded to.
#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>

#include "engine/config.h"
#include "tests/kernels/reference.h"

namespace keel::ref {

// Angle per position of each pair, and what cos and sin are multiplied by.
struct Rotary {
    std::vector<double> frequency;
    double scale = 1;

    Rotary(const ModelSection& m, std::size_t row_tokens) {
        const auto turning = static_cast<std::int64_t>(static_cast<double>(m.head_dim) * m.rope_fraction);
        const double dim = static_cast<double>(turning), original = m.rope_original_max_position;
        const auto index = [&](double rotations) {
            return dim * std::log(original / (2 * std::numbers::pi * rotations)) / (2 * std::log(m.rope_base));
        };
        for (std::int64_t i = 0; i < turning / 2; ++i) {
            const double theta = std::pow(m.rope_base, -2.0 * static_cast<double>(i) / dim),
                         slow = theta / m.rope_factor;
            double keep = 1;  // share of theta that stays
            if (m.rope_scaling == "linear") keep = 0;
            if (m.rope_scaling == "llama3") {
                const double turns = original * theta / (2 * std::numbers::pi);
                keep = (turns - m.rope_low_freq_factor) / (m.rope_high_freq_factor - m.rope_low_freq_factor);
            }
            if (m.rope_scaling == "yarn") {
                const double low = std::max(std::floor(index(m.rope_beta_fast)), 0.0);
                const double high = std::min(std::ceil(index(m.rope_beta_slow)), dim - 1);
                keep = 1 - (static_cast<double>(i) - low) / (high - low);
            }
            keep = std::clamp(keep, 0.0, 1.0);
            frequency.push_back(keep * theta + (1 - keep) * slow);
            if (m.rope_scaling == "longrope")
                frequency.back() = theta / (static_cast<double>(row_tokens) > original ? m.rope_long_factors
                                                                                       : m.rope_short_factors)[static_cast<std::size_t>(i)];
        }
        if (m.rope_scaling == "longrope")
            scale = m.rope_attention_factor > 0 ? m.rope_attention_factor
                                                : std::sqrt(1 + std::log(m.rope_factor) / std::log(original));
        if (m.rope_scaling == "yarn")
            scale = m.rope_attention_factor > 0 ? m.rope_attention_factor : 0.1 * std::log(m.rope_factor) + 1;
    }
};

template <class R> Array<R> columns(const Array<R>& x, std::size_t rows, std::size_t begin, std::size_t count) {
    const std::size_t width = x.size() / rows;
    Array<R> y;
    for (std::size_t t = 0; t < rows; ++t)
        for (std::size_t i = 0; i < count; ++i) y.push_back(x[t * width + begin + i]);
    return y;
}
template <class R> Array<R> joined(std::size_t rows, const Array<R>& a, const Array<R>& b, const Array<R>& c) {
    Array<R> y;
    for (std::size_t t = 0; t < rows; ++t)
        for (const Array<R>* part : {&a, &b, &c}) {
            const auto width = static_cast<std::ptrdiff_t>(part->size() / rows), row = static_cast<std::ptrdiff_t>(t);
            y.insert(y.end(), part->begin() + row * width, part->begin() + (row + 1) * width);
        }
    return y;
}

template <class R, class Store> Array<R> add(Array<R> a, const Array<R>& b) {
    for (std::size_t i = 0; i < a.size(); ++i) a[i] = stored<Store>(a[i] + b[i]);
    return a;
}

template <class R, class Store> R rounded(R x) {
    if constexpr (std::is_same_v<R, Store>) return x;
    else return stored<Store>(x);
}

// The inner loops of the three products run over independent sums, so they vectorise. Each sum takes its terms in index
// order from term `first` on, then the ones before it.
template <class R, class Store>
Array<R> linear(const Array<R>& x, const Array<R>& w, std::size_t tokens, std::size_t first,
                const Array<R>* bias = nullptr) {
    const std::size_t in = x.size() / tokens, out = w.size() / in;
    Array<R> transposed(w.size()), y(tokens * out, R(0));
    for (std::size_t o = 0; o < out; ++o)
        for (std::size_t i = 0; i < in; ++i) transposed[i * out + o] = w[o * in + i];
    for (std::size_t t = 0; t < tokens; ++t) {
        R* row = y.data() + t * out;
        for (std::size_t n = 0; n < in; ++n) {
            const std::size_t i = (first + n) % in;
            for (std::size_t o = 0; o < out; ++o) row[o] += x[t * in + i] * transposed[i * out + o];
        }
        for (std::size_t o = 0; o < out; ++o) row[o] = rounded<R, Store>(row[o] + (bias ? (*bias)[o] : R(0)));
    }
    return y;
}
template <class R, class Store>
Array<R> linear_dgrad(const Array<R>& dy, const Array<R>& w, std::size_t tokens, std::size_t first) {
    const std::size_t out = dy.size() / tokens, in = w.size() / out;
    Array<R> dx(tokens * in, R(0));
    for (std::size_t t = 0; t < tokens; ++t) {
        R* row = dx.data() + t * in;
        for (std::size_t n = 0; n < out; ++n) {
            const std::size_t o = (first + n) % out;
            for (std::size_t i = 0; i < in; ++i) row[i] += dy[t * out + o] * w[o * in + i];
        }
        for (std::size_t i = 0; i < in; ++i) row[i] = rounded<R, Store>(row[i]);
    }
    return dx;
}
template <class R>
void linear_wgrad(Array<R>& dw, const Array<R>& dy, const Array<R>& x, std::size_t tokens, std::size_t first) {
    const std::size_t out = dy.size() / tokens, in = x.size() / tokens;
    for (std::size_t n = 0; n < tokens; ++n) {
        const std::size_t t = (first + n) % tokens;
        for (std::size_t o = 0; o < out; ++o)
            for (std::size_t i = 0; i < in; ++i) dw[o * in + i] += dy[t * out + o] * x[t * in + i];
    }
}

template <class R, class Store>
Norm<R> rmsnorm_eps_outside(const Array<R>& x, const Array<R>& gain, double eps) {
    const std::size_t n = gain.size();
    Norm<R> out = rmsnorm<R, Store>(x, gain, 0);
    for (R& rstd : out.rstd) rstd = R(1) / (R(1) / rstd + static_cast<R>(eps));
    for (std::size_t i = 0; i < x.size(); ++i)
        out.y[i] = rounded<R, Store>(rounded<R, Store>(x[i] * out.rstd[i / n]) * gain[i % n]);
    return out;
}

// q and y [tokens, heads * head_dim], k and v [tokens, kv_heads * head_dim], lse [tokens, heads].
template <class R> struct Heads {
    Array<R> q, k, v, y, lse;
};
template <class R> struct HeadGrads {
    Array<R> dq, dk, dv;
};

template <class R> R dot(const R* a, const R* b, std::size_t n) {
    R sum = 0;
    for (std::size_t i = 0; i < n; ++i) sum += a[i] * b[i];
    return sum;
}

// Fills y and lse. Query t sees the keys lo[t] … t.
template <class R, class Store> void attention(Heads<R>& h, const std::vector<std::int32_t>& lo, std::size_t dim) {
    const std::size_t tokens = lo.size(), q_size = h.q.size() / tokens, kv_size = h.k.size() / tokens;
    const std::size_t heads = q_size / dim, group = q_size / kv_size;
    const R scale = R(1) / std::sqrt(static_cast<R>(dim));
    h.y.assign(h.q.size(), R(0));
    h.lse.assign(tokens * heads, R(0));
    Array<R> p(tokens), sum(dim);
    for (std::size_t t = 0; t < tokens; ++t)
        for (std::size_t head = 0; head < heads; ++head) {
            const auto first = static_cast<std::size_t>(lo[t]);
            const std::size_t at = t * q_size + head * dim, kv = head / group * dim;
            R top = -std::numeric_limits<R>::infinity(), total = 0;
            for (std::size_t j = first; j <= t; ++j)
                top = std::max(top, p[j] = scale * dot(&h.q[at], &h.k[j * kv_size + kv], dim));
            for (std::size_t j = first; j <= t; ++j) total += p[j] = std::exp(p[j] - top);
            sum.assign(dim, R(0));
            for (std::size_t j = first; j <= t; ++j)
                for (std::size_t i = 0; i < dim; ++i) sum[i] += p[j] * h.v[j * kv_size + kv + i];
            for (std::size_t i = 0; i < dim; ++i) h.y[at + i] = rounded<R, Store>(sum[i] / total);
            h.lse[t * heads + head] = top + std::log(total);
        }
}
template <class R, class Store>
HeadGrads<R> attention_backward(const Heads<R>& h, const Array<R>& dy, const std::vector<std::int32_t>& lo,
                                std::size_t dim) {
    const std::size_t tokens = lo.size(), q_size = h.q.size() / tokens, kv_size = h.k.size() / tokens;
    const std::size_t heads = q_size / dim, group = q_size / kv_size;
    const R scale = R(1) / std::sqrt(static_cast<R>(dim));
    HeadGrads<R> d{Array<R>(h.q.size(), R(0)), Array<R>(h.k.size(), R(0)), Array<R>(h.k.size(), R(0))};
    for (std::size_t t = 0; t < tokens; ++t)
        for (std::size_t head = 0; head < heads; ++head) {
            const std::size_t at = t * q_size + head * dim;
            const R mean = dot(&dy[at], &h.y[at], dim);  // of dp over the softmax
            for (std::size_t j = static_cast<std::size_t>(lo[t]); j <= t; ++j) {
                const std::size_t kv = j * kv_size + head / group * dim;
                const R p = std::exp(scale * dot(&h.q[at], &h.k[kv], dim) - h.lse[t * heads + head]);
                const R ds = scale * p * (dot(&dy[at], &h.v[kv], dim) - mean);
                for (std::size_t i = 0; i < dim; ++i) {
                    d.dq[at + i] += ds * h.k[kv + i];
                    d.dk[kv + i] += ds * h.q[at + i];
                    d.dv[kv + i] += p * dy[at + i];
                }
            }
        }
    for (Array<R>* grad : {&d.dq, &d.dk, &d.dv})
        for (R& x : *grad) x = rounded<R, Store>(x);
    return d;
}

}  // namespace keel::ref
