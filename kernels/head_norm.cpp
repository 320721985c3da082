#include "kernels/head_norm.h"

#include <algorithm>

#include "kernels/cuda_ops.h"
#include "kernels/norm_rows.h"

namespace keel {
namespace {

struct Sizes {
    std::int64_t tokens, heads, head_dim;
};

template <class T> Sizes sizes_of(const View<const T>& x, const View<const T>& gain) {
    if (gain.rank() != 1 || gain.dim(0) < 1)
        fail("head_norm: gain is ", gain.shape(), ", but must be [head_dim]");
    if (x.rank() != 2 || x.dim(1) % gain.dim(0) != 0)
        fail("head_norm: x is ", x.shape(), ", but must be [tokens, heads * head_dim] with head_dim ", gain.dim(0),
             " (the length of gain, --model.head_dim)");
    return {x.dim(0), x.dim(1) / gain.dim(0), gain.dim(0)};
}

template <class T> void check(const HeadNormForward<T>& a) {
    const Sizes n = sizes_of(a.x, a.gain);
    expect_shape("head_norm: y", a.y, {n.tokens, n.heads * n.head_dim});
    expect_shape("head_norm: rstd", a.rstd, {n.tokens, n.heads});
    expect_contiguous("head_norm: rstd", a.rstd);
}
template <class T> void check(const HeadNormBackward<T>& a) {
    const Sizes n = sizes_of(a.x, a.gain);
    expect_shape("head_norm: dx", a.dx, {n.tokens, n.heads * n.head_dim});
    expect_shape("head_norm: dy", a.dy, {n.tokens, n.heads * n.head_dim});
    expect_shape("head_norm: dgain", a.dgain, {n.head_dim});
    expect_shape("head_norm: rstd", a.rstd, {n.tokens, n.heads});
    expect_contiguous("head_norm: rstd", a.rstd);
    if (a.scratch.size() < head_norm_scratch_bytes(n.tokens, n.head_dim))
        fail("head_norm: scratch has ", a.scratch.size(), " bytes, but ", n.tokens, " tokens of head_dim ", n.head_dim,
             " need ", head_norm_scratch_bytes(n.tokens, n.head_dim),
             "; reserve head_norm_scratch_bytes(tokens, head_dim)");
}

template <class T> void forward_cpu(Stream& stream, const HeadNormForward<T>& a) {
    const Sizes n = sizes_of(a.x, a.gain);
    parallel_rows(stream, n.tokens, n.heads * n.head_dim, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t t = begin; t < end; ++t)
            for (std::int64_t h = 0; h < n.heads; ++h) {
                const T* x = a.x.row(t) + h * n.head_dim;
                const float rstd = norm::rstd_of(norm::sum_of_squares(x, n.head_dim), n.head_dim, a.eps);
                norm::scale_row(a.y.row(t) + h * n.head_dim, x, a.gain.data(), n.head_dim, rstd);
                a.rstd[t * n.heads + h] = rstd;
            }
    });
}

template <class T> void backward_cpu(Stream& stream, const HeadNormBackward<T>& a) {
    const Sizes n = sizes_of(a.x, a.gain);
    const TokenSlices slices(n.tokens);
    float* partials = reinterpret_cast<float*>(a.scratch.data());
    stream.parallel(slices.count(), [&](std::int64_t slice, int) {
        float* partial = partials + slice * n.head_dim;
        std::fill_n(partial, n.head_dim, 0.0f);
        for (std::int64_t t = slices.begin(slice); t < slices.end(slice); ++t)
            for (std::int64_t h = 0; h < n.heads; ++h) {
                const std::int64_t at = h * n.head_dim;
                norm::backward_row<T, false>(a.dx.row(t) + at, partial, a.dy.row(t) + at, a.x.row(t) + at,
                                             a.gain.data(), nullptr, n.head_dim, a.rstd[t * n.heads + h]);
            }
    });
    if (slices.count() > 0) norm::add_partials(stream, a.dgain.data(), partials, slices.count(), n.head_dim);
}

}  // namespace

std::int64_t head_norm_scratch_bytes(std::int64_t tokens, std::int64_t head_dim) {
    return TokenSlices(tokens).count() * head_dim * static_cast<std::int64_t>(sizeof(float));
}

template <class T> void head_norm_forward(Stream& stream, const HeadNormForward<T>& args) {
    check(args);
    if (run_on_device(stream, args)) return;
    forward_cpu(stream, args);
}
template <class T> void head_norm_backward(Stream& stream, const HeadNormBackward<T>& args) {
    check(args);
    if (run_on_device(stream, args)) return;
    backward_cpu(stream, args);
}

template void head_norm_forward<float>(Stream&, const HeadNormForward<float>&);
template void head_norm_forward<bf16>(Stream&, const HeadNormForward<bf16>&);
template void head_norm_forward<f16>(Stream&, const HeadNormForward<f16>&);
template void head_norm_backward<float>(Stream&, const HeadNormBackward<float>&);
template void head_norm_backward<bf16>(Stream&, const HeadNormBackward<bf16>&);
template void head_norm_backward<f16>(Stream&, const HeadNormBackward<f16>&);

}  // namespace keel
