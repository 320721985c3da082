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
        for (const auto& got : on_gpus(
                 [&](Gpu&gpu, Stream&stream) -> std::vector<Values> {
                     GpuTensor<T> in(gpu, stream, {tokens, hidden}, x), g(gpu, stream, {hidden}, gain);
                     GpuTensor<T> y(gpu, stream, {tokens, hidden});
                     GpuTensor<float> rstd(gpu, stream, {tokens});
                     rmsnorm_forward<T>(
                         stream, {.y = y.view(), .rstd = rstd.view(), .x = in.read(), .gain = g.read(), .eps = eps});
                     return {y.values(), rstd.values()};
                 })) {
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

// dx may be dy or dresidual; dgain is added to, over more rows than one slice has, and over longer ones than a thread
// keeps in registers.
enum class Into { apart, dy, dresidual };
template <class T>
void backward_matches() {
    struct {
        std::int64_t tokens, hidden;
        bool residual;
        Into into;
    } const cases[] = {{0, 8, false, Into::apart},     {1, 1, true, Into::apart},         {3, 8, false, Into::dy},
                       {7, 31, true, Into::dresidual}, {70, 288, true, Into::dy},         {37, 513, false, Into::apart},
                       {5, 4104, true, Into::apart},   {2, 17000, true, Into::dresidual}, {1, 9001, false, Into::dy},
                       {321, 40, true, Into::apart},
                       {2, 256, false, Into::apart},    // as many vectors as threads, none left over
                       {1, 40960, false, Into::apart}};  // all the shared memory that a row may take
    for (const auto& [tokens, hidden, residual, into] : cases) {
        SCOPED_TRACE(testing::Message() << tokens << " x " << hidden << " residual " << residual);
        const std::int64_t n = tokens * hidden;
        const Values x = random_values<T>("x", n), dy = random_values<T>("dy", n),
                     passed = random_values<T>("dresidual", n), gain = random_values<T>("gain", hidden, 0.3, 1);
        const auto x32 = ref::cast<float>(x), gain32 = ref::cast<float>(gain);
        const auto rstd32 = ref::rmsnorm<float, T>(x32, gain32, eps).rstd;
        const Values none, &added = residual ? passed : none;
        const auto want = ref::rmsnorm_backward<double, double>(
            dy, x, gain, ref::rmsnorm<double, double>(x, gain, eps).rstd, added, 1);
        const auto naive =
            ref::rmsnorm_backward<float, T>(ref::cast<float>(dy), x32, gain32, rstd32, ref::cast<float>(added), 1);
        for (const auto& got : on_gpus(
                 [&, tokens = tokens, hidden = hidden, residual = residual, into = into](
                     Gpu&gpu, Stream&stream) -> std::vector<Values> {
                     GpuTensor<T> in(gpu, stream, {tokens, hidden}, x), d(gpu, stream, {tokens, hidden}, dy);
                     GpuTensor<T> past(gpu, stream, {tokens, hidden}, passed), apart(gpu, stream, {tokens, hidden});
                     GpuTensor<T> g(gpu, stream, {hidden}, gain);
                     GpuTensor<float> rstd(gpu, stream, {tokens}, widen(rstd32)),
                         dgain(gpu, stream, {hidden}, Values(static_cast<std::size_t>(hidden), 1));
                     GpuTensor<std::byte> scratch(gpu, stream, {rmsnorm_scratch_bytes(tokens, hidden)});
                     GpuTensor<T>& dx = into == Into::apart ? apart : into == Into::dy ? d : past;
                     RmsnormBackward<T> args{.dx = dx.view(),
                                             .dgain = dgain.view(),
                                             .scratch = scratch.view(),
                                             .dy = d.read(),
                                             .x = in.read(),
                                             .gain = g.read(),
                                             .rstd = rstd.read()};
                     if (residual) args.dresidual = past.read();
                     rmsnorm_backward<T>(stream, args);
                     return {dx.values(), dgain.values()};
                 })) {
            expect_close<T>("dx", got[0], want.dx, widen(naive.dx), steps);
            expect_close<float>("dgain", got[1], want.dgain, widen(naive.dgain), steps);
        }
    }
}
TEST(RmsnormCuda, BackwardMatchesTheReferenceInFloat) { backward_matches<float>(); }
TEST(RmsnormCuda, BackwardMatchesTheReferenceInBf16) { backward_matches<bf16>(); }

}  // namespace
}  // namespace keel
