#include "kernels/rope.h"

#include <gtest/gtest.h>

#include "tests/kernels/golden.h"
#include "tests/kernels/reference.h"
#include "tests/kernels/tensor.h"

namespace keel {
namespace {

RopeConfig llama3(double base, double factor) {
    return {.base = base, .scaling = RopeScaling::llama3, .factor = factor, .original_max_position = 8192};
}
const RopeConfig yarn{.base = 1e6, .scaling = RopeScaling::yarn, .factor = 4, .original_max_position = 32768};

void expect_frequencies(const RopeConfig& config, std::int64_t dim, std::vector<std::pair<std::int64_t, double>> want) {
    for (const auto& [i, w] : want) EXPECT_NEAR(rope_frequency(config, dim, i) / w, 1, 1e-9) << "pair " << i;
}

// Ten digits are given, so 1e-9 is their last place.
TEST(Rope, Llama3ScalingIsThatOfReleasedModels) {
    expect_frequencies(llama3(5e5, 8), 128,
                       {{1, 8.146172339e-1},
                        {28, 3.211445995e-3},
                        {29, 2.166570764e-3},
                        {32, 5.248461610e-4},
                        {34, 1.785078128e-4},
                        {35, 9.556212354e-5},
                        {63, 3.068925989e-7}});
    expect_frequencies(llama3(5e5, 32), 64,
                       {{1, 6.636012377e-1},
                        {14, 3.211445995e-3},
                        {15, 1.290547928e-3},
                        {16, 4.295567966e-4},
                        {17, 9.708287803e-5},
                        {18, 1.946163818e-5},
                        {31, 9.418306725e-8}});
}

TEST(Rope, YarnScalingIsThatOfThePaper) {
    expect_frequencies(
        yarn, 128,
        {{23, 6.978305849e-3}, {24, 5.375321491e-3}, {32, 6.029411765e-4}, {40, 4.445698525e-5}, {63, 3.102344402e-7}});
    EXPECT_NEAR(rope_attention_factor(yarn), 1.138629436, 1e-9);
    RopeConfig fixed = yarn;
    fixed.attention_factor = 1.25;
    EXPECT_EQ(rope_attention_factor(fixed), 1.25);
    EXPECT_EQ(rope_attention_factor({}), 1.0);
}

// Every pair of every scaling against float64; the exponent's own rounding times ln(1e6) = 14 gives a few 1e-15.
TEST(Rope, FrequenciesAreTheGolden) {
    const Golden g("ops/rope");
    const Values& c = g["configs"];
    for (std::size_t k = 0; k < static_cast<std::size_t>(g.dim("configs", 0)); ++k) {
        const RopeConfig config{.base = c[9 * k],
                                .scaling = static_cast<RopeScaling>(c[9 * k + 2]),
                                .factor = c[9 * k + 3],
                                .original_max_position = c[9 * k + 4],
                                .low_freq_factor = c[9 * k + 5],
                                .high_freq_factor = c[9 * k + 6],
                                .beta_fast = c[9 * k + 7],
                                .beta_slow = c[9 * k + 8]};
        const Values& want = g["frequency" + std::to_string(k)];
        const auto dim = static_cast<std::int64_t>(c[9 * k + 1]);
        ASSERT_EQ(want.size(), static_cast<std::size_t>(dim / 2));
        for (std::int64_t i = 0; i < dim / 2; ++i)
            EXPECT_NEAR(rope_frequency(config, dim, i) / want[static_cast<std::size_t>(i)], 1, 1e-13) << k << " " << i;
    }
}

// A float angle would be wrong in the fourth digit at the far end of a 128 k context: the table is rounded once.
TEST(Rope, TableIsRoundedOnceFromDouble) {
    const std::int64_t positions = 131072, dim = 8;
    std::vector<float> memory(static_cast<std::size_t>(positions * dim));
    rope_table(yarn, View<float>(memory.data(), {positions, dim}));
    for (const std::int64_t p : {std::int64_t{0}, std::int64_t{257}, std::int64_t{15962}, positions - 1})
        for (std::int64_t i = 0; i < dim / 2; ++i) {
            const double angle = static_cast<double>(p) * rope_frequency(yarn, dim, i),
                         scale = rope_attention_factor(yarn);
            EXPECT_EQ(memory[static_cast<std::size_t>(p * dim + i)], static_cast<float>(scale * std::cos(angle)));
            EXPECT_EQ(memory[static_cast<std::size_t>(p * dim + dim / 2 + i)],
                      static_cast<float>(scale * std::sin(angle)));
        }
}

struct Table {
    std::vector<float> memory;
    View<const float> view;
    Table(const RopeConfig& config, std::int64_t positions, std::int64_t dim)
        : memory(static_cast<std::size_t>(positions * dim)), view(memory.data(), {positions, dim}) {
        rope_table(config, View<float>(memory.data(), {positions, dim}));
    }
};

TEST(Rope, IsHalfSplitAndAnInterleavedOneWouldBeSeen) {
    const Table table({}, 4, 8);
    Tensor<float> x(Values{1, 2, 3, 4, 5, 6, 7, 8}, 1, 8);
    Tensor<std::int32_t> positions(Values{3});
    rope_forward<float>(stream_of(1),
                        {.x = x.view(), .table = table.view, .positions = positions.read(), .head_dim = 8});
    const Values half_split{-1.695592537, 0.137551738, 2.788681600, 3.975982036,
                            -4.808842475, 6.323059348, 7.086836737, 8.011963982};
    const Values interleaved{-1.272232513, -1.838864985, 1.683928641, 4.707906576,
                             4.817777168,  6.147277704,  6.975968536, 8.020963969};
    EXPECT_LE(worst_error(x.values(), half_split), 4 * unit_roundoff<float>);  // cos, sin, product, sum
    EXPECT_GT(worst_error(interleaved, half_split), 0.1);
}

struct Shape {
    std::int64_t heads, head_dim, rotary_dim;
};

template <class T> void matches() {
    for (const std::int64_t tokens : {1, 2, 7, 64, 65, 257})
        for (const Shape n :
             {Shape{1, 8, 8}, {2, 12, 8}, {3, 48, 48}, {2, 31, 30}, {4, 64, 64}, {1, 128, 32}, {2, 256, 256}}) {
            SCOPED_TRACE(testing::Message()
                         << tokens << " x " << n.heads << " x " << n.head_dim << "/" << n.rotary_dim);
            const std::int64_t width = n.heads * n.head_dim;
            const Values x = random_values<T>("x", tokens * width);
            std::vector<std::int32_t> at(static_cast<std::size_t>(tokens));
            for (std::size_t t = 0; t < at.size(); ++t)
                at[t] = static_cast<std::int32_t>(t * 37 % 300);  // documents restart
            const Table table(yarn, 300, n.rotary_dim);
            const auto got = on_any_threads([&](Stream& stream) -> std::vector<Values> {
                Tensor<T> forward(x, tokens, width, width + 3), backward(x, tokens, width);
                Tensor<std::int32_t> positions(Values(at.begin(), at.end()));
                rope_forward<T>(
                    stream,
                    {.x = forward.view(), .table = table.view, .positions = positions.read(), .head_dim = n.head_dim});
                rope_backward<T>(
                    stream,
                    {.x = backward.view(), .table = table.view, .positions = positions.read(), .head_dim = n.head_dim});
                EXPECT_TRUE(forward.untouched() && backward.untouched());
                return {forward.values(), backward.values()};
            });
            std::vector<double> frequency;
            for (std::int64_t i = 0; i < n.rotary_dim / 2; ++i)
                frequency.push_back(rope_frequency(yarn, n.rotary_dim, i));
            const auto dim = static_cast<std::size_t>(n.head_dim);
            const double scale = rope_attention_factor(yarn);
            for (const int sign : {1, -1}) {
                const auto want = ref::rope<double, double>(x, at, frequency, dim, sign, scale);
                const auto naive = ref::rope<float, T>(ref::cast<float>(x), at, frequency, dim, sign, scale);
                expect_close<T>(sign > 0 ? "forward" : "backward", got[sign > 0 ? 0 : 1], want, widen(naive), 4);
            }
        }
}
TEST(Rope, RotatesForwardAndBackInFloat) { matches<float>(); }
TEST(Rope, RotatesForwardAndBackInBf16) { matches<bf16>(); }
TEST(Rope, RotatesForwardAndBackInF16) { matches<f16>(); }

// Each frequency has a divisor of its own; cos and sin of Phi-3's 128k files grow by sqrt(1 + ln 32 / ln 4096).
TEST(Rope, LongropeDividesEachFrequency) {
    RopeConfig c{
        .scaling = RopeScaling::longrope, .factor = 32, .original_max_position = 4096, .divisors = {1, 1.25, 4, 60}};
    for (std::int64_t i = 0; i < 4; ++i)
        EXPECT_NEAR(rope_frequency(c, 8, i),
                    std::pow(10.0, static_cast<double>(-i)) / c.divisors[static_cast<std::size_t>(i)], 1e-16);
    EXPECT_NEAR(rope_attention_factor(c), 1.1902380714238083, 1e-15);
    c.factor = 1;
    EXPECT_EQ(rope_attention_factor(c), 1);
    c.attention_factor = 1.5;
    EXPECT_EQ(rope_attention_factor(c), 1.5);
}

TEST(Rope, RefusesPositionsOutsideOfTheTable) {
    const Table table({}, 4, 8);
    Tensor<float> x(Values(16, 1.0), 2, 8);
    for (const double bad : {-1.0, 4.0}) {
        Tensor<std::int32_t> positions(Values{3, bad});
        EXPECT_EQ(error_of([&] {
                      rope_forward<float>(
                          stream_of(1),
                          {.x = x.view(), .table = table.view, .positions = positions.read(), .head_dim = 8});
                  }),
                  "rope: token 1 has position " + std::to_string(static_cast<int>(bad)) +
                      ", but the table holds positions 0…3; make the table as long as the longest sequence");
    }
    EXPECT_EQ(x.values(), Values(16, 1.0));  // refused before anything turned
    Tensor<std::int32_t> positions(Values{0, 0});
    EXPECT_EQ(error_of([&] {
                  rope_forward<float>(
                      stream_of(1), {.x = x.view(), .table = table.view, .positions = positions.read(), .head_dim = 4});
              }),
              "rope: table is [4, 8], but must be [positions, rotary_dim], rotary_dim even and at most head_dim 4");
    EXPECT_EQ(error_of([&] {
                  rope_forward<float>(
                      stream_of(1), {.x = x.view(), .table = table.view, .positions = positions.read(), .head_dim = 3});
              }),
              "rope: x is [2, 8], but must be [tokens, heads * head_dim] with head_dim 3");
}

TEST(Rope, RefusesScalingsThatMakeNoSense) {
    const auto error = [](const RopeConfig& c, std::int64_t dim = 8) {
        return error_of([&] { rope_frequency(c, dim, 0); });
    };
    EXPECT_EQ(error({}, 7), "rope: rotary_dim is 7, but pairs need an even number, at least 2");
    EXPECT_EQ(error({.base = 1}), "rope: base is 1, but must be above 1 (10000 is usual)");
    EXPECT_EQ(error({.scaling = RopeScaling::linear, .factor = 0}), "rope: scaling factor is 0, but must be positive");
    EXPECT_EQ(error({.scaling = RopeScaling::yarn, .factor = 2}),
              "rope: original_max_position is 0, but llama3, yarn and longrope scaling need the context length before "
              "scaling");
    EXPECT_EQ(error({.scaling = RopeScaling::llama3, .factor = 2, .original_max_position = 8, .low_freq_factor = 4}),
              "rope: low_freq_factor 4 and high_freq_factor 4 must be positive and rising");
    EXPECT_EQ(error({.scaling = RopeScaling::yarn, .factor = 2, .original_max_position = 8, .beta_fast = 1}),
              "rope: beta_fast 1 and beta_slow 1 must be positive and falling");
    EXPECT_EQ(error({.scaling = RopeScaling::longrope, .factor = 2, .original_max_position = 8, .divisors = {1, 1, 1}}),
              "rope: longrope has 3 divisors, but rotary_dim 8 makes 4 pairs");
}

}  // namespace
}  // namespace keel
