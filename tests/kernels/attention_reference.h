// Attention in double, and how far float, bf16 and f16 may be from it, element by element.
//
// u = 2^-24. A dot product of n terms errs by at most 1.01 (n + 2) u of the sum of the terms' sizes, in any order.
//   score      e_k = scale (head_dim + 4) u sum|q||k|         (the product, and the constant it is scaled by)
//   weight     P_k : relative e_k + max_k e_k + u (|s_k| + |max|) + (keys + 8) u =: w   (2^x to 2 ulp, the sum of weights)
//   y          sum_k P |v| (w + (keys + 2) u);    lse  w + 2 u |lse|
// and backward, with P recomputed from lse (so w twice), dp = dy . v, delta = dy . y from the y that was stored:
//   ds         scale P ((2 w + 4 u)(|dp| + |delta|) + (head_dim + 3) u sum|dy|(|v| + |y|) + sum|dy| err(y))
//   dq, dk     sum err(ds)|k or q| + (terms + 2) u sum|ds||k or q|;   dv likewise from P and dy.
// In bf16, P and ds may be rounded to 8 bits before they are multiplied (r = 2^-8, relative), and results are (r
// again). In f16 results alone are rounded, to 11 bits; the bounds give P and ds as much.
// Keys in n parts. With |lse| of any part at most L = max |s| + log(keys): a merge passes the errors of lse on, at most
// the larger of them, and adds (8 + 2 L) u for its exponentials, logarithm and last rounding; so err(lse) grows by m =
// n (8 + 2 L) u. Each of n merges has weights with a relative error of 2 err(lse) + (2 L + 8) u. Every part of y, dq,
// dk and dv is rounded once more (r, or u in float) and added once more (n u).
// Turned back by an angle: dq_i cos + dq_j sin errs by what both erred by, and 3 u of the products' sizes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/attention.h"
#include "kernels/base/random.h"
#include "tests/kernels/rounding.h"

namespace keel::attention_test {

enum class Mask { causal, documents, singles, window, wild };

struct Problem {
    std::int64_t heads, kv_heads, head_dim, tokens, query_offset, extra;
    Mask mask;
    float turned = 1;  // of the usual scale
    std::int64_t rotary = 0;  // elements of a head that q and k had turned; 0: backward is told nothing of it
    Problem turning(std::int64_t elements) const {
        Problem p = *this;
        p.rotary = elements;
        return p;
    }
    static constexpr std::int64_t positions = 97;
    std::int64_t position(std::int64_t key) const { return key * 41 % positions; }
    std::int64_t kv_tokens() const { return query_offset + tokens + extra; }
    std::int64_t group() const { return heads / kv_heads; }
    float scale() const { return turned / std::sqrt(static_cast<float>(head_dim)); }
    std::int64_t low(std::int64_t i) const {
        const std::int64_t key = query_offset + i;
        switch (mask) {
            case Mask::causal:
                return 0;
            case Mask::documents:
                return key < 3 ? 0 : key < 41 ? 3 : key < 42 ? 41 : key < 140 ? 42 : key / 70 * 70;
            case Mask::singles:
                return key;
            case Mask::window:
                return std::max<std::int64_t>(0, key - 24);
            case Mask::wild:
                return key * ((i * 7919) % 101) / 101;  // not even monotone
        }
        return 0;
    }
    std::string text() const {
        return std::to_string(heads) + "/" + std::to_string(kv_heads) + " heads of " + std::to_string(head_dim) + ", " +
               std::to_string(tokens) + " tokens from key " + std::to_string(query_offset) + ", mask " +
               std::to_string(static_cast<int>(mask)) + ", " + std::to_string(rotary) + " turned";
    }
};

template <class T>
std::vector<T> nan_filled(std::int64_t n) {
    return std::vector<T>(static_cast<std::size_t>(n), T(std::numeric_limits<float>::quiet_NaN()));
}

// q beside k and v as columns of packed rows with a margin; keys that nobody sees are NaN.
template <class T>
struct Tensors {
    Problem p;
    std::int64_t q_width, kv_width, q_stride, kv_stride;
    std::vector<T> q, kv, dy;
    std::vector<std::int32_t> lo, at;  // at: the position of every key; a query stands at one of them
    std::vector<float> table;
    std::vector<std::byte> scratch;

    explicit Tensors(const Problem& problem)
        : p(problem),
          q_width(p.heads * p.head_dim),
          kv_width(p.kv_heads * p.head_dim),
          q_stride(q_width + 5),
          kv_stride(2 * kv_width + 3),
          q(nan_filled<T>(p.tokens * q_stride)),
          kv(nan_filled<T>(p.kv_tokens() * kv_stride)),
          dy(nan_filled<T>(p.tokens * q_stride)),
          scratch(static_cast<std::size_t>(
                      attention_scratch_bytes(p.tokens, p.heads, p.kv_tokens(), p.kv_heads, p.head_dim)),
                  std::byte{0xff}) {
        std::int64_t first_seen = p.kv_tokens();
        for (std::int64_t i = 0; i < p.tokens; ++i) {
            lo.push_back(static_cast<std::int32_t>(p.low(i)));
            first_seen = std::min(first_seen, p.low(i));
        }
        for (std::int64_t key = 0; key < p.kv_tokens(); ++key) at.push_back(static_cast<std::int32_t>(p.position(key)));
        table.resize(static_cast<std::size_t>(Problem::positions * p.rotary));
        if (p.rotary) rope_table(yarn, table_view());
        fill("q", q.data(), 0, p.tokens, q_width, q_stride, 2);
        fill("dy", dy.data(), 0, p.tokens, q_width, q_stride, 1);
        fill("k", kv.data(), first_seen, p.query_offset + p.tokens, kv_width, kv_stride, 2);
        fill("v", kv.data() + kv_width, first_seen, p.query_offset + p.tokens, kv_width, kv_stride, 1);
    }
    static void fill(const char* name, T* to, std::int64_t begin, std::int64_t end, std::int64_t width,
                     std::int64_t stride, double size) {
        const Random random(3, Purpose::test, name);
        for (std::int64_t r = begin; r < end; ++r)
            for (std::int64_t c = 0; c < width; ++c)
                to[r * stride + c] =
                    T(static_cast<float>(size * (random.uniform(static_cast<std::uint64_t>(r * width + c)) * 2 - 1)));
    }
    static View<T> strided(T* data, std::int64_t rows, std::int64_t width, std::int64_t stride) {
        return View<T>(data, {rows, stride}).columns(0, width);
    }
    View<T> q_view() { return strided(q.data(), p.tokens, q_width, q_stride); }
    View<T> dy_view() { return strided(dy.data(), p.tokens, q_width, q_stride); }
    View<T> k_view() { return View<T>(kv.data(), {p.kv_tokens(), kv_stride}).columns(0, kv_width); }
    View<T> v_view() { return View<T>(kv.data(), {p.kv_tokens(), kv_stride}).columns(kv_width, kv_width); }
    // cos and sin grow by its attention factor, so that backward is no inverse.
    static inline const RopeConfig yarn{
        .base = 1e4, .scaling = RopeScaling::yarn, .factor = 4, .original_max_position = 32};
    View<float> table_view() { return View<float>(table.data(), {Problem::positions, p.rotary}); }
    std::optional<RopeAngles> angles(std::int64_t first, std::int64_t count) {
        if (!p.rotary) return {};
        return RopeAngles{table_view(), View<const std::int32_t>(at.data() + first, {count})};
    }
    View<const std::int32_t> lo_view() { return View<const std::int32_t>(lo.data(), {p.tokens}); }

    template <class Out>
    AttentionForward<T> forward(Out& out) {
        return {.y = out.y_view(),
                .lse = View<float>(out.lse.data(), {p.heads, p.tokens}),
                .q = q_view(),
                .k = k_view(),
                .v = v_view(),
                .lo = lo_view(),
                .head_dim = p.head_dim,
                .query_offset = p.query_offset,
                .scale = p.scale()};
    }
    template <class Out>
    AttentionBackward<T> backward(Out& out) {
        return {.dq = out.dq_view(),
                .dk = out.dk_view(),
                .dv = out.dv_view(),
                .scratch = View<std::byte>(scratch.data(), {static_cast<std::int64_t>(scratch.size())}),
                .dy = dy_view(),
                .y = out.y_view(),
                .lse = View<const float>(out.lse.data(), {p.heads, p.tokens}),
                .q = q_view(),
                .k = k_view(),
                .v = v_view(),
                .lo = lo_view(),
                .head_dim = p.head_dim,
                .query_offset = p.query_offset,
                .scale = p.scale(),
                .q_rope = angles(p.query_offset, p.tokens),
                .k_rope = angles(0, p.kv_tokens())};
    }
};

// Everything written, NaN before.
template <class T>
struct Outputs {
    Problem p;
    std::int64_t q_width, kv_width, q_stride, kv_stride;
    std::vector<T> y, dq, dkv;
    std::vector<float> lse;
    explicit Outputs(const Problem& problem)
        : p(problem),
          q_width(p.heads * p.head_dim),
          kv_width(p.kv_heads * p.head_dim),
          q_stride(q_width + 1),
          kv_stride(2 * kv_width + 7),
          y(nan_filled<T>(p.tokens * q_stride)),
          dq(y),
          dkv(nan_filled<T>(p.kv_tokens() * kv_stride)),
          lse(nan_filled<float>(p.heads * p.tokens)) {}
    View<T> y_view() { return View<T>(y.data(), {p.tokens, q_stride}).columns(0, q_width); }
    View<T> dq_view() { return View<T>(dq.data(), {p.tokens, q_stride}).columns(1, q_width); }
    View<T> dk_view() { return View<T>(dkv.data(), {p.kv_tokens(), kv_stride}).columns(0, kv_width); }
    View<T> dv_view() { return View<T>(dkv.data(), {p.kv_tokens(), kv_stride}).columns(kv_width + 3, kv_width); }
};

template <class T>
struct Result {
    Tensors<T> in;
    Outputs<T> out;
    double dk(std::int64_t key, std::int64_t d) const {
        return static_cast<float>(out.dkv[static_cast<std::size_t>(key * out.kv_stride + d)]);
    }
    double dv(std::int64_t key, std::int64_t d) const {
        return static_cast<float>(out.dkv[static_cast<std::size_t>(key * out.kv_stride + out.kv_width + 3 + d)]);
    }
    bool same_bits(const Result& other) const {
        const auto same = [](const auto& a, const auto& b) {
            return std::memcmp(a.data(), b.data(), a.size() * sizeof a[0]) == 0;
        };
        return same(out.y, other.out.y) && same(out.lse, other.out.lse) && same(out.dq, other.out.dq) &&
               same(out.dkv, other.out.dkv);
    }
};

template <class T>
Result<T> run(Stream& stream, const Problem& problem) {
    Result<T> result{Tensors<T>(problem), Outputs<T>(problem)};
    const auto poison = [&] {
        for (int t = 0; t < stream.threads(); ++t)
            std::memset(stream.workspace(t), 0xff, static_cast<std::size_t>(stream.workspace_bytes()));
    };
    poison();
    attention_forward<T>(stream, result.in.forward(result.out));
    poison();
    attention_backward<T>(stream, result.in.backward(result.out));
    return result;
}

// A value and how far from it a result may be.
struct Bounded {
    double value = 0, error = 0, size = 0;  // size: sum of the terms' sizes
    void add(double term, double term_error) { value += term, error += term_error, size += std::abs(term); }
};

// A head of a gradient, turned back by the angles of one position: two products and a sum. `rounded`: it was stored
// before, with that relative error.
inline void turn_back(Bounded* head, const float* cosine, std::int64_t rotary, double rounded) {
    const std::int64_t half = rotary / 2;
    for (std::int64_t i = 0; i < half; ++i) {
        Bounded &low = head[i], &high = head[i + half];
        for (Bounded* b : {&low, &high}) b->error += rounded * (std::abs(b->value) + b->error);
        const double c = static_cast<double>(cosine[i]), s = static_cast<double>(cosine[half + i]);
        const auto of = [](const Bounded& a, double by_a, const Bounded& b, double by_b) {
            const double error = a.error * std::abs(by_a) + b.error * std::abs(by_b);
            const double size = std::abs(a.value * by_a) + std::abs(b.value * by_b);
            return Bounded{a.value * by_a + b.value * by_b, error + 3 * 0x1p-24 * (size + error), size};
        };
        const Bounded turned_low = of(low, c, high, s), turned_high = of(high, c, low, -s);
        low = turned_low, high = turned_high;
    }
}

template <class T>
void expect_close(const Problem& p, const char* name, double got, const Bounded& want, std::int64_t row,
                  std::int64_t column) {
    const double bound = 1.01 * want.error, size = std::abs(want.value) + bound;
    const double rounded = bound + (std::is_same_v<T, float> ? 0x1p-24 * size : rounding_of<T>(size));
    ASSERT_LE(std::abs(got - want.value), rounded)
        << name << "[" << row << ", " << column << "] is " << got << ", not " << want.value << ": " << p.text();
    ASSERT_FALSE(std::isnan(got)) << name << "[" << row << ", " << column << "]: " << p.text();
}

// `parts`: of the keys, which were attended to one after the other. `rounded`: dq and dk were, before they turned back.
template <class T>
void expect_right(const Problem& p, const Result<T>& got, std::int64_t parts = 1, bool rounded = false) {
    const double u = 0x1p-24, r = rounding<T>, scale = p.scale();
    const double n = parts > 1 ? static_cast<double>(parts) : 0, again = parts > 1 ? std::max(r, u) + n * u : 0;
    const std::int64_t D = p.head_dim;
    const auto& in = got.in;
    const auto& out = got.out;
    const auto f = [](const T& x) { return static_cast<double>(static_cast<float>(x)); };
    const auto angles = [&](std::int64_t key) { return in.table.data() + p.position(key) * p.rotary; };
    std::vector<Bounded> dk(static_cast<std::size_t>(p.kv_tokens() * in.kv_width)), dv(dk);
    for (std::int64_t h = 0; h < p.heads; ++h)
        for (std::int64_t i = 0; i < p.tokens; ++i) {
            const std::int64_t lo = p.low(i), hi = p.query_offset + i, keys = hi - lo + 1, kv_h = h / p.group() * D;
            const T *q = &in.q[static_cast<std::size_t>(i * in.q_stride + h * D)],
                    *dy = &in.dy[static_cast<std::size_t>(i * in.q_stride + h * D)];
            const auto k = [&](std::int64_t key) {
                return &in.kv[static_cast<std::size_t>(key * in.kv_stride + kv_h)];
            };
            const auto v = [&](std::int64_t key) { return k(key) + in.kv_width; };
            std::vector<double> P(static_cast<std::size_t>(keys));
            double max = -1e300, e = 0, sum = 0, largest = 0;
            for (std::int64_t j = 0; j < keys; ++j) {
                double s = 0, size = 0;
                for (std::int64_t d = 0; d < D; ++d)
                    s += f(q[d]) * f(k(lo + j)[d]), size += std::abs(f(q[d]) * f(k(lo + j)[d]));
                P[static_cast<std::size_t>(j)] = scale * s;
                max = std::max(max, scale * s), largest = std::max(largest, std::abs(scale * s));
                e = std::max(e, std::abs(scale) * static_cast<double>(D + 4) * u * size);
            }
            for (double& x : P) sum += x = std::exp(x - max);
            for (double& x : P) x /= sum;
            const double w = 2 * e + u * (4 * largest + static_cast<double>(keys + 8)), lse = max + std::log(sum);
            const double L = largest + std::log(static_cast<double>(keys)), merged = n * (8 + 2 * L) * u;
            const double shares = n * (2 * (w + 2 * u * L + merged) + (2 * L + 8) * u);
            expect_close<float>(p, "lse", out.lse[static_cast<std::size_t>(h * p.tokens + i)],
                                {lse, w + 2 * u * std::abs(lse) + merged, 0}, h, i);

            std::vector<Bounded> y(static_cast<std::size_t>(D)), dq(y);
            double delta = 0, delta_error = 0;
            for (std::int64_t d = 0; d < D; ++d) {
                Bounded& b = y[static_cast<std::size_t>(d)];
                for (std::int64_t j = 0; j < keys; ++j) b.add(P[static_cast<std::size_t>(j)] * f(v(lo + j)[d]), 0);
                b.error = b.size * (w + r + static_cast<double>(keys + 2) * u + shares + again);
                expect_close<T>(p, "y", f(out.y[static_cast<std::size_t>(i * out.q_stride + h * D + d)]), b, i,
                                h * D + d);
                delta += f(dy[d]) * b.value;
                delta_error += std::abs(f(dy[d])) * (b.error + (r + u) * (std::abs(b.value) + b.error) +
                                                     static_cast<double>(D + 3) * u * std::abs(b.value));
            }
            for (std::int64_t j = 0; j < keys; ++j) {
                double dp = 0, size = 0;
                for (std::int64_t d = 0; d < D; ++d)
                    dp += f(dy[d]) * f(v(lo + j)[d]), size += std::abs(f(dy[d]) * f(v(lo + j)[d]));
                const double prob = P[static_cast<std::size_t>(j)], ds = scale * prob * (dp - delta);
                const double prob_error = prob * (2 * w + 2 * u * std::abs(lse) + merged + 4 * u);
                const double ds_error = std::abs(scale) * (prob_error + 4 * u * prob) * (std::abs(dp) + std::abs(delta)) +
                                        std::abs(scale) * prob * (static_cast<double>(D + 3) * u * size + delta_error);
                for (std::int64_t d = 0; d < D; ++d) {
                    const std::size_t at = static_cast<std::size_t>((lo + j) * in.kv_width + kv_h + d);
                    dv[at].add(prob * f(dy[d]), (prob_error + r * prob) * std::abs(f(dy[d])));
                    dk[at].add(ds * f(q[d]), (ds_error + r * std::abs(ds)) * std::abs(f(q[d])));
                    dq[static_cast<std::size_t>(d)].add(ds * f(k(lo + j)[d]),
                                                        (ds_error + r * std::abs(ds)) * std::abs(f(k(lo + j)[d])));
                }
            }
            for (std::int64_t d = 0; d < D; ++d) {
                Bounded& b = dq[static_cast<std::size_t>(d)];
                b.error += b.size * (static_cast<double>(keys + 2) * u + again);
            }
            turn_back(dq.data(), angles(p.query_offset + i), p.rotary, rounded ? r : 0);
            for (std::int64_t d = 0; d < D; ++d) {
                const Bounded& b = dq[static_cast<std::size_t>(d)];
                expect_close<T>(p, "dq", f(out.dq[static_cast<std::size_t>(i * out.q_stride + 1 + h * D + d)]), b, i,
                                h * D + d);
            }
            if (::testing::Test::HasFatalFailure()) return;
        }
    for (auto* side : {&dk, &dv})
        for (Bounded& b : *side) b.error += b.size * (static_cast<double>(p.tokens * p.group() + 2) * u + again);
    for (std::int64_t head = 0; head < p.kv_tokens() * p.kv_heads; ++head)
        turn_back(&dk[static_cast<std::size_t>(head * D)], angles(head / p.kv_heads), p.rotary, rounded ? r : 0);
    for (std::int64_t key = 0; key < p.kv_tokens(); ++key)
        for (std::int64_t d = 0; d < in.kv_width; ++d)
            for (auto* side : {&dk, &dv}) {
                const Bounded& b = (*side)[static_cast<std::size_t>(key * in.kv_width + d)];
                expect_close<T>(p, side == &dk ? "dk" : "dv", side == &dk ? got.dk(key, d) : got.dv(key, d), b, key, d);
            }
}

}  // namespace keel::attention_test
