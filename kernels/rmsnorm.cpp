#include "kernels/rmsnorm.h"

#include <algorithm>

#include "kernels/cuda_ops.h"
#include "kernels/norm_rows.h"

namespace keel {
namespace {

// What the three ops share: a contiguous [tokens, hidden] tensor for each name.
template <class T> void check_rows(const char* what, const View<T>& v, std::int64_t tokens, std::int64_t hidden) {
    expect_shape(what, v, {tokens, hidden});
    expect_contiguous(what, v);
}
template <class T> void check_gain(const View<T>& gain, std::int64_t hidden) {
    if (gain.rank() != 1 || gain.dim(0) != hidden)
        fail("rmsnorm: gain is ", gain.shape(), ", but x has rows of ", hidden,
             "; pass this layer's own gain (both lengths are --model.hidden)");
}
template <class T> void check_x(const View<T>& x) {
    if (x.rank() != 2 || x.dim(1) < 1) fail("rmsnorm: x is ", x.shape(), ", but must be [tokens, hidden]");
}

template <class T> void check(const RmsnormForward<T>& a) {
    check_x(a.x);
    const std::int64_t tokens = a.x.dim(0), hidden = a.x.dim(1);
    check_rows("rmsnorm: x", a.x, tokens, hidden);
    check_rows("rmsnorm: y", a.y, tokens, hidden);
    expect_shape("rmsnorm: rstd", a.rstd, {tokens});
    check_gain(a.gain, hidden);
}
template <class T> void check(const AddRmsnormForward<T>& a) {
    check_x(a.x);
    const std::int64_t tokens = a.x.dim(0), hidden = a.x.dim(1);
    check_rows("rmsnorm: x", a.x, tokens, hidden);
    check_rows("rmsnorm: residual", a.residual, tokens, hidden);
    check_rows("rmsnorm: sum", a.sum, tokens, hidden);
    check_rows("rmsnorm: y", a.y, tokens, hidden);
    expect_shape("rmsnorm: rstd", a.rstd, {tokens});
    check_gain(a.gain, hidden);
}
template <class T> void check(const RmsnormBackward<T>& a) {
    check_x(a.x);
    const std::int64_t tokens = a.x.dim(0), hidden = a.x.dim(1);
    check_rows("rmsnorm: x", a.x, tokens, hidden);
    check_rows("rmsnorm: dy", a.dy, tokens, hidden);
    check_rows("rmsnorm: dx", a.dx, tokens, hidden);
    if (a.dresidual) check_rows("rmsnorm: dresidual", *a.dresidual, tokens, hidden);
    expect_shape("rmsnorm: rstd", a.rstd, {tokens});
    expect_shape("rmsnorm: dgain", a.dgain, {hidden});
    check_gain(a.gain, hidden);
    if (a.scratch.size() < rmsnorm_scratch_bytes(tokens, hidden))
        fail("rmsnorm: scratch has ", a.scratch.size(), " bytes, but ", tokens, " tokens of ", hidden, " need ",
             rmsnorm_scratch_bytes(tokens, hidden), "; reserve rmsnorm_scratch_bytes(tokens, hidden)");
}

template <class T> void forward_cpu(Stream& stream, const RmsnormForward<T>& a) {
    const std::int64_t hidden = a.x.dim(1);
    parallel_rows(stream, a.x.dim(0), hidden, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t t = begin; t < end; ++t) {
            const float rstd = norm::rstd_of(norm::sum_of_squares(a.x.row(t), hidden), hidden, a.eps);
            norm::scale_row(a.y.row(t), a.x.row(t), a.gain.data(), hidden, rstd);
            a.rstd[t] = rstd;
        }
    });
}

template <class T> void add_forward_cpu(Stream& stream, const AddRmsnormForward<T>& a) {
    const std::int64_t hidden = a.x.dim(1);
    parallel_rows(stream, a.x.dim(0), hidden, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t t = begin; t < end; ++t) {
            const T* x = a.x.row(t);
            const T* residual = a.residual.row(t);
            T *sum = a.sum.row(t), *y = a.y.row(t);
            // The norm is that of the sum as it is stored, so that backward and a recomputation see the same numbers.
            simd::Float squares[4] = {};
            simd::sweep<4>(hidden, [&](auto at, auto lane) {
                at.ask(x + 4 * hidden), at.ask(residual + 4 * hidden);
                __builtin_prefetch(y + 4 * hidden + at.at, 1, 2);
                const simd::Float v = simd::rounded<T>(at.load(x) + at.load(residual));
                at.store(sum, v);
                squares[lane] += v * v;
            });
            const float rstd = norm::rstd_of(simd::sum((squares[0] + squares[1]) + (squares[2] + squares[3])), hidden,
                                             a.eps);
            norm::scale_row<T>(y, sum, a.gain.data(), hidden, rstd);
            a.rstd[t] = rstd;
        }
    });
}

template <class T, bool residual> void backward_cpu(Stream& stream, const RmsnormBackward<T>& a) {
    const std::int64_t hidden = a.x.dim(1);
    const TokenSlices slices(a.x.dim(0));
    float* partials = reinterpret_cast<float*>(a.scratch.data());
    stream.parallel(slices.count(), [&](std::int64_t slice, int) {
        float* partial = partials + slice * hidden;
        std::fill_n(partial, hidden, 0.0f);
        for (std::int64_t t = slices.begin(slice); t < slices.end(slice); ++t)
            norm::backward_row<T, residual>(a.dx.row(t), partial, a.dy.row(t), a.x.row(t), a.gain.data(),
                                            residual ? a.dresidual->row(t) : nullptr, hidden, a.rstd[t]);
    });
    if (slices.count() > 0) norm::add_partials(stream, a.dgain.data(), partials, slices.count(), hidden);
}

}  // namespace

std::int64_t rmsnorm_scratch_bytes(std::int64_t tokens, std::int64_t hidden) {
    return TokenSlices(tokens).count() * hidden * static_cast<std::int64_t>(sizeof(float));
}

template <class T> void rmsnorm_forward(Stream& stream, const RmsnormForward<T>& args) {
    check(args);
    if (run_on_device(stream, args)) return;
    forward_cpu(stream, args);
}
template <class T> void add_rmsnorm_forward(Stream& stream, const AddRmsnormForward<T>& args) {
    check(args);
    if (run_on_device(stream, args)) return;
    add_forward_cpu(stream, args);
}
template <class T> void rmsnorm_backward(Stream& stream, const RmsnormBackward<T>& args) {
    check(args);
    if (run_on_device(stream, args)) return;
    if (args.dresidual) backward_cpu<T, true>(stream, args);
    else backward_cpu<T, false>(stream, args);
}

template void rmsnorm_forward<float>(Stream&, const RmsnormForward<float>&);
template void rmsnorm_forward<bf16>(Stream&, const RmsnormForward<bf16>&);
template void rmsnorm_forward<f16>(Stream&, const RmsnormForward<f16>&);
template void add_rmsnorm_forward<float>(Stream&, const AddRmsnormForward<float>&);
template void add_rmsnorm_forward<bf16>(Stream&, const AddRmsnormForward<bf16>&);
template void add_rmsnorm_forward<f16>(Stream&, const AddRmsnormForward<f16>&);
template void rmsnorm_backward<float>(Stream&, const RmsnormBackward<float>&);
template void rmsnorm_backward<bf16>(Stream&, const RmsnormBackward<bf16>&);
template void rmsnorm_backward<f16>(Stream&, const RmsnormBackward<f16>&);

}  // namespace keel
