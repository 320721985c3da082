#include "kernels/head_norm.h"

#include <gtest/gtest.h>

#include "tests/kernels/golden.h"
#include "tests/kernels/reference.h"
#include "tests/kernels/tensor.h"

namespace keel {
namespace {

constexpr float eps = 1e-5f;
constexpr int steps = 8;  // as in rmsnorm_test.cpp: a head is a row

template <class T> struct Inputs {
    Values x, dy, gain;
    Inputs(std::int64_t rows, std::int64_t head_dim)
        : x(random_values<T>("x", rows * head_dim)),
          dy(random_values<T>("dy", rows * head_dim)),
          gain(random_values<T>("gain", head_dim, 0.3, 1)) {}
};

template <class T> void head_norm_matches() {
    for (const std::int64_t tokens : {1, 2, 7, 64, 65, 257})
        for (const auto& [heads, head_dim] :
             std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 8}, {3, 16}, {2, 31}, {4, 64}, {2, 128}}) {
            SCOPED_TRACE(testing::Message() << tokens << " x " << heads << " x " << head_dim);
            const std::int64_t width = heads * head_dim, stride = width + 5;
            const Inputs<T> in(tokens * heads, head_dim);
            const auto run = [&](Stream& stream, bool in_place) -> std::vector<Values> {
                Tensor<T> x(in.x, tokens, width, stride), gain(in.gain), y(tokens, width, stride + 2);
                Tensor<T> dy(in.dy, tokens, width, stride + 1), dx(tokens, width, stride);
                Tensor<float> rstd(tokens, heads), dgain(head_dim);
                dgain.fill(1);
                Scratch scratch(head_norm_scratch_bytes(tokens, head_dim));
                head_norm_forward<T>(
                    stream, {.y = y.view(), .rstd = rstd.view(), .x = x.read(), .gain = gain.read(), .eps = eps});
                head_norm_backward<T>(stream, {.dx = (in_place ? dy : dx).view(),
                                               .dgain = dgain.view(),
                                               .scratch = scratch.view(),
                                               .dy = dy.read(),
                                               .x = x.read(),
                                               .gain = gain.read(),
                                               .rstd = rstd.read()});
                if (in_place)
                    head_norm_forward<T>(
                        stream, {.y = x.view(), .rstd = rstd.view(), .x = x.read(), .gain = gain.read(), .eps = eps});
                EXPECT_TRUE(x.untouched() && y.untouched() && dx.untouched() && dy.untouched() && rstd.untouched() &&
                            dgain.untouched() && scratch.untouched());
                return {(in_place ? x : y).values(), rstd.values(), (in_place ? dy : dx).values(), dgain.values()};
            };
            const auto got = on_any_threads([&](Stream& s) { return run(s, false); });
            const auto in_place = run(stream_of(2), true);
            for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(same_bits(in_place[i], got[i])) << i;
            const auto want = ref::rmsnorm<double, double>(in.x, in.gain, eps);
            const auto x = ref::cast<float>(in.x), gain = ref::cast<float>(in.gain), dy = ref::cast<float>(in.dy);
            const auto naive = ref::rmsnorm<float, T>(x, gain, eps);
            expect_close<T>("y", got[0], want.y, widen(naive.y), steps);
            expect_close<float>("rstd", got[1], want.rstd, widen(naive.rstd), steps);
            const auto dwant = ref::rmsnorm_backward<double, double>(in.dy, in.x, in.gain, want.rstd, {}, 1);
            const auto dnaive = ref::rmsnorm_backward<float, T>(dy, x, gain, naive.rstd, {}, 1);
            expect_close<T>("dx", got[2], dwant.dx, widen(dnaive.dx), steps);
            expect_close<float>("dgain", got[3], dwant.dgain, widen(dnaive.dgain), steps);
        }
}
TEST(HeadNorm, MatchesTheReferenceOnStridedRowsInFloat) { head_norm_matches<float>(); }
TEST(HeadNorm, MatchesTheReferenceOnStridedRowsInBf16) { head_norm_matches<bf16>(); }
TEST(HeadNorm, MatchesTheReferenceOnStridedRowsInF16) { head_norm_matches<f16>(); }

TEST(HeadNorm, IsTheGolden) {
    const Golden g("ops/head_norm");
    const std::int64_t tokens = g.dim("x", 0), width = g.dim("x", 1), head_dim = g.dim("gain", 0);
    Tensor<float> x(g["x"], tokens, width), dy(g["dy"], tokens, width), gain(g["gain"]), y(tokens, width);
    Tensor<float> dx(tokens, width), rstd(tokens, width / head_dim), dgain(head_dim);
    Scratch scratch(head_norm_scratch_bytes(tokens, head_dim));
    const auto e = static_cast<float>(g.scalar("eps"));
    dgain.fill(0);
    head_norm_forward<float>(stream_of(2),
                             {.y = y.view(), .rstd = rstd.view(), .x = x.read(), .gain = gain.read(), .eps = e});
    head_norm_backward<float>(stream_of(2),
                              {.dx = dx.view(), .dgain = dgain.view(), .scratch = scratch.view(), .dy = dy.read(),
                               .x = x.read(), .gain = gain.read(), .rstd = rstd.read()});
    const auto x32 = ref::cast<float>(g["x"]), gain32 = ref::cast<float>(g["gain"]), dy32 = ref::cast<float>(g["dy"]);
    const auto naive = ref::rmsnorm<float, float>(x32, gain32, e);
    const auto dnaive = ref::rmsnorm_backward<float, float>(dy32, x32, gain32, naive.rstd, {}, 0);
    expect_close<float>("y", y.values(), g["y"], widen(naive.y), steps);
    expect_close<float>("dx", dx.values(), g["dx"], widen(dnaive.dx), steps);
    expect_close<float>("dgain", dgain.values(), g["dgain"], widen(dnaive.dgain), steps);
}

TEST(HeadNorm, RefusesShapesThatDisagree) {
    Tensor<float> x(4, 24), y(4, 24), gain(7), rstd(4, 3);
    EXPECT_EQ(error_of([&] {
                  head_norm_forward<float>(
                      stream_of(1),
                      {.y = y.view(), .rstd = rstd.view(), .x = x.read(), .gain = gain.read(), .eps = eps});
              }),
              "head_norm: x is [4, 24], but must be [tokens, heads * head_dim] with head_dim 7 (the length of gain, "
              "--model.head_dim)");
    Tensor<float> gain6(6);
    EXPECT_EQ(error_of([&] {
                  head_norm_forward<float>(
                      stream_of(1),
                      {.y = y.view(), .rstd = rstd.view(), .x = x.read(), .gain = gain6.read(), .eps = eps});
              }),
              "head_norm: rstd is [4, 3], but must be [4, 4]");
    Tensor<float> dgain(8), gain8(8);
    Scratch scratch(8);
    EXPECT_EQ(error_of([&] {
                  head_norm_backward<float>(stream_of(1), {.dx = y.view(),
                                                           .dgain = dgain.view(),
                                                           .scratch = scratch.view(),
                                                           .dy = x.read(),
                                                           .x = x.read(),
                                                           .gain = gain8.read(),
                                                           .rstd = rstd.read()});
              }),
              "head_norm: scratch has 8 bytes, but 4 tokens of head_dim 8 need 32; reserve "
              "head_norm_scratch_bytes(tokens, head_dim)");
}

}  // namespace
}  // namespace keel
