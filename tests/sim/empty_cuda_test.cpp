// Ops on no tokens: a launch of no blocks is an error on a GPU, so nothing may be launched, and what accumulates stays as it was.
#include <gtest/gtest.h>

#include <limits>

#include "kernels/adamw.h"
#include "kernels/attention.h"
#include "kernels/attention_merge.h"
#include "kernels/convert.h"
#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/exact_sum.h"
#include "kernels/head_norm.h"
#include "kernels/linear.h"
#include "kernels/reduce.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/split_norm.h"
#include "kernels/swiglu.h"
#include "tests/sim/gpu_tensor.h"

namespace keel {
namespace {

template <class T>
void no_tokens(std::unique_ptr<Stream> OneGpu::*stream = &OneGpu::stream) {
    for (const auto& got : on_gpus(
             [&](Gpu& gpu, Stream& s) -> std::vector<Values> {
                 constexpr std::int64_t d = 8;
                 GpuTensor<T> x(gpu, s, {0, d}), y(gpu, s, {0, d}), wide(gpu, s, {0, 2 * d}), w(gpu, s, {d, d}, Values(d * d, 1));
                 GpuTensor<T> bias(gpu, s, {d}, Values(d, 1));
                 GpuTensor<float> f(gpu, s, {0, d}), rstd(gpu, s, {0}), heads(gpu, s, {0, 2}), lse(gpu, s, {2, 0}), flat(gpu, s, {0});
                 GpuTensor<float> sums(gpu, s, {d}, Values(d, 3)), dw(gpu, s, {d, d}, Values(d * d, 3));
                 GpuTensor<float> table(gpu, s, {4, d}, Values(4 * d, 1));
                 GpuTensor<std::int32_t> ids(gpu, s, {0});
                 GpuTensor<std::int64_t> q(gpu, s, {0}), limbs(gpu, s, {3}, Values(3, 5)), count(gpu, s, {1}, Values(1, 9));
                 GpuTensor<double> sum(gpu, s, {1}, Values(1, 9));
                 GpuTensor<float> most(gpu, s, {1}, Values(1, 9));
                 GpuTensor<std::byte> scratch(gpu, s, {embedding_scratch_bytes(0)});
                 const View<T> flat_x = View<T>(x.view().data(), {0}), flat_y = View<T>(y.view().data(), {0});

                 adamw<T>(s, {.param = flat_x, .master = flat.view(), .m = flat.view(), .v = flat.view(), .grad = flat.read(), .lr = 1, .beta1 = 0,
                              .beta2 = 0, .eps = 1, .weight_decay = 0, .grad_scale = 1, .step = 1});
                 convert<float, T>(s, {.y = flat.view(), .x = flat_x});
                 add<T>(s, {.y = flat_y, .a = flat_x, .b = flat_x});
                 rmsnorm_forward<T>(s, {.y = y.view(), .rstd = rstd.view(), .x = x.read(), .gain = bias.read(), .eps = 1});
                 rmsnorm_backward<T>(s, {.dx = y.view(), .dgain = sums.view(), .scratch = scratch.view(), .dy = x.read(), .x = x.read(), .gain = bias.read(),
                                         .rstd = rstd.read()});
                 split_norm_squares<T>(s, {.sums = rstd.view(), .x = x.read()});
                 split_norm_forward<T>(s, {.y = y.view(), .rstd = rstd.view(), .x = x.read(), .gain = bias.read(), .width = d, .eps = 1});
                 split_norm_dots<T>(s, {.sums = rstd.view(), .dy = x.read(), .x = x.read(), .gain = bias.read(), .rstd = rstd.read()});
                 split_norm_backward<T>(s, {.dx = y.view(), .dgain = sums.view(), .scratch = scratch.view(), .dy = x.read(), .x = x.read(),
                                            .gain = bias.read(), .rstd = rstd.read(), .sums = rstd.read(), .width = d});
                 const View<const T> gain = View<const T>(bias.view().data(), {4});
                 head_norm_forward<T>(s, {.y = y.view(), .rstd = heads.view(), .x = x.read(), .gain = gain, .eps = 1});
                 head_norm_backward<T>(s, {.dx = y.view(), .dgain = View<float>(sums.view().data(), {4}), .scratch = scratch.view(), .dy = x.read(),
                                           .x = x.read(), .gain = gain, .rstd = heads.read()});
                 rope_forward<T>(s, {.x = x.view(), .table = table.read(), .positions = ids.read(), .head_dim = d});
                 swiglu_forward<T>(s, {.y = y.view(), .gate_up = wide.read()});
                 swiglu_backward<T>(s, {.dgate_up = wide.view(), .dy = y.read(), .gate_up = wide.read()});
                 embedding_forward<T>(s, {.y = y.view(), .ids = ids.read(), .w = w.read(), .vocab_begin = 0});
                 embedding_backward<T>(s, {.dw = dw.view(), .dy = y.read(), .ids = ids.read(), .vocab_begin = 0, .scratch = scratch.view()});
                 cross_entropy_stats(s, {.max = rstd.view(), .sum = flat.view(), .target = flat.view(), .logits = f.read(), .labels = ids.read(), .vocab_begin = 0});
                 cross_entropy_merge(s, {.sum = rstd.view(), .max = flat.read(), .common = flat.read()});
                 cross_entropy_loss(s, {.loss = rstd.view(), .labels = ids.read(), .max = flat.read(), .sum = flat.read(), .target = flat.read()});
                 cross_entropy_grad<T>(s, {.loss = rstd.view(), .dlogits = x.view(), .logits = f.read(), .labels = ids.read(), .max = flat.read(),
                                           .sum = flat.read(), .target = flat.read(), .vocab_begin = 0, .z_loss = 0});
                 linear_forward<T>(s, {.y = y.view(), .x = x.read(), .w = w.read(), .bias = bias.read()});
                 linear_dgrad<T>(s, {.dx = y.view(), .dy = x.read(), .w = w.read()});
                 GpuTensor<T> rows(gpu, s, {3, d}, Values(3 * d, 1)), none(gpu, s, {3, 0});
                 linear_wgrad<T>(s, {.dw = f.view(), .dy = none.read(), .x = rows.read()});  // of no outputs
                 bias_grad<T>(s, {.dbias = flat.view(), .dy = none.read()});  // of no outputs, too
                 bias_grad<T>(s, {.dbias = sums.view(), .dy = x.read()});
                 // No queries: three keys, whose gradients are zeros. Of heads of 4, and of 8, which tensor cores take.
                 GpuTensor<T> keys(gpu, s, {3, d}, Values(3 * d, 1)), dkeys(gpu, s, {3, d}), dvalues(gpu, s, {3, d});
                 std::vector<Values> gradients;
                 for (const std::int64_t head_dim : {4, 8}) {
                     const View<float> of_heads(lse.view().data(), {d / head_dim, 0});
                     dkeys.fill(Values(3 * d, 7)), dvalues.fill(Values(3 * d, 7));
                     attention_forward<T>(s, {.y = y.view(), .lse = of_heads, .q = x.read(), .k = keys.read(), .v = keys.read(), .lo = ids.read(),
                                              .head_dim = head_dim, .query_offset = 0, .scale = 1});
                     attention_backward<T>(s, {.dq = y.view(), .dk = dkeys.view(), .dv = dvalues.view(), .scratch = scratch.view(), .dy = x.read(),
                                               .y = x.read(), .lse = of_heads, .q = x.read(), .k = keys.read(), .v = keys.read(), .lo = ids.read(),
                                               .head_dim = head_dim, .query_offset = 0, .scale = 1});
                     gradients.push_back(dkeys.values()), gradients.push_back(dvalues.values());
                 }
                 // No keys: three queries, whose gradients are zeros.
                 GpuTensor<T> dq(gpu, s, {3, d}, Values(3 * d, 7));
                 GpuTensor<std::int32_t> lo(gpu, s, {3}, Values(3, 0));
                 GpuTensor<float> of_none(gpu, s, {1, 3}, Values(3, -std::numeric_limits<double>::infinity()));
                 attention_backward<T>(s, {.dq = dq.view(), .dk = x.view(), .dv = y.view(), .scratch = scratch.view(), .dy = keys.read(),
                                           .y = keys.read(), .lse = of_none.read(), .q = keys.read(), .k = x.read(), .v = x.read(), .lo = lo.read(),
                                           .head_dim = 8, .query_offset = 0, .scale = 1});
                 gradients.push_back(dq.values());
                 attention_merge<T>(s, {.sum = f.view(), .lse = lse.view(), .part = x.read(), .part_lse = lse.read()});
                 add_part<T>(s, {.sum = f.view(), .part = x.read()});
                 round_sum<T>(s, {.y = y.view(), .sum = f.read()});
                 exact_add(s, {.q = q.view(), .x = flat.read(), .scale = 0});
                 exact_read(s, {.y = flat.view(), .q = q.read(), .scale = 0});
                 exact_squares(s, {.limbs = limbs.view(), .x = flat.read(), .scale = 0});
                 max_abs(s, {.out = most.view(), .x = flat.read()});
                 sum_of_squares(s, {.out = sum.view(), .scratch = scratch.view(), .x = flat.read()});
                 count_nonfinite(s, {.out = count.view(), .scratch = scratch.view(), .x = flat.read()});
                 std::vector<Values> out{sums.values(), dw.values(), limbs.values(), most.values(), sum.values(), count.values()};
                 out.insert(out.end(), gradients.begin(), gradients.end());
                 return out;
             },
             stream)) {
        for (const double v : got[0]) EXPECT_EQ(v, 3);
        for (const double v : got[1]) EXPECT_EQ(v, 3);
        for (const double v : got[2]) EXPECT_EQ(v, 5);
        for (std::size_t i = 3; i < got.size(); ++i)  // written: the sum of nothing
            for (const double v : got[i]) EXPECT_EQ(v, 0) << "output " << i;
    }
}
TEST(EmptyCuda, NoTokensLaunchNothingAndChangeNoGradientInFloat) { no_tokens<float>(); }
TEST(EmptyCuda, NoTokensLaunchNothingAndChangeNoGradientInBf16) { no_tokens<bf16>(); }
TEST(EmptyCuda, NoTokensLaunchNothingWithKernelsForHopper) { no_tokens<bf16>(&OneGpu::hopper); }

}  // namespace
}  // namespace keel
