// Integers add in any order: the ops behind exact gradient sums, against integers of 128 bits.
#include "kernels/exact_sum.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/base/random.h"

namespace keel {
namespace {

__extension__ typedef __int128 wide;

std::vector<float> numbers(std::int64_t n, double size, std::uint64_t seed) {
    const Random random(seed, Purpose::test, "exact");
    std::vector<float> x(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i)
        x[static_cast<std::size_t>(i)] = static_cast<float>(size * random.normal(static_cast<std::uint64_t>(i)));
    return x;
}
View<const float> view(const std::vector<float>& x) { return View<const float>(x.data(), {static_cast<std::int64_t>(x.size())}); }

TEST(ExactSum, IsTheSameInAnyOrderAndOnAnyNumberOfThreads) {
    constexpr std::int64_t n = 40'001;
    constexpr int scale = 30, addends = 9;
    std::vector<std::vector<float>> x;
    for (int i = 0; i < addends; ++i) x.push_back(numbers(n, std::pow(10.0, i - 6), static_cast<std::uint64_t>(i)));
    std::vector<std::int64_t> sums[2];
    for (int way = 0; way < 2; ++way) {
        Stream stream(1 + way);
        sums[way].assign(n, 0);
        for (int i = 0; i < addends; ++i)
            exact_add(stream, {.q = View<std::int64_t>(sums[way].data(), {n}), .x = view(x[static_cast<std::size_t>(way ? addends - 1 - i : i)]),
                               .scale = scale});
    }
    EXPECT_EQ(sums[0], sums[1]);
    for (std::size_t e = 0; e < n; e += 997) {
        std::int64_t want = 0;
        for (const auto& v : x) want += static_cast<std::int64_t>(std::nearbyint(static_cast<long double>(v[e]) * (1 << scale)));
        EXPECT_EQ(sums[0][e], want);
    }
    // Read back, it is within half a last place of a float and half a step of the scale per addend of the real sum.
    std::vector<float> y(n);
    Stream stream(2);
    exact_read(stream, {.y = View<float>(y.data(), {n}), .q = View<const std::int64_t>(sums[0].data(), {n}), .scale = scale});
    for (std::size_t e = 0; e < n; ++e) {
        double real = 0;
        for (const auto& v : x) real += static_cast<double>(v[e]);
        ASSERT_NEAR(y[e], real, std::ldexp(std::abs(real), -24) + addends * std::ldexp(0.5, -scale));
    }
}

TEST(ExactSum, MaximumIsOfTheSizeAndKeepsNaN) {
    Stream stream(2);
    std::vector<float> x = numbers(100'003, 1, 5);
    float most = 0;
    const auto measured = [&] {
        max_abs(stream, {.out = View<float>(&most, {1}), .x = view(x)});
        return most;
    };
    x[77] = -123.5f;
    EXPECT_EQ(measured(), 123.5f);
    x[5] = -std::numeric_limits<float>::infinity();
    EXPECT_EQ(measured(), std::numeric_limits<float>::infinity());
    x[99'999] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(std::isnan(measured()));
    x.assign(3, 0.0f);
    EXPECT_EQ(measured(), 0.0f);
}

TEST(ExactSum, OfSquaresIsTheIntegerSumHoweverItIsCut) {
    Stream stream(2);
    const std::vector<float> x = numbers(70'000, 3, 8);
    constexpr int scale = 50;  // the largest square is about 200, so 2^58
    wide want = 0;
    for (const float v : x) want += std::llrint(std::ldexp(double(v) * double(v), scale));
    for (const std::int64_t cut : {0, 1, 16'384, 16'385, 69'999}) {
        std::int64_t limbs[3] = {};
        const View<std::int64_t> to(limbs, {3});
        exact_squares(stream, {.limbs = to, .x = view(x).rows(0, cut), .scale = scale});
        exact_squares(stream, {.limbs = to, .x = view(x).rows(cut, 70'000 - cut), .scale = scale});
        EXPECT_TRUE(static_cast<wide>(limbs[0]) + (static_cast<wide>(limbs[1]) << 40) + (static_cast<wide>(limbs[2]) << 80) == want) << cut;
        EXPECT_EQ(exact_value(limbs, scale), std::ldexp(static_cast<double>(want), -scale));
    }
}

}  // namespace
}  // namespace keel
