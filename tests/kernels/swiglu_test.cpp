#include "kernels/swiglu.h"

#include <gtest/gtest.h>

#include "tests/kernels/golden.h"
#include "tests/kernels/reference.h"
#include "tests/kernels/tensor.h"

namespace keel {
namespace {

// exp to 1.1 ulp, a sum, a quotient, and up to four products and differences. For bf16 exp errs by 2^-16.5 (simd.h), in
// units of a float's rounding 2^7.5; 1 - sigmoid, where it is formed, by as much of itself.
template <class T> constexpr int steps = std::is_same_v<T, bf16> ? 8 + 182 : 8;

template <class T> std::vector<Values> run(Stream& stream, const Values& gate_up, const Values& dy, std::int64_t tokens,
                                           std::int64_t ffn, bool in_place) {
    Tensor<T> x(gate_up, tokens, 2 * ffn), d(dy, tokens, ffn), y(tokens, ffn), apart(tokens, 2 * ffn);
    swiglu_forward<T>(stream, {.y = y.view(), .gate_up = x.read()});
    Tensor<T>& dx = in_place ? x : apart;
    swiglu_backward<T>(stream, {.dgate_up = dx.view(), .dy = d.read(), .gate_up = x.read()});
    EXPECT_TRUE(y.untouched() && dx.untouched());
    return {y.values(), dx.values()};
}

template <class T> void matches(const Values& gate_up, const Values& dy, std::int64_t tokens, std::int64_t ffn) {
    SCOPED_TRACE(testing::Message() << tokens << " x " << ffn);
    const auto got = on_any_threads([&](Stream& s) { return run<T>(s, gate_up, dy, tokens, ffn, false); });
    const auto in_place = run<T>(stream_of(2), gate_up, dy, tokens, ffn, true);
    EXPECT_TRUE(same_bits(in_place[1], got[1]));
    const auto n = static_cast<std::size_t>(ffn);
    const auto x = ref::cast<float>(gate_up), d = ref::cast<float>(dy);
    expect_close<T>("y", got[0], ref::swiglu<double, double>(gate_up, n), widen(ref::swiglu<float, T>(x, n)), steps<T>);
    expect_close<T>("dgate_up", got[1], ref::swiglu_backward<double, double>(dy, gate_up, n),
                    widen(ref::swiglu_backward<float, T>(d, x, n)), steps<T>);
}

template <class T> void matches_everywhere() {
    for (const std::int64_t tokens : {1, 2, 7, 64, 65, 257})
        for (const std::int64_t ffn : {1, 8, 16, 31, 288, 513})
            matches<T>(random_values<T>("gate_up", tokens * 2 * ffn, 3), random_values<T>("dy", tokens * ffn), tokens,
                       ffn);
    const Golden g("ops/swiglu");
    matches<T>(g["gate_up"], g["dy"], g.dim("y", 0), g.dim("y", 1));
}
TEST(Swiglu, MatchesTheReferenceInFloat) { matches_everywhere<float>(); }
TEST(Swiglu, MatchesTheReferenceInBf16) { matches_everywhere<bf16>(); }
TEST(Swiglu, MatchesTheReferenceInF16) { matches_everywhere<f16>(); }

// Where exp(-gate) overflows, silu is 0 and so is its slope; where it underflows, silu is gate. NaN comes through.
template <class T> void saturates() {
    const auto got = run<T>(stream_of(1), {-1000, -90, 90, 1000, 1, 1, 1, 1}, {1, 1, 1, 1}, 1, 4, false);
    EXPECT_EQ(got[0], (Values{0, 0, 90, 1000}));
    EXPECT_EQ(got[1], (Values{0, 0, 1, 1, 0, 0, 90, 1000}));
    EXPECT_TRUE(std::isnan(run<T>(stream_of(1), {std::nan(""), 1}, {1}, 1, 1, false)[0][0]));
}
TEST(Swiglu, SaturatesWithoutNaN) {
    saturates<float>();
    saturates<bf16>();
}

TEST(Swiglu, RefusesShapesThatDisagree) {
    Tensor<float> x(2, 6), y(2, 4), odd(2, 5);
    EXPECT_EQ(error_of([&] { swiglu_forward<float>(stream_of(1), {.y = y.view(), .gate_up = x.read()}); }),
              "swiglu: y is [2, 4], but must be [2, 3]");
    EXPECT_EQ(error_of([&] { swiglu_forward<float>(stream_of(1), {.y = y.view(), .gate_up = odd.read()}); }),
              "swiglu: gate_up is [2, 5], but must be [tokens, 2 * ffn]: gate, then up");
    EXPECT_EQ(error_of([&] {
                  swiglu_backward<float>(stream_of(1), {.dgate_up = x.view(), .dy = y.read(), .gate_up = x.read()});
              }),
              "swiglu: dy is [2, 4], but must be [2, 3]");
}

}  // namespace
}  // namespace keel
