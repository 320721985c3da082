#include "data/order.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/data/helpers.h"

namespace keel {
namespace {

TEST(Permutation, VisitsEveryElementOnceForEverySize) {
    for (std::int64_t size : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 63, 64, 65, 100, 127, 255, 257, 1000, 4096, 4097, 65537}) {
        for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
            const Permutation order(size, 42, 0, epoch);
            std::vector<bool> seen(static_cast<std::size_t>(size));
            for (std::int64_t i = 0; i < size; ++i) {
                const std::int64_t at = order(i);
                ASSERT_TRUE(at >= 0 && at < size && !seen[static_cast<std::size_t>(at)]) << size << " at " << i;
                seen[static_cast<std::size_t>(at)] = true;
            }
        }
    }
}

TEST(Permutation, SeedStreamAndEpochEachGiveAnotherOrder) {
    const auto first = [](std::uint64_t seed, std::uint64_t stream, std::int64_t epoch) {
        const Permutation order(1000, seed, stream, epoch);
        std::vector<std::int64_t> out;
        for (std::int64_t i = 0; i < 20; ++i) out.push_back(order(i));
        return out;
    };
    const auto base = first(1, 0, 0);
    EXPECT_EQ(first(1, 0, 0), base);
    EXPECT_NE(first(2, 0, 0), base);
    EXPECT_NE(first(1, 1, 0), base);
    EXPECT_NE(first(1, 0, 1), base);
}

TEST(Permutation, LooksRandom) {
    // Mean distance of an element from its place is n/3 in a random permutation, with standard deviation about
    // n * sqrt(2/45/n); the bound is six of them. Fixed points are Poisson with mean 1: more than 9 has odds of 1e-7.
    const std::int64_t n = 10000;
    for (const std::uint64_t seed : {1, 2, 3}) {
        const Permutation order(n, seed, 0, 0);
        double distance = 0;
        int fixed = 0;
        for (std::int64_t i = 0; i < n; ++i) {
            distance += static_cast<double>(std::abs(order(i) - i));
            fixed += order(i) == i ? 1 : 0;
        }
        const double size = static_cast<double>(n);
        EXPECT_NEAR(distance / size, size / 3, 6 * size * std::sqrt(2.0 / 45.0 / size));
        EXPECT_LE(fixed, 9);
    }
}

TEST(Permutation, ReachesFarIntoHugeSizesAndRefusesBeyondThem) {
    const std::int64_t size = (std::int64_t{1} << 60) + 7;
    const Permutation order(size, 1, 0, 0);
    EXPECT_LT(order(size - 1), size);
    EXPECT_SAYS(message_of([&] { order(size); }), "element");
    EXPECT_SAYS(message_of([&] { order(-1); }), "element -1");
    EXPECT_SAYS(message_of([] { Permutation(0, 1, 0, 0); }), "0 elements");
}

// Every prefix of every source within one of its share.
void expect_fair(const std::vector<double>& weights, std::int64_t draws) {
    const Blend blend(weights);
    double sum = 0;
    for (const double w : weights) sum += w;
    std::vector<std::int64_t> counts(weights.size(), 0);
    for (std::int64_t n = 0; n < draws; ++n) {
        const auto [source, index] = blend(n);
        ASSERT_EQ(index, counts[static_cast<std::size_t>(source)]++) << "draw " << n;
        for (std::size_t d = 0; d < weights.size(); ++d)
            ASSERT_LT(std::abs(static_cast<double>(counts[d]) - weights[d] / sum * static_cast<double>(n + 1)), 1.0)
                << "source " << d << " of " << weights.size() << " after " << n + 1 << " draws";
    }
}

TEST(Blend, CountsAreWithinOneOfTheWeightAtEveryPrefix) {
    expect_fair({1}, 100);
    expect_fair({0.7, 0.3}, 1000);
    expect_fair({0.5, 0.3, 0.2}, 1000);
    expect_fair({0.001, 0.999}, 5000);
    expect_fair({1, 1, 1}, 1000);
    expect_fair({1.0 / 3, 2.0 / 3}, 1000);
    expect_fair({0.123456, 0.876544}, 200000);
    expect_fair({3, 1, 2}, 100);
    expect_fair({30, 1, 1, 1, 1, 1, 1, 1, 1, 1}, 1000);
    expect_fair({std::sqrt(2.0), 1, M_PI}, 100000);
    const Random random(9, Purpose::test, "blend");
    for (std::uint64_t i = 0; i < 30; ++i) {
        std::vector<double> weights;
        for (std::uint64_t d = 0; d < 2 + i % 9; ++d) weights.push_back(0.01 * static_cast<double>(1 + random.bits64(i * 16 + d) % 97));
        expect_fair(weights, 3000);
    }
}

TEST(Blend, IsMetExactlyFarOutWhenWeightsAreFractions) {
    const Blend blend({0.7, 0.2, 0.1});
    EXPECT_EQ(blend.period(), 10);
    const std::int64_t n = 1'000'000'000'000;
    EXPECT_EQ(blend.count(0, n), 7 * n / 10);
    EXPECT_EQ(blend.count(1, n), 2 * n / 10);
    EXPECT_EQ(blend(n).index, blend.count(blend(n).source, n));
    EXPECT_EQ(Blend({1.0 / 3, 2.0 / 3}).period(), 3);
    EXPECT_EQ(Blend({0.123456, 0.876544}).period(), 15625);
}

TEST(Blend, ASmallSourceIsNotDrawnBeforeItsTurn) {
    // With weights 0.001 and 0.999 the small source gets draw 0 of each thousand windows at most, never two in a row.
    const Blend blend({0.001, 0.999});
    EXPECT_EQ(blend.count(0, 1000), 1);
    EXPECT_EQ(blend.count(0, 2000), 2);
}

TEST(Blend, RefusesWeightsThatCannotBe) {
    EXPECT_SAYS(message_of([] { Blend({0.5, 0}); }), "blend weight is 0");
    EXPECT_SAYS(message_of([] { Blend({0.5, -1}); }), "-1");
    EXPECT_SAYS(message_of([] { Blend({0.5, NAN}); }), "nan");
    EXPECT_SAYS(message_of([] { Blend({1, 1e-9}); }), "less than a millionth");
    EXPECT_SAYS(message_of([] { Blend({}); }), "0 sources");
}

}  // namespace
}  // namespace keel
