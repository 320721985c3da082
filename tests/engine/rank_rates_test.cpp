// Ranks measured side by side when a run starts: which of them stand out, and what all of them say to it.
#include "engine/observe/rank_rates.h"

#include <gtest/gtest.h>

#include <mutex>

#include "comm/threads.h"
#include "kernels/base/error.h"
#include "kernels/base/random.h"

using namespace keel;

namespace {

std::vector<int> flagged(const std::vector<double>& values) {
    std::vector<int> ranks;
    for (const Outlier& o : outliers(values)) ranks.push_back(o.rank);
    return ranks;
}
using Ranks = std::vector<int>;

}  // namespace

// T15.3 of reference/behaviour.md: the median is 600, the median distance 2, so the limit is the tenth, 60.
TEST(Outliers, OfTheWorkedNumbersAreTheOneThatIsATenthBelow) {
    const std::vector<Outlier> found = outliers(std::vector<double>{600, 602, 598, 601, 520});
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].rank, 4);
    EXPECT_EQ(found[0].median, 600);
    EXPECT_NEAR(found[0].percent(), -13.3, 0.05);
}

TEST(Outliers, LieFartherThanATenthAndThanMostToEitherSide) {
    EXPECT_EQ(flagged({100, 100, 100, 111}), Ranks{3});
    EXPECT_EQ(flagged({100, 89, 100, 111}), (Ranks{1, 3}));
    EXPECT_EQ(flagged({100, 90, 100, 110}), Ranks{});           // a tenth is not more than a tenth
    EXPECT_EQ(flagged({100, 80, 120, 140, 60}), (Ranks{3, 4}));  // half of them are 20 away
}

TEST(Outliers, ThereAreNoneOfOneOfTwoAndOfWhatWasNotMeasured) {
    EXPECT_EQ(flagged({100}), Ranks{});
    const Random random(1, Purpose::test, "pairs");  // whose median is rounded
    for (std::uint64_t i = 0; i < 2000; ++i) EXPECT_EQ(flagged({random.uniform(2 * i), random.uniform(2 * i + 1)}), Ranks{});
    EXPECT_EQ(flagged({0, 0, 0}), Ranks{});
}

// What counts is the processors that ranks have together, and who is there to compete for them.
TEST(Workplaces, AreCrowdedWhereRanksHaveMoreThreadsThanProcessorsTogether) {
    const auto crowd = [](const std::vector<Workplace>& places) { return crowded(places); };
    EXPECT_TRUE(crowd({{"a", {0}, 1}, {"a", {0}, 1}}));                  // bound to one, as by taskset
    EXPECT_FALSE(crowd({{"a", {0}, 1}, {"b", {0}, 1}}));                 // of two hosts
    EXPECT_FALSE(crowd({{"a", {0, 1}, 1}, {"a", {2, 3}, 1}}));           // each to its own
    EXPECT_FALSE(crowd({{"a", {0, 1}, 1}, {"a", {0, 1}, 1}}));           // bound to none, and room for both
    EXPECT_TRUE(crowd({{"a", {0, 1}, 1}, {"a", {0, 1}, 1}, {"a", {0, 1}, 1}}));
    EXPECT_TRUE(crowd({{"a", {0, 1}, 2}, {"a", {0, 1}, 1}}));
    EXPECT_TRUE(crowd({{"a", {0, 1}, 2}, {"a", {2, 3}, 2}, {"a", {1, 2}, 1}}));   // two that the third joins
    EXPECT_FALSE(crowd({{"a", {0, 1}, 1}, {"a", {2, 3}, 2}, {"a", {1, 2}, 1}}));
    EXPECT_TRUE(crowd({{"a", {0}, 1}, {"a", {1}, 1}, {"b", {3}, 1}, {"b", {3}, 1}}));  // one host is enough
    EXPECT_FALSE(crowd({{"a", {0}, 8}}));                                // more threads than processors, but nobody else's
    EXPECT_FALSE(crowd({{"a", {}, 0}, {"a", {}, 0}}));                   // GPUs
}

TEST(RankRates, AreTheSameOnAllRanksAndSoIsTheEndOfARunThatAsksForEvenOnes) {
    const double tflops[] = {600, 602, 598, 601, 520};
    std::mutex mutex;
    int failed = 0;
    run_threads(5, {.deadline_s = 100}, [&](World& world) {
        const auto group = world.everyone();
        Stream stream(1);
        const double own = 1e12 * tflops[world.rank()];
        const std::vector<Workplace> places =
            gather_workplaces(*group, {concat("node", world.rank()), {world.rank(), 300}, 2, 8192 >> world.rank()});
        const RankRates rates = gather_rates(*group, stream, places, own);
        const RankRates shared = gather_rates(*group, stream, gather_workplaces(*group, {world.host(), {3}, 1, 1024}), own);
        const std::lock_guard lock(mutex);
        EXPECT_EQ(places[3].host, "node3");
        EXPECT_EQ(places[3].processors, (std::vector{3, 300}));
        EXPECT_EQ(places[3].threads, 2);
        EXPECT_EQ(least_product(places), 512);  // one size for all, or the sizes would be compared
        EXPECT_EQ(rates.sum(), 2921e12);
        ASSERT_EQ(rates.uneven().size(), 1u);
        EXPECT_EQ(uneven_text(rates, rates.uneven()[0]), "rank 4 on node4 reaches 520 TFLOP/s in matrix products, 13.3 % less than the "
                                                         "median rank, which reaches 600");
        EXPECT_STREQ(uneven_record(rates, rates.uneven()[0]).finish(),
                     "{\"event\":\"uneven\",\"rank\":4,\"host\":\"node4\",\"matmul_peak\":5.2e+14,\"percent\":-13.3}\n");
        try {
            expect_even(rates);
        } catch (const Error& e) {
            ++failed;
            EXPECT_EQ(e.code(), ExitCode::device);
            EXPECT_TRUE(std::string(e.what()).starts_with("ranks are not even (--watch.even): rank 4 on node4 reaches")) << e.what();
            EXPECT_NE(std::string(e.what()).find("--watch.even false"), std::string::npos) << e.what();
        }
        EXPECT_TRUE(shared.uneven().empty());  // where ranks share a processor, luck decides
        EXPECT_EQ(expect_even(shared), "--watch.even compares nothing here: ranks share processors, and luck would decide");
    });
    EXPECT_EQ(failed, 5);
}

TEST(RankRates, ThatCannotStandOutAreSaidToBeComparedWithNothing) {
    EXPECT_EQ(expect_even({.flops_per_second = {6, 6, 6}, .hosts = {"a", "a", "a"}}), "");
    EXPECT_EQ(expect_even({.flops_per_second = {6, 9}, .hosts = {"a", "a"}}),
              "--watch.even compares nothing here: of fewer than three ranks none stands out");
    EXPECT_EQ(expect_even({.flops_per_second = {0, 0, 0}, .hosts = {"a", "a", "a"}}),
              "--watch.even compares nothing here: seconds of a simulated GPU are no device's");
}
