#include "kernels/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/cuda_ops.h"
#include "kernels/rope_rows.h"
#include "kernels/tiles.h"

namespace keel {
namespace {

void check(const RopeConfig& c, std::int64_t rotary_dim) {
    if (rotary_dim < 2 || rotary_dim % 2 != 0)
        fail("rope: rotary_dim is ", rotary_dim, ", but pairs need an even number, at least 2");
    if (!(c.base > 1.0)) fail("rope: base is ", c.base, ", but must be above 1 (10000 is usual)");
    if (c.scaling == RopeScaling::none) return;
    if (!(c.factor > 0.0)) fail("rope: scaling factor is ", c.factor, ", but must be positive");
    if (c.scaling == RopeScaling::linear) return;
    if (!(c.original_max_position > 0.0))
        fail("rope: original_max_position is ", c.original_max_position,
             ", but llama3, yarn and longrope scaling need the context length before scaling");
    if (c.scaling == RopeScaling::llama3 && !(c.high_freq_factor > c.low_freq_factor && c.low_freq_factor > 0.0))
        fail("rope: low_freq_factor ", c.low_freq_factor, " and high_freq_factor ", c.high_freq_factor,
             " must be positive and rising");
    if (c.scaling == RopeScaling::yarn && !(c.beta_fast > c.beta_slow && c.beta_slow > 0.0))
        fail("rope: beta_fast ", c.beta_fast, " and beta_slow ", c.beta_slow, " must be positive and falling");
    if (c.scaling == RopeScaling::longrope && static_cast<std::int64_t>(c.divisors.size()) != rotary_dim / 2)
        fail("rope: longrope has ", c.divisors.size(), " divisors, but rotary_dim ", rotary_dim, " makes ",
             rotary_dim / 2, " pairs");
}

constexpr rope::Names names{"rope", "rope: table", "rope: positions"};

template <class T> RopeAngles angles_of(const Rope<T>& a) { return {a.table, a.positions}; }

template <class T> void check(const Rope<T>& a) {
    if (a.head_dim < 1 || a.x.rank() != 2 || a.x.dim(1) % a.head_dim != 0)
        fail("rope: x is ", a.x.shape(), ", but must be [tokens, heads * head_dim] with head_dim ", a.head_dim);
    rope::check_angles(names, angles_of(a), a.x.dim(0), a.head_dim);
}

// Frequency of pair i before any scaling.
double plain_frequency(const RopeConfig& c, std::int64_t rotary_dim, std::int64_t i) {
    return std::pow(c.base, -2.0 * static_cast<double>(i) / static_cast<double>(rotary_dim));
}

double llama3_frequency(const RopeConfig& c, double theta) {
    const double wavelength = 2.0 * std::numbers::pi / theta, context = c.original_max_position;
    if (wavelength < context / c.high_freq_factor) return theta;
    if (wavelength > context / c.low_freq_factor) return theta / c.factor;
    const double keep = (context / wavelength - c.low_freq_factor) / (c.high_freq_factor - c.low_freq_factor);
    return (1.0 - keep) * theta / c.factor + keep * theta;
}

double yarn_frequency(const RopeConfig& c, std::int64_t rotary_dim, std::int64_t i, double theta) {
    const double r = static_cast<double>(rotary_dim);
    // The pair, as a real number, that turns `turns` times over the original context.
    const auto pair = [&](double turns) {
        return r * std::log(c.original_max_position / (2.0 * std::numbers::pi * turns)) / (2.0 * std::log(c.base));
    };
    const double low = std::max(std::floor(pair(c.beta_fast)), 0.0);
    const double high = std::max(std::min(std::ceil(pair(c.beta_slow)), r - 1.0), low + 1e-3);  // never a zero width
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    return theta * (1.0 - ramp) + theta / c.factor * ramp;
}

// sign is 1 forward and -1 backward: the transpose of a rotation is the rotation by the opposite angle.
template <class T> void rotate_cpu(Stream& stream, const Rope<T>& a, float sign) {
    const std::int64_t heads = a.x.dim(1) / a.head_dim, half = a.table.dim(1) / 2, ahead = 2 * a.x.stride();
    parallel_rows(stream, a.x.dim(0), a.x.dim(1), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t t = begin; t < end; ++t) {
            const float* cos = a.table.row(a.positions[t]);
            const float* sin = cos + half;
            T* row = a.x.row(t);
            simd::sweep(half, [&](auto at) {
                const simd::Float c = at.load(cos), s = at.load(sin) * sign;
                for (std::int64_t h = 0; h < heads; ++h) {
                    T* low = row + h * a.head_dim;
                    T* high = low + half;
                    at.ask(low + ahead), at.ask(high + ahead);
                    simd::Float u = at.load(low), v = at.load(high);
                    rope::turn(u, v, c, s);
                    at.store(low, u);
                    at.store(high, v);
                }
            });
        }
    });
}

}  // namespace

void rope::check_angles(const Names& name, const RopeAngles& a, std::int64_t rows, std::int64_t head_dim) {
    if (a.table.rank() != 2 || a.table.dim(1) % 2 != 0 || a.table.dim(1) > head_dim)
        fail(name.table, " is ", a.table.shape(), ", but must be [positions, rotary_dim], rotary_dim even and at most ",
             "head_dim ", head_dim);
    expect_shape(name.positions, a.positions, {rows});
    expect_contiguous(name.table, a.table);
}
void rope::check_positions(const Names& name, const RopeAngles& a) {
    for (std::int64_t t = 0; t < a.positions.dim(0); ++t)
        if (a.positions[t] < 0 || a.positions[t] >= a.table.dim(0))
            fail(name.what, ": token ", t, " has position ", a.positions[t], ", but the table holds positions 0…",
                 a.table.dim(0) - 1, "; make the table as long as the longest sequence");
}

double rope_frequency(const RopeConfig& config, std::int64_t rotary_dim, std::int64_t i) {
    check(config, rotary_dim);
    const double theta = plain_frequency(config, rotary_dim, i);
    switch (config.scaling) {
        case RopeScaling::none: return theta;
        case RopeScaling::linear: return theta / config.factor;
        case RopeScaling::llama3: return llama3_frequency(config, theta);
        case RopeScaling::yarn: return yarn_frequency(config, rotary_dim, i, theta);
        case RopeScaling::longrope:
            return theta / config.divisors[static_cast<std::size_t>(i)];
    }
    fail("rope: scaling ", static_cast<int>(config.scaling), " is not one of none, linear, llama3, yarn, longrope");
}

double rope_attention_factor(const RopeConfig& config) {
    if (config.scaling != RopeScaling::yarn && config.scaling != RopeScaling::longrope) return 1.0;
    if (config.attention_factor > 0.0) return config.attention_factor;
    if (config.factor <= 1.0) return 1.0;
    if (config.scaling == RopeScaling::yarn) return 0.1 * std::log(config.factor) + 1.0;
    return std::sqrt(1.0 + std::log(config.factor) / std::log(config.original_max_position));
}

void rope_table(const RopeConfig& config, View<float> table) {
    if (table.rank() != 2) fail("rope: table is ", table.shape(), ", but must be [positions, rotary_dim]");
    const std::int64_t half = table.dim(1) / 2;
    check(config, table.dim(1));
    const double scale = rope_attention_factor(config);
    for (std::int64_t i = 0; i < half; ++i) {
        const double frequency = rope_frequency(config, table.dim(1), i);
        for (std::int64_t p = 0; p < table.dim(0); ++p) {
            const double angle = static_cast<double>(p) * frequency;
            table.row(p)[i] = static_cast<float>(scale * std::cos(angle));
            table.row(p)[half + i] = static_cast<float>(scale * std::sin(angle));
        }
    }
}

template <class T> void rope_forward(Stream& stream, const Rope<T>& args) {
    check(args);
    if (run_on_device(stream, RopeTurn<T>{args, 1.0f})) return;
    rope::check_positions(names, angles_of(args));
    rotate_cpu(stream, args, 1.0f);
}
template <class T> void rope_backward(Stream& stream, const Rope<T>& args) {
    check(args);
    if (run_on_device(stream, RopeTurn<T>{args, -1.0f})) return;
    rope::check_positions(names, angles_of(args));
    rotate_cpu(stream, args, -1.0f);
}

template void rope_forward<float>(Stream&, const Rope<float>&);
template void rope_forward<bf16>(Stream&, const Rope<bf16>&);
template void rope_forward<f16>(Stream&, const Rope<f16>&);
template void rope_backward<float>(Stream&, const Rope<float>&);
template void rope_backward<bf16>(Stream&, const Rope<bf16>&);
template void rope_backward<f16>(Stream&, const Rope<f16>&);

}  // namespace keel
