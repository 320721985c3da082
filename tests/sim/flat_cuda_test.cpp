// The CUDA bodies of the ops on flat memory: convert, add, adamw, and the sums of reduce, swept over schedules.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/adamw.h"
#include "kernels/convert.h"
#include "kernels/copy.h"
#include "kernels/reduce.h"
#include "tests/kernels/reference.h"
#include "tests/sim/gpu_tensor.h"

namespace keel {
namespace {

// ---- copy: rows that lie apart, and nothing beside them ------------------------------------------------------------

TEST(CopyCuda, CopiesAndClearsRowsThatLieApartAndNothingBesideThem) {
    const Values x = random_values<float>("x", 5 * 9, 3), before(5 * 11, -7);
    for (const auto& got : on_gpus([&](Gpu&gpu, Stream&stream) -> std::vector<Values> {
             const GpuTensor<float> in(gpu, stream, {5, 9}, x), whole(gpu, stream, {5, 9}), y(gpu, stream, {5, 11}, before),
                 z(gpu, stream, {5, 11}, before);
             copy<float>(stream, whole.view(), in.read());
             copy<float>(stream, y.view().columns(2, 6), whole.read().columns(1, 6));
             clear<float>(stream, z.view().columns(3, 4));
             clear<float>(stream, whole.view());
             return {y.values(), z.values(), whole.values()};
         }))
        for (std::size_t row = 0; row < 5; ++row)
            for (std::size_t c = 0; c < 11; ++c) {
                EXPECT_EQ(got[0][row * 11 + c], c < 2 || c >= 8 ? -7 : x[row * 9 + c - 1]);
                EXPECT_EQ(got[1][row * 11 + c], c < 3 || c >= 7 ? -7 : 0);
                EXPECT_EQ(got[2][row * 9 + c % 9], 0);
            }
}

// ---- convert and add: one rounding of an exact value, so the bits are known
// -----------------------------------------------------

template <class T>
Values rounded(Values x) {
    for (double& v : x) v = static_cast<double>(static_cast<float>(T(static_cast<float>(v))));
    return x;
}

// `shift`: both begin that many elements past a boundary of 256 bytes, so that vectors are not possible.
template <class To, class From>
void converts(std::int64_t shift) {
    for (const std::int64_t n : {0, 1, 4, 7, 1025}) {
        SCOPED_TRACE(n);
        Values x = random_values<From>("x", n + shift, 3);
        if (n > 4)
            x[static_cast<std::size_t>(shift)] = std::numeric_limits<double>::infinity(),
            x[static_cast<std::size_t>(shift) + 1] = -0.0;
        for (const auto& got : on_gpus([&](Gpu&gpu, Stream&stream) -> std::vector<Values> {
                 GpuTensor<From> in(gpu, stream, {n + shift}, x);
                 GpuTensor<To> y(gpu, stream, {n + shift}, Values(x.size(), -7));
                 convert<To, From>(stream, {.y = y.view().rows(shift, n), .x = in.read().rows(shift, n)});
                 return {y.values()};
             })) {
            Values want = rounded<To>(x);
            for (std::int64_t i = 0; i < shift; ++i) want[static_cast<std::size_t>(i)] = -7;
            EXPECT_TRUE(same_bits(got[0], want));
        }
    }
}
TEST(ConvertCuda, IsOneRoundingOfEveryElement) {
    converts<bf16, float>(0), converts<float, bf16>(0), converts<bf16, bf16>(0), converts<float, float>(0);
    converts<bf16, float>(1), converts<float, bf16>(3);
}
TEST(ConvertCuda, KeepsNan) {
    for (const auto& got : on_gpus([&](Gpu&gpu, Stream&stream) -> std::vector<Values> {
             GpuTensor<float> in(gpu, stream, {5}, Values(5, std::numeric_limits<double>::quiet_NaN()));
             GpuTensor<bf16> y(gpu, stream, {5});
             convert<bf16, float>(stream, {.y = y.view(), .x = in.read()});
             return {y.values()};
         }))
        for (const double v : got[0]) EXPECT_TRUE(std::isnan(v));
}

template <class T>
void adds(std::int64_t shift) {
    for (const std::int64_t n : {0, 1, 4, 7, 1025})
        for (const int over : {0, 1, 2}) {  // neither operand, a, b
            SCOPED_TRACE(testing::Message() << n << " over " << over);
            const Values a = random_values<T>("a", n + shift), b = random_values<T>("b", n + shift);
            for (const auto& got : on_gpus([&](Gpu&gpu, Stream&stream) -> std::vector<Values> {
                     GpuTensor<T> left(gpu, stream, {n + shift}, a), right(gpu, stream, {n + shift}, b),
                         apart(gpu, stream, {n + shift}, a);
                     GpuTensor<T>& y = over == 0 ? apart : over == 1 ? left : right;
                     add<T>(stream, {.y = y.view().rows(shift, n),
                                     .a = left.read().rows(shift, n),
                                     .b = right.read().rows(shift, n)});
                     return {y.values()};
                 }))
                for (std::int64_t i = shift; i < n + shift; ++i) {
                    const auto k = static_cast<std::size_t>(i);
                    EXPECT_EQ(
                        got[0][k],
                        rounded<T>({static_cast<double>(static_cast<float>(a[k]) + static_cast<float>(b[k]))})[0]);
                }
        }
}
TEST(AddCuda, IsOneRoundingOfTheSum) { adds<float>(0), adds<bf16>(0), adds<bf16>(1); }

// ---- adamw
// ---------------------------------------------------------------------------------------------------------------------

constexpr int steps =
    10;  // as on the CPU: about ten float roundings of numbers no larger than the parameter or its update

template <class T>
void adamw_matches(bool shared, std::int64_t shift) {
    const ref::AdamwScalars s{static_cast<double>(3e-4f), static_cast<double>(.9f), static_cast<double>(.95f),
                              static_cast<double>(1e-8f), static_cast<double>(.1f), static_cast<double>(.37f)};
    for (const std::int64_t n : {1, 4, 7, 1027}) {
        SCOPED_TRACE(n);
        const Values start = random_values<float>("param", n, .02), grads = random_values<float>("grads", 2 * n, 1e-3);
        auto want = ref::cast<double>(start);
        auto naive = ref::cast<float>(start);
        ref::Array<double> m(want.size()), v(want.size());
        ref::Array<float> naive_m(want.size()), naive_v(want.size());
        const auto grad_of = [&](int step) { return Values(grads.begin() + (step - 1) * n, grads.begin() + step * n); };
        for (const int step : {1, 2}) {
            ref::adamw<double>(want, m, v, grad_of(step), s, step);
            ref::adamw<float>(naive, naive_m, naive_v, ref::cast<float>(grad_of(step)), s, step);
        }
        const auto shifted = [&](const Values& x) {
            Values out(static_cast<std::size_t>(shift), -7);
            out.insert(out.end(), x.begin(), x.end());
            return out;
        };
        const auto unshifted = [&](const Values& x) { return Values(x.begin() + shift, x.end()); };
        for (const auto& got : on_gpus([&](Gpu&gpu, Stream&stream) -> std::vector<Values> {
                 GpuTensor<T> param(gpu, stream, {n + shift}, shifted(start));
                 GpuTensor<float> master(gpu, stream, {n + shift}, shifted(start)),
                     m1(gpu, stream, {n + shift}, shifted(Values(start.size())));
                 GpuTensor<float> m2(gpu, stream, {n + shift}, shifted(Values(start.size()))),
                     grad(gpu, stream, {n + shift});
                 View<float> weights = master.view();
                 if constexpr (std::is_same_v<T, float>) weights = shared ? param.view() : master.view();
                 for (const int step : {1, 2}) {
                     grad.fill(shifted(grad_of(step)));
                     adamw<T>(stream, {.param = param.view().rows(shift, n),
                                       .master = weights.rows(shift, n),
                                       .m = m1.view().rows(shift, n),
                                       .v = m2.view().rows(shift, n),
                                       .grad = grad.read().rows(shift, n),
                                       .lr = static_cast<float>(s.lr),
                                       .beta1 = static_cast<float>(s.beta1),
                                       .beta2 = static_cast<float>(s.beta2),
                                       .eps = static_cast<float>(s.eps),
                                       .weight_decay = static_cast<float>(s.weight_decay),
                                       .grad_scale = static_cast<float>(s.grad_scale),
                                       .step = step});
                 }
                 return {param.values(), shared ? param.values() : master.values(), m1.values(), m2.values()};
             })) {
            expect_close<float>("master", unshifted(got[1]), want, widen(naive), steps);
            expect_close<float>("m", unshifted(got[2]), m, widen(naive_m), steps);
            expect_close<float>("v", unshifted(got[3]), v, widen(naive_v), steps);
            EXPECT_TRUE(same_bits(got[0], rounded<T>(got[1]))) << "param is not the rounded master";
            for (std::size_t i = 0; i < static_cast<std::size_t>(shift); ++i) EXPECT_EQ(got[1][i], -7);
        }
    }
}
TEST(AdamwCuda, MatchesTheReferenceInFloat) { adamw_matches<float>(false, 0), adamw_matches<float>(false, 1); }
TEST(AdamwCuda, MatchesTheReferenceInBf16) { adamw_matches<bf16>(false, 0), adamw_matches<bf16>(false, 3); }
TEST(AdamwCuda, MasterMayBeTheParameter) { adamw_matches<float>(true, 0); }

// ---- reduce: the CPU's own bits
// ------------------------------------------------------------------------------------------------

TEST(ReduceCuda, SumsAreTheBitsOfTheCpu) {
    for (const std::int64_t n : {std::int64_t{0}, std::int64_t{1}, std::int64_t{31}, std::int64_t{33},
                                 std::int64_t{1000}, reduce_block, reduce_block + 1, 33 * reduce_block + 5}) {
        SCOPED_TRACE(n);
        Values x = random_values<float>("x", n, 1, 0.3);
        for (std::size_t i = 3; i < x.size(); i += 977)
            x[i] = i % 2 ? std::numeric_limits<double>::quiet_NaN() : -std::numeric_limits<double>::infinity();
        const Values finite = random_values<float>("finite", n, 1, 0.3);
        Tensor<float> host(finite), host_x(x);
        Scratch host_scratch(reduce_scratch_bytes(n));
        Tensor<double> squares(1), total(1);
        Tensor<std::int64_t> count(1);
        sum_of_squares(stream_of(1), {.out = squares.view(), .scratch = host_scratch.view(), .x = host.read()});
        sum(stream_of(1), {.out = total.view(), .scratch = host_scratch.view(), .x = host.read()});
        count_nonfinite(stream_of(1), {.out = count.view(), .scratch = host_scratch.view(), .x = host_x.read()});
        for (const auto& got : on_gpus(
                 [&](Gpu&gpu, Stream&stream) -> std::vector<Values> {
                     GpuTensor<float> in(gpu, stream, {n}, finite), other(gpu, stream, {n}, x);
                     GpuTensor<std::byte> scratch(gpu, stream, {reduce_scratch_bytes(n)});
                     GpuTensor<double> a(gpu, stream, {1}), b(gpu, stream, {1});
                     GpuTensor<std::int64_t> c(gpu, stream, {1});
                     sum_of_squares(stream, {.out = a.view(), .scratch = scratch.view(), .x = in.read()});
                     sum(stream, {.out = b.view(), .scratch = scratch.view(), .x = in.read()});
                     count_nonfinite(stream, {.out = c.view(), .scratch = scratch.view(), .x = other.read()});
                     return {a.values(), b.values(), c.values()};
                 })) {
            EXPECT_TRUE(same_bits(got[0], squares.values()));
            EXPECT_TRUE(same_bits(got[1], total.values()));
            EXPECT_TRUE(same_bits(got[2], count.values()));
        }
    }
}

}  // namespace
}  // namespace keel
