#include "kernels/rmsnorm.h"

#include <gtest/gtest.h>

#include "tests/kernels/golden.h"
#include "tests/kernels/reference.h"
#include "tests/kernels/tensor.h"

namespace keel {
namespace {

constexpr float eps = 1e-5f;
// Roundings of float between the inputs and a result beyond those the naive evaluation shares: the tree's own sums,
// the square root, a reciprocal and two products.
constexpr int steps = 8;

struct Shape {
    std::int64_t tokens, hidden;
};
std::vector<Shape> shapes() {
    std::vector<Shape> all{{3000, 16}, {5, 1}};  // more tokens than one slice each; a mean of one element
    for (std::int64_t tokens : {1, 2, 7, 64, 65, 257})
        for (std::int64_t hidden : {8, 16, 31, 288, 513}) all.push_back({tokens, hidden});
    return all;
}

template <class T> struct Inputs {
    Shape n;
    Values x, residual, gain, dy, dresidual;
    explicit Inputs(Shape shape) : n(shape) {
        const std::int64_t size = n.tokens * n.hidden;
        x = random_values<T>("x", size);
        residual = random_values<T>("residual", size);
        gain = random_values<T>("gain", n.hidden, 0.3, 1);
        dy = random_values<T>("dy", size);
        dresidual = random_values<T>("dresidual", size);
    }
};

template <class T> void forward_matches() {
    for (const Shape n : shapes()) {
        SCOPED_TRACE(testing::Message() << n.tokens << " x " << n.hidden);
        const Inputs<T> in(n);
        const auto got = on_any_threads([&](Stream& stream) -> std::vector<Values> {
            Tensor<T> x(in.x, n.tokens, n.hidden), gain(in.gain), y(n.tokens, n.hidden);
            Tensor<float> rstd(n.tokens);
            rmsnorm_forward<T>(stream,
                               {.y = y.view(), .rstd = rstd.view(), .x = x.read(), .gain = gain.read(), .eps = eps});
            EXPECT_TRUE(y.untouched() && rstd.untouched());
            return {y.values(), rstd.values()};
        });
        const auto want = ref::rmsnorm<double, double>(in.x, in.gain, eps);
        const auto naive = ref::rmsnorm<float, T>(ref::cast<float>(in.x), ref::cast<float>(in.gain), eps);
        expect_close<T>("y", got[0], want.y, widen(naive.y), steps);
        expect_close<float>("rstd", got[1], want.rstd, widen(naive.rstd), steps);
    }
}
TEST(Rmsnorm, ForwardMatchesTheReferenceInFloat) { forward_matches<float>(); }
TEST(Rmsnorm, ForwardMatchesTheReferenceInBf16) { forward_matches<bf16>(); }
TEST(Rmsnorm, ForwardMatchesTheReferenceInF16) { forward_matches<f16>(); }

// The fused form must be the two ops one after the other, bit for bit, also when the sum overwrites either operand.
template <class T> void fused_equals_apart() {
    for (const Shape n : shapes()) {
        const Inputs<T> in(n);
        const auto fused = [&](int where) {
            return on_any_threads([&](Stream& stream) -> std::vector<Values> {
                Tensor<T> x(in.x, n.tokens, n.hidden), residual(in.residual, n.tokens, n.hidden), gain(in.gain);
                Tensor<T> apart(n.tokens, n.hidden), y(n.tokens, n.hidden);
                Tensor<float> rstd(n.tokens);
                Tensor<T>& sum = where == 0 ? apart : where == 1 ? x : residual;
                add_rmsnorm_forward<T>(stream, {.sum = sum.view(),
                                                .y = y.view(),
                                                .rstd = rstd.view(),
                                                .x = x.read(),
                                                .residual = residual.read(),
                                                .gain = gain.read(),
                                                .eps = eps});
                EXPECT_TRUE(sum.untouched() && y.untouched() && rstd.untouched());
                return {sum.values(), y.values(), rstd.values()};
            });
        };
        const auto got = fused(0);
        Values sum(in.x.size());
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = in.x[i] + in.residual[i];
        Tensor<T> rounded(sum, n.tokens, n.hidden), gain(in.gain), y(n.tokens, n.hidden);
        Tensor<float> rstd(n.tokens);
        rmsnorm_forward<T>(stream_of(1),
                           {.y = y.view(), .rstd = rstd.view(), .x = rounded.read(), .gain = gain.read(), .eps = eps});
        EXPECT_TRUE(same_bits(got[0], rounded.values()));
        EXPECT_TRUE(same_bits(got[1], y.values()));
        EXPECT_TRUE(same_bits(got[2], rstd.values()));
        for (const int where : {1, 2}) {
            const auto in_place = fused(where);
            for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(same_bits(in_place[i], got[i])) << where << i;
        }
    }
}
TEST(Rmsnorm, AddAndNormFusedEqualsTheTwoApartInFloat) { fused_equals_apart<float>(); }
TEST(Rmsnorm, AddAndNormFusedEqualsTheTwoApartInBf16) { fused_equals_apart<bf16>(); }
TEST(Rmsnorm, AddAndNormFusedEqualsTheTwoApartInF16) { fused_equals_apart<f16>(); }

enum class Into { apart, dy, dresidual };
template <class T> std::vector<Values> backward(Stream& stream, const Inputs<T>& in, bool residual, Into into) {
    const Shape n = in.n;
    Tensor<T> x(in.x, n.tokens, n.hidden), dy(in.dy, n.tokens, n.hidden), gain(in.gain), apart(n.tokens, n.hidden);
    Tensor<T> dresidual(in.dresidual, n.tokens, n.hidden);
    Tensor<float> dgain(n.hidden),
        rstd(widen(ref::rmsnorm<float, T>(ref::cast<float>(in.x), ref::cast<float>(in.gain), eps).rstd));
    dgain.fill(1);
    Scratch scratch(rmsnorm_scratch_bytes(n.tokens, n.hidden));
    Tensor<T>& dx = into == Into::apart ? apart : into == Into::dy ? dy : dresidual;
    RmsnormBackward<T> args{.dx = dx.view(),
                            .dgain = dgain.view(),
                            .scratch = scratch.view(),
                            .dy = dy.read(),
                            .x = x.read(),
                            .gain = gain.read(),
                            .rstd = rstd.read()};
    if (residual) args.dresidual = dresidual.read();
    rmsnorm_backward<T>(stream, args);
    EXPECT_TRUE(dx.untouched() && dgain.untouched() && scratch.untouched());
    return {dx.values(), dgain.values()};
}

template <class T> void backward_matches() {
    for (const Shape n : shapes())
        for (const bool residual : {false, true}) {
            SCOPED_TRACE(testing::Message() << n.tokens << " x " << n.hidden << " residual " << residual);
            const Inputs<T> in(n);
            const auto got = on_any_threads([&](Stream& s) { return backward(s, in, residual, Into::apart); });
            const auto rstd = ref::rmsnorm<double, double>(in.x, in.gain, eps).rstd;
            const auto rstd32 = ref::rmsnorm<float, T>(ref::cast<float>(in.x), ref::cast<float>(in.gain), eps).rstd;
            const Values passed = residual ? in.dresidual : Values();
            const auto want = ref::rmsnorm_backward<double, double>(in.dy, in.x, in.gain, rstd, passed, 1);
            const auto naive =
                ref::rmsnorm_backward<float, T>(ref::cast<float>(in.dy), ref::cast<float>(in.x),
                                                ref::cast<float>(in.gain), rstd32, ref::cast<float>(passed), 1);
            expect_close<T>("dx", got[0], want.dx, widen(naive.dx), steps);
            expect_close<float>("dgain", got[1], want.dgain, widen(naive.dgain), steps);
            EXPECT_TRUE(same_bits(backward(stream_of(2), in, residual, Into::dy)[0], got[0]));
            if (!residual) continue;
            EXPECT_TRUE(same_bits(backward(stream_of(2), in, residual, Into::dresidual)[0], got[0]));
        }
}
TEST(Rmsnorm, BackwardAccumulatesDgainAndOverwritesDxInFloat) { backward_matches<float>(); }
TEST(Rmsnorm, BackwardAccumulatesDgainAndOverwritesDxInBf16) { backward_matches<bf16>(); }
TEST(Rmsnorm, BackwardAccumulatesDgainAndOverwritesDxInF16) { backward_matches<f16>(); }

TEST(Rmsnorm, ForwardInPlaceEqualsOutOfPlace) {
    const Inputs<bf16> in({7, 31});
    Tensor<bf16> x(in.x, 7, 31), y(7, 31), gain(in.gain);
    Tensor<float> rstd(7);
    rmsnorm_forward<bf16>(stream_of(2),
                          {.y = y.view(), .rstd = rstd.view(), .x = x.read(), .gain = gain.read(), .eps = eps});
    rmsnorm_forward<bf16>(stream_of(2),
                          {.y = x.view(), .rstd = rstd.view(), .x = x.read(), .gain = gain.read(), .eps = eps});
    EXPECT_TRUE(same_bits(x.values(), y.values()));
}

// The vector of the model-folder format: eps inside the root, the normalised value rounded before gain.
TEST(Rmsnorm, IsTheOneOfReleasedLlamaModels) {
    Tensor<float> x(Values{1, 2, 3, 4}, 1, 4), gain(Values{0.5, 1, 1.5, 2}), y(1, 4), rstd(1);
    rmsnorm_forward<float>(stream_of(1),
                           {.y = y.view(), .rstd = rstd.view(), .x = x.read(), .gain = gain.read(), .eps = 1e-5f});
    const Values want{0.182574064, 0.730296256, 1.643166577, 2.921185026};
    EXPECT_LE(worst_error(y.values(), want), 4 * unit_roundoff<float>);  // three roundings, and the digits given
    // 3 / sqrt(5) = 1.3416 is 1.34375 in bf16; times 1.015625 that is 1.3648, which rounds up. Rounded only once, at
    // the end, it would be 1.3626, which rounds down to 1.359375.
    Tensor<bf16> one_three(Values{1, 3}, 1, 2), gains(Values{1, 1.015625}), rounded(1, 2);
    rmsnorm_forward<bf16>(
        stream_of(1),
        {.y = rounded.view(), .rstd = rstd.view(), .x = one_three.read(), .gain = gains.read(), .eps = 0});
    EXPECT_EQ(rounded.values(), (Values{0.447265625, 1.3671875}));
}

TEST(Rmsnorm, EpsOutsideTheRootWouldBeSeen) {
    const Golden g("ops/rmsnorm");
    const std::int64_t tokens = g.dim("x", 0), hidden = g.dim("x", 1);
    Tensor<float> x(g["x"], tokens, hidden), gain(g["gain"]), y(tokens, hidden), rstd(tokens);
    const auto e = static_cast<float>(g.scalar("eps"));
    rmsnorm_forward<float>(stream_of(2),
                           {.y = y.view(), .rstd = rstd.view(), .x = x.read(), .gain = gain.read(), .eps = e});
    const auto naive = ref::rmsnorm<float, float>(ref::cast<float>(g["x"]), ref::cast<float>(g["gain"]), e).y;
    expect_close<float>("y", y.values(), g["y"], widen(naive), steps);
    Values wrong = g["x"];
    for (std::int64_t t = 0; t < tokens; ++t) {
        double square = 0;
        double* row = wrong.data() + t * hidden;
        for (std::int64_t i = 0; i < hidden; ++i) square += row[i] * row[i] / static_cast<double>(hidden);
        for (std::int64_t i = 0; i < hidden; ++i)
            row[i] *= g["gain"][static_cast<std::size_t>(i)] / (std::sqrt(square) + g.scalar("eps"));
    }
    EXPECT_GT(worst_error(wrong, g["y"]), 1e4 * steps * unit_roundoff<float>);
}

TEST(Rmsnorm, BackwardIsTheGolden) {
    const Golden g("ops/rmsnorm");
    const std::int64_t tokens = g.dim("x", 0), hidden = g.dim("x", 1);
    const auto x32 = ref::cast<float>(g["x"]), gain32 = ref::cast<float>(g["gain"]), dy32 = ref::cast<float>(g["dy"]);
    const auto naive = ref::rmsnorm<float, float>(x32, gain32, g.scalar("eps"));
    for (const bool residual : {false, true}) {
        Tensor<float> x(g["x"], tokens, hidden), dy(g["dy"], tokens, hidden), dresidual(g["dresidual"], tokens, hidden);
        Tensor<float> gain(g["gain"]), rstd(g["rstd"]), dx(tokens, hidden), dgain(hidden);
        Scratch scratch(rmsnorm_scratch_bytes(tokens, hidden));
        dgain.fill(0);
        RmsnormBackward<float> args{.dx = dx.view(), .dgain = dgain.view(), .scratch = scratch.view(), .dy = dy.read(),
                                    .x = x.read(), .gain = gain.read(), .rstd = rstd.read()};
        if (residual) args.dresidual = dresidual.read();
        rmsnorm_backward<float>(stream_of(2), args);
        const auto passed = residual ? ref::cast<float>(g["dresidual"]) : ref::Array<float>();
        const auto dnaive = ref::rmsnorm_backward<float, float>(dy32, x32, gain32, naive.rstd, passed, 0);
        expect_close<float>("dx", dx.values(), g[residual ? "dx_residual" : "dx"], widen(dnaive.dx), steps);
        expect_close<float>("dgain", dgain.values(), g["dgain"], widen(dnaive.dgain), steps);
    }
}

TEST(Rmsnorm, RefusesShapesThatDisagree) {
    Tensor<float> x(4, 8), y(4, 8), short_y(3, 8), gain(8), wrong_gain(7), rstd(4);
    Stream& s = stream_of(1);
    EXPECT_EQ(
        error_of([&] {
            rmsnorm_forward<float>(
                s, {.y = y.view(), .rstd = rstd.view(), .x = x.read(), .gain = wrong_gain.read(), .eps = eps});
        }),
        "rmsnorm: gain is [7], but x has rows of 8; pass this layer's own gain (both lengths are --model.hidden)");
    EXPECT_EQ(error_of([&] {
                  rmsnorm_forward<float>(
                      s, {.y = short_y.view(), .rstd = rstd.view(), .x = x.read(), .gain = gain.read(), .eps = eps});
              }),
              "rmsnorm: y is [3, 8], but must be [4, 8]");
    Tensor<float> strided(4, 8, 9), dgain(8);
    EXPECT_EQ(error_of([&] {
                  rmsnorm_forward<float>(
                      s, {.y = y.view(), .rstd = rstd.view(), .x = strided.read(), .gain = gain.read(), .eps = eps});
              }),
              "rmsnorm: x has rows 9 elements apart; it must be contiguous");
    Scratch scratch(8);
    EXPECT_EQ(error_of([&] {
                  rmsnorm_backward<float>(s, {.dx = y.view(),
                                              .dgain = dgain.view(),
                                              .scratch = scratch.view(),
                                              .dy = x.read(),
                                              .x = x.read(),
                                              .gain = gain.read(),
                                              .rstd = rstd.read()});
              }),
              "rmsnorm: scratch has 8 bytes, but 4 tokens of 8 need 32; reserve rmsnorm_scratch_bytes(tokens, hidden)");
}

}  // namespace
}  // namespace keel
