// tests/kernels/reference.h: what the row-wise ops mean, one element at a time, straight from their headers.
//
// R is the type of arithmetic, Store the type results are rounded to. <double, double> is the reference: nothing is
// rounded but by double itself, and goldens hold it to the truth (reference_test.cpp). <float, T> is the naive
// evaluation of an op in its own precision: a kernel may be at most twice as far from the reference.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/base/dtype.h"

namespace keel::ref {

template <class R> using Array = std::vector<R>;

template <class Store, class R> R stored(R x) {
    return static_cast<R>(static_cast<float>(Store(static_cast<float>(x))));
}
template <> inline double stored<double, double>(double x) { return x; }

template <class R> Array<R> cast(const Array<double>& x) {
    Array<R> y(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = static_cast<R>(x[i]);
    return y;
}

// ---- rmsnorm; a head of head_norm is a row of head_dim --------------------------------------------------------------

template <class R> struct Norm { Array<R> y, rstd; };
template <class R, class Store> Norm<R> rmsnorm(const Array<R>& x, const Array<R>& gain, double eps) {
    const std::size_t n = gain.size(), rows = x.size() / n;
    Norm<R> out{Array<R>(x.size()), Array<R>(rows)};
    for (std::size_t t = 0; t < rows; ++t) {
        R squares = 0;
        for (std::size_t i = 0; i < n; ++i) squares += x[t * n + i] * x[t * n + i];
        const R rstd = R(1) / std::sqrt(squares / static_cast<R>(n) + static_cast<R>(eps));
        out.rstd[t] = rstd;
        for (std::size_t i = 0; i < n; ++i)
            out.y[t * n + i] = stored<Store>(stored<Store>(x[t * n + i] * rstd) * gain[i]);
    }
    return out;
}

template <class R> struct NormGrads { Array<R> dx, dgain; };
// dresidual may be empty; dgain starts at `before`.
template <class R, class Store> NormGrads<R> rmsnorm_backward(const Array<R>& dy, const Array<R>& x,
                                                              const Array<R>& gain, const Array<R>& rstd,
                                                              const Array<R>& dresidual, R before) {
    const std::size_t n = gain.size(), rows = x.size() / n;
    NormGrads<R> out{Array<R>(x.size()), Array<R>(n, before)};
    for (std::size_t t = 0; t < rows; ++t) {
        R mean = 0;
        for (std::size_t i = t * n; i < t * n + n; ++i) mean += gain[i - t * n] * dy[i] * (x[i] * rstd[t]);
        mean /= static_cast<R>(n);
        for (std::size_t i = t * n; i < t * n + n; ++i) {
            const R normed = x[i] * rstd[t];
            const R passed = dresidual.empty() ? R(0) : dresidual[i];
            out.dx[i] = stored<Store>(rstd[t] * (gain[i - t * n] * dy[i] - normed * mean) + passed);
            out.dgain[i - t * n] += dy[i] * normed;
        }
    }
    return out;
}

// ---- swiglu ---------------------------------------------------------------------------------------------------------

template <class R> R sigmoid(R x) { return R(1) / (R(1) + std::exp(-x)); }

template <class R, class Store> Array<R> swiglu(const Array<R>& gate_up, std::size_t ffn) {
    Array<R> y(gate_up.size() / 2);
    for (std::size_t i = 0; i < y.size(); ++i) {
        const R gate = gate_up[i / ffn * 2 * ffn + i % ffn], up = gate_up[i / ffn * 2 * ffn + ffn + i % ffn];
        y[i] = stored<Store>(gate * sigmoid(gate) * up);
    }
    return y;
}
template <class R, class Store> Array<R> swiglu_backward(const Array<R>& dy, const Array<R>& gate_up, std::size_t ffn) {
    Array<R> dgate_up(gate_up.size());
    for (std::size_t i = 0; i < dy.size(); ++i) {
        const std::size_t at = i / ffn * 2 * ffn + i % ffn;
        const R gate = gate_up[at], up = gate_up[at + ffn], s = sigmoid(gate);
        dgate_up[at] = stored<Store>(dy[i] * up * s * (R(1) + gate * (R(1) - s)));
        dgate_up[at + ffn] = stored<Store>(dy[i] * gate * s);
    }
    return dgate_up;
}

// ---- rope -----------------------------------------------------------------------------------------------------------

// Pairs (i, i + rotary_dim / 2) of every head turn by position * frequency[i]; sign -1 turns back.
template <class R, class Store> Array<R> rope(Array<R> x, const std::vector<std::int32_t>& positions,
                                              const std::vector<double>& frequency, std::size_t head_dim,
                                              double sign = 1, double scale = 1) {
    const std::size_t half = frequency.size(), width = x.size() / positions.size();
    for (std::size_t t = 0; t < positions.size(); ++t)
        for (std::size_t head = t * width; head < (t + 1) * width; head += head_dim)
            for (std::size_t i = 0; i < half; ++i) {
                const double angle = positions[t] * frequency[i];
                const R c = static_cast<R>(scale * std::cos(angle)), s = static_cast<R>(scale * sign * std::sin(angle));
                const R a = x[head + i], b = x[head + half + i];
                x[head + i] = stored<Store>(a * c - b * s);
                x[head + half + i] = stored<Store>(b * c + a * s);
            }
    return x;
}

// ---- embedding ------------------------------------------------------------------------------------------------------

template <class R>
Array<R> embedding(const Array<R>& w, const std::vector<std::int32_t>& ids, std::int64_t begin, std::size_t hidden) {
    Array<R> y(ids.size() * hidden, R(0));
    for (std::size_t t = 0; t < ids.size(); ++t) {
        const std::int64_t row = ids[t] - begin;
        if (row < 0 || row >= static_cast<std::int64_t>(w.size() / hidden)) continue;
        for (std::size_t i = 0; i < hidden; ++i) y[t * hidden + i] = w[static_cast<std::size_t>(row) * hidden + i];
    }
    return y;
}
template <class R> Array<R> embedding_backward(Array<R> dw, const Array<R>& dy, const std::vector<std::int32_t>& ids,
                                               std::int64_t begin, std::size_t hidden) {
    for (std::size_t t = 0; t < ids.size(); ++t) {
        const std::int64_t row = ids[t] - begin;
        if (row < 0 || row >= static_cast<std::int64_t>(dw.size() / hidden)) continue;
        for (std::size_t i = 0; i < hidden; ++i) dw[static_cast<std::size_t>(row) * hidden + i] += dy[t * hidden + i];
    }
    return dw;
}

// ---- cross-entropy over the whole vocabulary ------------------------------------------------------------------------

template <class R> struct CrossEntropy { Array<R> loss, dlogits; };
template <class R, class Store>
CrossEntropy<R> cross_entropy(const Array<R>& logits, const std::vector<std::int32_t>& labels, double z_loss) {
    const std::size_t tokens = labels.size(), vocab = logits.size() / tokens;
    CrossEntropy<R> out{Array<R>(tokens, R(0)), Array<R>(logits.size(), R(0))};
    for (std::size_t t = 0; t < tokens; ++t) {
        if (labels[t] < 0) continue;
        const R* x = logits.data() + t * vocab;
        const R top = *std::max_element(x, x + vocab), z = static_cast<R>(z_loss);
        R sum = 0;
        for (std::size_t i = 0; i < vocab; ++i) sum += std::exp(x[i] - top);
        const R lse = top + std::log(sum);
        out.loss[t] = std::log(sum) + (top - x[labels[t]]) + z * lse * lse;
        for (std::size_t i = 0; i < vocab; ++i)
            out.dlogits[t * vocab + i] = stored<Store>(std::exp(x[i] - top) / sum * (R(1) + R(2) * z * lse) -
                                                       (static_cast<std::int64_t>(i) == labels[t] ? R(1) : R(0)));
    }
    return out;
}

// ---- adamw ----------------------------------------------------------------------------------------------------------

struct AdamwScalars {
    double lr, beta1, beta2, eps, weight_decay, grad_scale;
};
template <class R>
void adamw(Array<R>& master, Array<R>& m, Array<R>& v, const Array<R>& grad, const AdamwScalars& s, int step) {
    const R b1 = static_cast<R>(s.beta1), b2 = static_cast<R>(s.beta2);
    const R c1 = static_cast<R>(1 - std::pow(s.beta1, step)), c2 = static_cast<R>(1 - std::pow(s.beta2, step));
    for (std::size_t i = 0; i < master.size(); ++i) {
        const R g = grad[i] * static_cast<R>(s.grad_scale);
        m[i] = b1 * m[i] + (R(1) - b1) * g;
        v[i] = b2 * v[i] + (R(1) - b2) * g * g;
        master[i] -= static_cast<R>(s.lr) * (m[i] / c1 / (std::sqrt(v[i] / c2) + static_cast<R>(s.eps)) +
                                             static_cast<R>(s.weight_decay) * master[i]);
    }
}

}  // namespace keel::ref
