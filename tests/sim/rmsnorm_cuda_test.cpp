// The CUDA bodies of rmsnorm against the double reference, swept over schedules.
#include <gtest/gtest.h>

#include "kernels/rmsnorm.h"
#include "tests/kernels/reference.h"
#include "tests/sim/gpu_tensor.h"

namespace keel {
namespace {

constexpr float eps = 1e-5f;
constexpr int steps = 8;  // the tree's own sums, the square root, a reciprocal and two products

template <class T>
void forward_matches() {
    struct {
        std::int64_t tokens, hidden;
    } const shapes[] = {{0, 8},   {1, 1},    {3, 8},     {7, 31},   {2, 288},
                        {5, 513}, {2, 4104}, {1, 17000}, {1030, 65}};  // the last: more rows than blocks
    for (const auto [tokens, hidden] : shapes) {
        SCOPED_TRACE(testing::Message() << tokens << " x " << hidden);
        const Values x = random_values<T>("x", tokens * hidden), gain = random_values<T>("gain", hidden, 0.3, 1);
        const auto want = ref::rmsnorm<double, double>(x, gain, eps);
        const auto naive = ref::rmsnorm<float, T>(ref::cast<float>(x), ref::cast<float>(gain), eps);
        const bool big = tokens * hidden > 5000;
        for (const auto& got : on_gpus(
                 [&](Gpu&gpu, Stream&stream) -> std::vector<Values> {
                     GpuTensor<T> in(gpu, stream, {tokens, hidden}, x), g(gpu, stream, {hidden}, gain);
                     GpuTensor<T> y(gpu, stream, {tokens, hidden});
                     GpuTensor<float> rstd(gpu, stream, {tokens});
                     rmsnorm_forward<T>(
                         stream, {.y = y.view(), .rstd = rstd.view(), .x = in.read(), .gain = g.read(), .eps = eps});
                     return {y.values(), rstd.values()};
                 },
                 {.reach = big ? sim::SweepOptions::Reach::each_order_once : sim::SweepOptions::Reach::all_24})) {
            expect_close<T>("y", got[0], want.y, widen(naive.y), steps);
            expect_close<float>("rstd", got[1], want.rstd, widen(naive.rstd), steps);
        }
    }
}
TEST(RmsnormCuda, ForwardMatchesTheReferenceInFloat) { forward_matches<float>(); }
TEST(RmsnormCuda, ForwardMatchesTheReferenceInBf16) { forward_matches<bf16>(); }

// The fused form must be the two ops one after the other, bit for bit, also when the sum overwrites either operand.
template <class T>
void fused_equals_apart() {
    struct {
        std::int64_t tokens, hidden;
    } const shapes[] = {{0, 8}, {3, 8}, {7, 31}, {2, 520}};
    for (const auto [tokens, hidden] : shapes) {
        SCOPED_TRACE(testing::Message() << tokens << " x " << hidden);
        const Values x = random_values<T>("x", tokens * hidden), r = random_values<T>("residual", tokens * hidden);
        const Values gain = random_values<T>("gain", hidden, 0.3, 1);
        Values rounded(x.size());
        for (std::size_t i = 0; i < x.size(); ++i)
            rounded[i] = static_cast<double>(static_cast<float>(T(static_cast<float>(x[i] + r[i]))));
        for (const int where : {0, 1, 2})
            for (const auto& got : on_gpus([&](Gpu&gpu, Stream&stream) -> std::vector<Values> {
                     GpuTensor<T> in(gpu, stream, {tokens, hidden}, x), res(gpu, stream, {tokens, hidden}, r);
                     GpuTensor<T> g(gpu, stream, {hidden}, gain), apart(gpu, stream, {tokens, hidden}),
                         y(gpu, stream, {tokens, hidden});
                     GpuTensor<T> sum_in(gpu, stream, {tokens, hidden}, rounded), y2(gpu, stream, {tokens, hidden});
                     GpuTensor<float> rstd(gpu, stream, {tokens}), rstd2(gpu, stream, {tokens});
                     GpuTensor<T>& sum = where == 0 ? apart : where == 1 ? in : res;
                     add_rmsnorm_forward<T>(stream, {.sum = sum.view(),
                                                     .y = y.view(),
                                                     .rstd = rstd.view(),
                                                     .x = in.read(),
                                                     .residual = res.read(),
                                                     .gain = g.read(),
                                                     .eps = eps});
                     rmsnorm_forward<T>(
                         stream,
                         {.y = y2.view(), .rstd = rstd2.view(), .x = sum_in.read(), .gain = g.read(), .eps = eps});
                     return {sum.values(), y.values(), rstd.values(), y2.values(), rstd2.values()};
                 })) {
                EXPECT_TRUE(same_bits(got[0], rounded));
                EXPECT_TRUE(same_bits(got[1], got[3]));
                EXPECT_TRUE(same_bits(got[2], got[4]));
            }
    }
}
TEST(RmsnormCuda, AddAndNormFusedEqualsTheTwoApartInFloat) { fused_equals_apart<float>(); }
TEST(RmsnormCuda, AddAndNormFusedEqualsTheTwoApartInBf16) { fused_equals_apart<bf16>(); }

}  // namespace
}  // namespace keel
