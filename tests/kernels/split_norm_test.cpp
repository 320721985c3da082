#include "kernels/split_norm.h"

#include <gtest/gtest.h>

#include <memory>

#include "tests/kernels/reference.h"
#include "tests/kernels/tensor.h"

namespace keel {
namespace {

constexpr float eps = 1e-5f;
constexpr int steps = 8;  // as in rmsnorm_test.cpp

// A row in `parts` ranks' parts, each in strided memory of its own, is the row in one: sums meet between the steps.
template <class T>
void split_norm_matches(int parts) {
    for (const std::int64_t tokens : {1, 7, 65, 257})
        for (const std::int64_t columns : {8, 31, 64, 200}) {
            SCOPED_TRACE(testing::Message() << tokens << " x " << columns << " in " << parts);
            const std::int64_t width = parts * columns;
            const Values x = random_values<T>("x", tokens * width), dy = random_values<T>("dy", tokens * width),
                         gain = random_values<T>("gain", width, 0.3, 1);
            const auto part = [&](const Values& whole, int p) {
                Values out;
                for (std::int64_t t = 0; t < static_cast<std::int64_t>(whole.size()) / width; ++t)
                    out.insert(out.end(), whole.begin() + t * width + p * columns,
                               whole.begin() + t * width + (p + 1) * columns);
                return out;
            };
            const auto run = [&](Stream& stream, bool in_place) {
                struct Part {
                    Tensor<T> x, dy, gain, y, dx;
                    Tensor<float> rstd, sums, dgain;
                    Scratch scratch;
                };
                std::vector<std::unique_ptr<Part>> ranks;
                for (int p = 0; p < parts; ++p) {
                    ranks.push_back(std::unique_ptr<Part>(
                        new Part{Tensor<T>(part(x, p), tokens, columns, columns + 5),
                                 Tensor<T>(part(dy, p), tokens, columns, columns + 1), Tensor<T>(part(gain, p)),
                                 Tensor<T>(tokens, columns, columns + 2), Tensor<T>(tokens, columns, columns),
                                 Tensor<float>(tokens), Tensor<float>(tokens), Tensor<float>(columns),
                                 Scratch(split_norm_scratch_bytes(tokens, columns))}));
                    ranks.back()->dgain.fill(1);
                }
                const auto meet = [&](Tensor<float> Part::* which) {
                    for (std::int64_t t = 0; t < tokens; ++t) {
                        float total = 0;
                        for (const auto& r : ranks) total += ((*r).*which).view()[t];
                        for (const auto& r : ranks) ((*r).*which).view()[t] = total;
                    }
                };
                for (const auto& r : ranks) split_norm_squares<T>(stream, {.sums = r->rstd.view(), .x = r->x.read()});
                stream.synchronize();
                meet(&Part::rstd);
                for (const auto& r : ranks)
                    split_norm_forward<T>(stream, {.y = r->y.view(),
                                                   .rstd = r->rstd.view(),
                                                   .x = r->x.read(),
                                                   .gain = r->gain.read(),
                                                   .width = width,
                                                   .eps = eps});
                for (const auto& r : ranks)
                    split_norm_dots<T>(stream, {.sums = r->sums.view(),
                                                .dy = r->dy.read(),
                                                .x = r->x.read(),
                                                .gain = r->gain.read(),
                                                .rstd = r->rstd.read()});
                stream.synchronize();
                meet(&Part::sums);
                std::vector<Values> out(4);
                for (const auto& r : ranks) {
                    Tensor<T>& dx = in_place ? r->dy : r->dx;
                    split_norm_backward<T>(stream, {.dx = dx.view(),
                                                    .dgain = r->dgain.view(),
                                                    .scratch = r->scratch.view(),
                                                    .dy = r->dy.read(),
                                                    .x = r->x.read(),
                                                    .gain = r->gain.read(),
                                                    .rstd = r->rstd.read(),
                                                    .sums = r->sums.read(),
                                                    .width = width});
                    stream.synchronize();
                    EXPECT_TRUE(r->x.untouched() && r->y.untouched() && dx.untouched() && r->rstd.untouched() &&
                                r->sums.untouched() && r->dgain.untouched() && r->scratch.untouched());
                    const Values parts_of[] = {r->y.values(), r->rstd.values(), dx.values(), r->dgain.values()};
                    for (std::size_t i = 0; i < out.size(); ++i)
                        out[i].insert(out[i].end(), parts_of[i].begin(), parts_of[i].end());
                }
                return out;
            };
            const auto got = on_any_threads([&](Stream& s) { return run(s, false); });
            const auto in_place = run(stream_of(2), true);
            for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(same_bits(in_place[i], got[i])) << i;
            const auto want = ref::rmsnorm<double, double>(x, gain, static_cast<double>(eps));
            const auto naive =
                ref::rmsnorm<float, T>(ref::cast<float>(x), ref::cast<float>(gain), static_cast<double>(eps));
            const auto dwant = ref::rmsnorm_backward<double, double>(dy, x, gain, want.rstd, {}, 1);
            const auto dnaive = ref::rmsnorm_backward<float, T>(ref::cast<float>(dy), ref::cast<float>(x),
                                                                ref::cast<float>(gain), naive.rstd, {}, 1);
            const auto in_parts = [&](const Values& whole) {  // as `out` has them
                Values out;
                for (int p = 0; p < parts; ++p) {
                    const Values one = part(whole, p);
                    out.insert(out.end(), one.begin(), one.end());
                }
                return out;
            };
            const auto on_every_rank = [&](const Values& rows) {
                Values out;
                for (int p = 0; p < parts; ++p) out.insert(out.end(), rows.begin(), rows.end());
                return out;
            };
            expect_close<T>("y", got[0], in_parts(want.y), in_parts(widen(naive.y)), steps);
            expect_close<float>("rstd", got[1], on_every_rank(want.rstd), on_every_rank(widen(naive.rstd)), steps);
            expect_close<T>("dx", got[2], in_parts(dwant.dx), in_parts(widen(dnaive.dx)), steps);
            expect_close<float>("dgain", got[3], in_parts(dwant.dgain), in_parts(widen(dnaive.dgain)), steps);
        }
}
TEST(SplitNorm, OfOneRankIsTheNormOfARowInFloat) { split_norm_matches<float>(1); }
TEST(SplitNorm, OfOneRankIsTheNormOfARowInBf16) { split_norm_matches<bf16>(1); }
TEST(SplitNorm, OfThreeRanksIsTheNormOfTheWholeRowInFloat) { split_norm_matches<float>(3); }
TEST(SplitNorm, OfThreeRanksIsTheNormOfTheWholeRowInBf16) { split_norm_matches<bf16>(3); }
TEST(SplitNorm, OfThreeRanksIsTheNormOfTheWholeRowInF16) { split_norm_matches<f16>(3); }

TEST(SplitNorm, RefusesShapesThatDisagree) {
    Tensor<float> x(4, 24), gain(24), y(4, 24), rstd(4), few(3);
    const auto forward = [&](View<float> r, std::int64_t width) {
        split_norm_forward<float>(
            stream_of(1), {.y = y.view(), .rstd = r, .x = x.read(), .gain = gain.read(), .width = width, .eps = eps});
    };
    EXPECT_EQ(error_of([&] { forward(few.view(), 24); }), "split_norm: rstd is [3], but must be [4]");
    EXPECT_EQ(error_of([&] { forward(rstd.view(), 20); }),
              "split_norm: the whole row has 20 columns, but this part of it has 24");
    Tensor<float> dgain(24);
    Scratch scratch(8);
    EXPECT_EQ(
        error_of([&] {
            split_norm_backward<float>(stream_of(1), {.dx = y.view(),
                                                      .dgain = dgain.view(),
                                                      .scratch = scratch.view(),
                                                      .dy = x.read(),
                                                      .x = x.read(),
                                                      .gain = gain.read(),
                                                      .rstd = rstd.read(),
                                                      .sums = rstd.read(),
                                                      .width = 24});
        }),
        "split_norm: scratch has 8 bytes, but 4 tokens of 24 columns need 96; reserve split_norm_scratch_bytes(tokens, "
        "columns)");
}

}  // namespace
}  // namespace keel
