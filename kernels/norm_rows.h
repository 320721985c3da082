// kernels/norm_rows.h: one row of RMSNorm, forward and backward. rmsnorm.cpp and head_norm.cpp cut their tensors into
// rows; the arithmetic of a row, and so its bits, is written once, here.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/simd.h"
#include "kernels/tiles.h"

namespace keel::norm {

inline float rstd_of(float sum_of_squares, std::int64_t n, float eps) {
    return 1.0f / std::sqrt(sum_of_squares / static_cast<float>(n) + eps);
}

template <class T> inline float sum_of_squares(const T* x, std::int64_t n) {
    simd::Float sum[4] = {};
    simd::sweep<4>(n, [&](auto at, auto lane) {
        const simd::Float v = at.load(x);
        sum[lane] += v * v;
    });
    return simd::sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

template <class T> inline void scale_row(T* y, const T* x, const T* gain, std::int64_t n, float rstd) {
    simd::sweep(n, [&](auto at) { at.store(y, simd::rounded<T>(at.load(x) * rstd) * at.load(gain)); });
}

// The sum of gain * dy * x. Rows usually lie one after another: the fourth from here is asked for.
template <class T>
inline float dot_row(const T* dy, const T* x, const T* gain, std::int64_t n) {
    simd::Float dot[4] = {};
    simd::sweep<4>(n, [&](auto at, auto lane) {
        at.ask(dy + 4 * n), at.ask(x + 4 * n);
        const simd::Float dn = at.load(dy) * at.load(gain);
        dot[lane] += dn * at.load(x);
    });
    return simd::sum((dot[0] + dot[1]) + (dot[2] + dot[3]));
}

// dx = rstd * (gain*dy - x*rstd * mean) (+ dresidual), and dgain += dy * x * rstd; mean is that of gain*dy*x*rstd. dx
// may be dy or dresidual: every element is read before it is written.
template <class T, bool residual>
inline void gradient_row(T* dx, float* dgain, const T* dy, const T* x, const T* gain, const T* dresidual,
                         std::int64_t n, float rstd, float mean) {
    simd::sweep(n, [&](auto at) {
        if constexpr (residual) at.ask(dresidual + 4 * n);
        const simd::Float d = at.load(dy), normed = at.load(x) * rstd;
        at.store(dgain, at.load(dgain) + d * normed);
        simd::Float v = (d * at.load(gain) - normed * mean) * rstd;
        if constexpr (residual) v += at.load(dresidual);
        at.store(dx, v);
    });
}

template <class T, bool residual>
inline void backward_row(T* dx, float* dgain, const T* dy, const T* x, const T* gain, const T* dresidual,
                         std::int64_t n, float rstd) {
    const float mean = dot_row(dy, x, gain, n) * rstd / static_cast<float>(n);
    gradient_row<T, residual>(dx, dgain, dy, x, gain, dresidual, n, rstd, mean);
}

// dgain[i] += sum over slices of partial[slice, i], in the order of the slices.
inline void add_partials(Stream& stream, float* dgain, const float* partial, std::int64_t slices, std::int64_t n) {
    constexpr std::int64_t columns = 256;
    stream.parallel(ceil_div(n, columns), [&](std::int64_t tile, int) {
        const std::int64_t begin = tile * columns;
        simd::sweep(std::min(columns, n - begin), [&](auto at) {
            simd::Float sum = at.load(partial + begin);
            for (std::int64_t s = 1; s < slices; ++s) sum += at.load(partial + s * n + begin);
            at.store(dgain + begin, at.load(dgain + begin) + sum);
        });
    });
}

}  // namespace keel::norm
