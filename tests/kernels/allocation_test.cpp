// No op allocates: every allocation of the process, on every thread, is counted here.
#include <gtest/gtest.h>

#include "kernels/adamw.h"
#include "kernels/convert.h"
#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/head_norm.h"
#include "kernels/reduce.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/swiglu.h"
#include "tests/count_allocations.h"
#include "tests/kernels/tensor.h"

namespace keel {
namespace {

template <class T> void every_op(Stream& s) {
    const std::int64_t tokens = 300, hidden = 64, vocab = 500;
    Tensor<T> x(random_values<T>("x", tokens * hidden), tokens, hidden), y(tokens, hidden), dx(tokens, hidden),
        gain(hidden), half(tokens, hidden / 2), w(vocab, hidden), dlogits(tokens, vocab);
    Tensor<float> rstd(tokens, 1), flat_rstd(tokens), dgain(hidden), dw(vocab, hidden), logits(tokens, vocab),
        a(tokens), b(tokens), c(tokens), table(tokens, hidden), master(vocab), m(vocab), v(vocab), grad(vocab);
    Tensor<T> param(vocab);
    Tensor<std::int32_t> ids(tokens);
    Tensor<double> total(1);
    Tensor<std::int64_t> count(1);
    std::uint64_t digest = 0;
    for (Tensor<T>* t : {&y, &dx, &gain, &half, &w, &dlogits, &param}) t->fill(.5);
    for (Tensor<float>* t : {&rstd, &flat_rstd, &dgain, &dw, &logits, &a, &b, &c, &table, &master, &m, &v, &grad})
        t->fill(.5);
    ids.fill(3);
    Scratch scratch(rmsnorm_scratch_bytes(tokens, hidden) + reduce_scratch_bytes(tokens * vocab * 4));
    View<const float> all = logits.read();
    const std::int64_t before = allocations();
    rmsnorm_forward<T>(s, {.y = y.view(), .rstd = flat_rstd.view(), .x = x.read(), .gain = gain.read(), .eps = 1e-5f});
    add_rmsnorm_forward<T>(s, {.sum = dx.view(),
                               .y = y.view(),
                               .rstd = flat_rstd.view(),
                               .x = x.read(),
                               .residual = x.read(),
                               .gain = gain.read(),
                               .eps = 1e-5f});
    rmsnorm_backward<T>(s, {.dx = dx.view(),
                            .dgain = dgain.view(),
                            .scratch = scratch.view(),
                            .dy = y.read(),
                            .x = x.read(),
                            .gain = gain.read(),
                            .rstd = flat_rstd.read(),
                            .dresidual = y.read()});
    head_norm_forward<T>(s, {.y = y.view(), .rstd = rstd.view(), .x = x.read(), .gain = gain.read(), .eps = 1e-5f});
    head_norm_backward<T>(s, {.dx = dx.view(),
                              .dgain = dgain.view(),
                              .scratch = scratch.view(),
                              .dy = y.read(),
                              .x = x.read(),
                              .gain = gain.read(),
                              .rstd = rstd.read()});
    rope_forward<T>(s, {.x = y.view(), .table = table.read(), .positions = ids.read(), .head_dim = hidden});
    rope_backward<T>(s, {.x = y.view(), .table = table.read(), .positions = ids.read(), .head_dim = hidden});
    swiglu_forward<T>(s, {.y = half.view(), .gate_up = x.read()});
    swiglu_backward<T>(s, {.dgate_up = dx.view(), .dy = half.read(), .gate_up = x.read()});
    embedding_forward<T>(s, {.y = y.view(), .ids = ids.read(), .w = w.read(), .vocab_begin = 0});
    embedding_backward<T>(s, {.dw = dw.view(), .dy = y.read(), .ids = ids.read(), .vocab_begin = 0});
    cross_entropy_stats(
        s,
        {.max = a.view(), .sum = b.view(), .target = c.view(), .logits = all, .labels = ids.read(), .vocab_begin = 0});
    cross_entropy_merge(s, {.sum = b.view(), .max = a.read(), .common = a.read()});
    cross_entropy_loss(
        s, {.loss = flat_rstd.view(), .labels = ids.read(), .max = a.read(), .sum = b.read(), .target = c.read()});
    cross_entropy_grad<T>(s, {.loss = flat_rstd.view(),
                              .dlogits = dlogits.view(),
                              .logits = all,
                              .labels = ids.read(),
                              .max = a.read(),
                              .sum = b.read(),
                              .target = c.read(),
                              .vocab_begin = 0,
                              .z_loss = 0});
    adamw<T>(s, {.param = param.view(),
                 .master = master.view(),
                 .m = m.view(),
                 .v = v.view(),
                 .grad = grad.read(),
                 .lr = .1f,
                 .beta1 = .9f,
                 .beta2 = .95f,
                 .eps = 1e-8f,
                 .weight_decay = .1f,
                 .grad_scale = 1,
                 .step = 1});
    convert<T, float>(s, {.y = param.view(), .x = master.read()});
    add<T>(s, {.y = y.view(), .a = x.read(), .b = x.read()});
    const View<const float> flat = all.contiguous() ? all.reshape({tokens * vocab}) : all;
    sum_of_squares(s, {.out = total.view(), .scratch = scratch.view(), .x = flat});
    sum(s, {.out = total.view(), .scratch = scratch.view(), .x = flat});
    count_nonfinite(s, {.out = count.view(), .scratch = scratch.view(), .x = flat});
    hash(s, {.out = View<std::uint64_t>(&digest, {1}),
             .scratch = scratch.view(),
             .x = View<const std::byte>(reinterpret_cast<const std::byte*>(flat.data()), {flat.bytes()})});
    EXPECT_EQ(allocations() - before, 0);
    EXPECT_TRUE(scratch.untouched());
}

TEST(Ops, AllocateNothing) {
    const std::int64_t before = allocations();
    { const std::vector<int> counted(3); }
    EXPECT_GT(allocations(), before);  // the counter counts
    every_op<float>(stream_of(2));
    every_op<bf16>(stream_of(2));
}

}  // namespace
}  // namespace keel
