#include "kernels/split_norm.h"

#include <algorithm>

#include "kernels/cuda_ops.h"
#include "kernels/norm_rows.h"

namespace keel {
namespace {

// Forward calls them x and rstd; whatever else there is has their shapes.
template <class T>
void check_rows(const char* name, const View<const T>& x, const View<const float>& per_row) {
    if (x.rank() != 2) fail("split_norm: x is ", x.shape(), ", but must be [tokens, columns]");
    expect_shape(name, per_row, {x.dim(0)});
    expect_contiguous(name, per_row);
}
template <class T>
void check_gain(const View<const T>& x, const View<const T>& gain, std::int64_t width) {
    expect_shape("split_norm: gain", gain, {x.dim(1)});
    if (width < x.dim(1)) fail("split_norm: the whole row has ", width, " columns, but this part of it has ", x.dim(1));
}
template <class T>
void check(const SplitNormSquares<T>& a) {
    check_rows("split_norm: sums", a.x, View<const float>(a.sums));
}
template <class T>
void check(const SplitNormForward<T>& a) {
    check_rows("split_norm: rstd", a.x, View<const float>(a.rstd));
    check_gain(a.x, a.gain, a.width);
    expect_shape("split_norm: y", a.y, {a.x.dim(0), a.x.dim(1)});
}
template <class T>
void check(const SplitNormDots<T>& a) {
    check_rows("split_norm: sums", a.x, View<const float>(a.sums));
    check_rows("split_norm: rstd", a.x, a.rstd);
    check_gain(a.x, a.gain, a.x.dim(1));
    expect_shape("split_norm: dy", a.dy, {a.x.dim(0), a.x.dim(1)});
}
template <class T>
void check(const SplitNormBackward<T>& a) {
    check_rows("split_norm: sums", a.x, a.sums);
    check_rows("split_norm: rstd", a.x, a.rstd);
    check_gain(a.x, a.gain, a.width);
    expect_shape("split_norm: dx", a.dx, {a.x.dim(0), a.x.dim(1)});
    expect_shape("split_norm: dy", a.dy, {a.x.dim(0), a.x.dim(1)});
    expect_shape("split_norm: dgain", a.dgain, {a.x.dim(1)});
    if (a.scratch.size() < split_norm_scratch_bytes(a.x.dim(0), a.x.dim(1)))
        fail("split_norm: scratch has ", a.scratch.size(), " bytes, but ", a.x.dim(0), " tokens of ", a.x.dim(1),
             " columns need ", split_norm_scratch_bytes(a.x.dim(0), a.x.dim(1)),
             "; reserve split_norm_scratch_bytes(tokens, columns)");
}

template <class T, class Row>
void each_row(Stream& stream, const View<const T>& x, Row row) {
    parallel_rows(stream, x.dim(0), x.dim(1), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t t = begin; t < end; ++t) row(t);
    });
}

template <class T>
void run_cpu(Stream& stream, const SplitNormSquares<T>& a) {
    each_row<T>(stream, a.x, [&](std::int64_t t) { a.sums[t] = norm::sum_of_squares(a.x.row(t), a.x.dim(1)); });
}
template <class T>
void run_cpu(Stream& stream, const SplitNormForward<T>& a) {
    each_row<T>(stream, a.x, [&](std::int64_t t) {
        a.rstd[t] = norm::rstd_of(a.rstd[t], a.width, a.eps);
        norm::scale_row(a.y.row(t), a.x.row(t), a.gain.data(), a.x.dim(1), a.rstd[t]);
    });
}
template <class T>
void run_cpu(Stream& stream, const SplitNormDots<T>& a) {
    each_row<T>(stream, a.x, [&](std::int64_t t) {
        a.sums[t] = norm::dot_row(a.dy.row(t), a.x.row(t), a.gain.data(), a.x.dim(1)) * a.rstd[t];
    });
}
template <class T>
void run_cpu(Stream& stream, const SplitNormBackward<T>& a) {
    const std::int64_t columns = a.x.dim(1);
    const TokenSlices slices(a.x.dim(0));
    float* partials = reinterpret_cast<float*>(a.scratch.data());
    stream.parallel(slices.count(), [&](std::int64_t slice, int) {
        float* partial = partials + slice * columns;
        std::fill_n(partial, columns, 0.0f);
        for (std::int64_t t = slices.begin(slice); t < slices.end(slice); ++t)
            norm::gradient_row<T, false>(a.dx.row(t), partial, a.dy.row(t), a.x.row(t), a.gain.data(), nullptr, columns,
                                         a.rstd[t], a.sums[t] / static_cast<float>(a.width));
    });
    if (slices.count() > 0) norm::add_partials(stream, a.dgain.data(), partials, slices.count(), columns);
}

template <class Args>
void run(Stream& stream, const Args& args) {
    check(args);
    if (run_on_device(stream, args)) return;
    run_cpu(stream, args);
}

}  // namespace

std::int64_t split_norm_scratch_bytes(std::int64_t tokens, std::int64_t columns) {
    return TokenSlices(tokens).count() * columns * static_cast<std::int64_t>(sizeof(float));
}

template <class T>
void split_norm_squares(Stream& stream, const SplitNormSquares<T>& args) {
    run(stream, args);
}
template <class T>
void split_norm_forward(Stream& stream, const SplitNormForward<T>& args) {
    run(stream, args);
}
template <class T>
void split_norm_dots(Stream& stream, const SplitNormDots<T>& args) {
    run(stream, args);
}
template <class T>
void split_norm_backward(Stream& stream, const SplitNormBackward<T>& args) {
    run(stream, args);
}

#define KEEL_INSTANTIATE(T)                                                   \
    template void split_norm_squares<T>(Stream&, const SplitNormSquares<T>&); \
    template void split_norm_forward<T>(Stream&, const SplitNormForward<T>&); \
    template void split_norm_dots<T>(Stream&, const SplitNormDots<T>&);       \
    template void split_norm_backward<T>(Stream&, const SplitNormBackward<T>&);
KEEL_INSTANTIATE(float)
KEEL_INSTANTIATE(bf16)
KEEL_INSTANTIATE(f16)
#undef KEEL_INSTANTIATE

}  // namespace keel
