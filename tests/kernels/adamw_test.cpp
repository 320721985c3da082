#include "kernels/adamw.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>

#include "kernels/base/pages.h"
#include "tests/kernels/golden.h"
#include "tests/kernels/reference.h"
#include "tests/kernels/tensor.h"

namespace keel {
namespace {

// Per step: about ten float roundings of numbers no larger than the parameter or its update.
constexpr int steps = 10;

struct State {
    Values param, master, m, v;
};
// `count` steps; grads holds count * n. Master may be the parameter itself.
template <class T> State run(Stream& stream, const Values& start, const Values& grads, const ref::AdamwScalars& s,
                             int count, bool shared) {
    const auto n = static_cast<std::int64_t>(start.size());
    Tensor<T> param(n);
    Tensor<float> master(start), m(n), v(n), grad(n);
    m.fill(0);
    v.fill(0);
    param.fill(start);
    for (int step = 1; step <= count; ++step) {
        grad.fill(Values(grads.begin() + (step - 1) * n, grads.begin() + step * n));
        View<float> weights = master.view();
        if constexpr (std::is_same_v<T, float>) weights = shared ? param.view() : master.view();
        adamw<T>(stream, {.param = param.view(),
                          .master = weights,
                          .m = m.view(),
                          .v = v.view(),
                          .grad = grad.read(),
                          .lr = static_cast<float>(s.lr),
                          .beta1 = static_cast<float>(s.beta1),
                          .beta2 = static_cast<float>(s.beta2),
                          .eps = static_cast<float>(s.eps),
                          .weight_decay = static_cast<float>(s.weight_decay),
                          .grad_scale = static_cast<float>(s.grad_scale),
                          .step = step});
    }
    EXPECT_TRUE(param.untouched() && master.untouched() && m.untouched() && v.untouched() && grad.untouched());
    return {param.values(), master.values(), m.values(), v.values()};
}

ref::AdamwScalars scalars(const Values& s) { return {s[0], s[1], s[2], s[3], s[4], s[5]}; }

TEST(Adamw, IsTheKnownStepOfDecoupledWeightDecay) {
    const float f[] = {.01f, .9f, .999f, 1e-8f, .1f, 1};
    const State got = run<float>(stream_of(1), {1}, {.1f}, scalars(Values(f, f + 6)), 1, true);
    EXPECT_NEAR(got.param[0], 0.989000001, 2 * unit_roundoff<float>);  // the update is 1 % of the parameter
}

TEST(Adamw, IsTheGoldenOverThreeSteps) {
    const Golden g("ops/adamw");
    const auto n = static_cast<std::ptrdiff_t>(g.dim("param", 0));
    const auto row = [&](const char* name, int step) {
        return Values(g[name].begin() + (step - 1) * n, g[name].begin() + step * n);
    };
    auto master = ref::cast<float>(g["param"]), m = ref::Array<float>(master.size()), v = m;
    for (int step = 1; step <= 3; ++step) {
        const State got = run<float>(stream_of(2), g["param"], g["grads"], scalars(g["scalars"]), step, false);
        ref::adamw<float>(master, m, v, ref::cast<float>(row("grads", step)), scalars(g["scalars"]), step);
        expect_close<float>("master", got.master, row("params", step), widen(master), steps);
        expect_close<float>("m", got.m, row("ms", step), widen(m), steps);
        expect_close<float>("v", got.v, row("vs", step), widen(v), steps);
        EXPECT_TRUE(same_bits(got.param, got.master));
    }
}

template <class T> void matches() {
    const ref::AdamwScalars s{static_cast<double>(3e-4f), static_cast<double>(.9f), static_cast<double>(.95f),
                              static_cast<double>(1e-8f), static_cast<double>(.1f), static_cast<double>(.37f)};
    for (const std::int64_t n : {1, 2, 7, 64, 65, 257, 40001}) {  // the last is more than one tile
        SCOPED_TRACE(n);
        const Values start = random_values<float>("param", n, .02), grads = random_values<float>("grads", 2 * n, 1e-3);
        const auto got = on_any_threads([&](Stream& stream) -> std::vector<Values> {
            const State r = run<T>(stream, start, grads, s, 2, false);
            return {r.param, r.master, r.m, r.v};
        });
        Values master = start, m(start.size(), 0.0), v = m;
        auto master32 = ref::cast<float>(start), m32 = ref::cast<float>(m), v32 = m32;
        for (int step = 1; step <= 2; ++step) {
            const Values grad(grads.begin() + (step - 1) * n, grads.begin() + step * n);
            ref::adamw<double>(master, m, v, grad, s, step);
            ref::adamw<float>(master32, m32, v32, ref::cast<float>(grad), s, step);
        }
        expect_close<float>("master", got[1], master, widen(master32), steps);
        expect_close<float>("m", got[2], m, widen(m32), steps);
        expect_close<float>("v", got[3], v, widen(v32), steps);
        Tensor<T> rounded(n);
        rounded.fill(got[1]);
        EXPECT_TRUE(
            same_bits(got[0], rounded.values()));  // the parameter is the master weight, rounded to nearest even
        const State shared = run<T>(stream_of(2), start, grads, s, 2, std::is_same_v<T, float>);
        EXPECT_TRUE(same_bits(shared.param, got[0]));
    }
}
TEST(Adamw, MatchesTheReferenceInFloatAlsoWhenMasterIsTheParameter) { matches<float>(); }
TEST(Adamw, MatchesTheReferenceInBf16AndRoundsTheMasterWeight) { matches<bf16>(); }
TEST(Adamw, MatchesTheReferenceInF16AndRoundsTheMasterWeight) { matches<f16>(); }

// Parameters that begin a cache line are stored past the caches, those of `Tensor` are not.
template <class T> void same_on_a_line() {
    constexpr std::int64_t n = 40001;
    Pages pages((n + 1) * static_cast<std::int64_t>(sizeof(T)));
    T* const line = reinterpret_cast<T*>(pages.data());
    ASSERT_EQ(reinterpret_cast<std::uintptr_t>(line) % 64, 0u);
    line[n] = T(3.0f);
    Tensor<T> elsewhere(n);
    for (const View<T> param : {View<T>(line, {n}), elsewhere.view()}) {
        Tensor<float> master(random_values<float>("param", n, .02)), grad(random_values<float>("grads", n, 1e-3)), m(n), v(n);
        m.fill(0);
        v.fill(0);
        adamw<T>(stream_of(2), {.param = param, .master = master.view(), .m = m.view(), .v = v.view(), .grad = grad.read(), .lr = 3e-4f,
                                .beta1 = .9f, .beta2 = .95f, .eps = 1e-8f, .weight_decay = .1f, .grad_scale = 1, .step = 1});
    }
    EXPECT_EQ(std::memcmp(line, elsewhere.read().data(), n * sizeof(T)), 0);
    EXPECT_EQ(static_cast<float>(line[n]), 3.0f);
    EXPECT_TRUE(elsewhere.untouched());
}
TEST(Adamw, StoresTheSameParametersWhereverTheyBegin) {
    same_on_a_line<bf16>();
    same_on_a_line<f16>();
}

TEST(Adamw, RefusesWhatCannotBeAStep) {
    Tensor<float> x(4), three(3);
    const auto step = [&](View<float> m, std::int64_t t, float beta2) {
        return error_of([&] {
            adamw<float>(stream_of(1), {.param = x.view(),
                                        .master = x.view(),
                                        .m = m,
                                        .v = x.view(),
                                        .grad = x.read(),
                                        .lr = 1,
                                        .beta1 = .9f,
                                        .beta2 = beta2,
                                        .eps = 0,
                                        .weight_decay = 0,
                                        .grad_scale = 1,
                                        .step = t});
        });
    };
    EXPECT_EQ(step(three.view(), 1, .95f), "adamw: m is [3], but must be [4]");
    EXPECT_EQ(step(x.view(), 0, .95f), "adamw: step is 0, but the first update is step 1");
    EXPECT_EQ(step(x.view(), 1, 1), "adamw: beta1 0.9 and beta2 1 must be in [0, 1) (--optim.beta1, --optim.beta2)");
}

}  // namespace
}  // namespace keel
