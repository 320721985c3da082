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

TEST(RankRates, AreTheSameOnAllRanksAndSoIsTheEndOfARunThatAsksForEvenOnes) {
    const double tflops[] = {600, 602, 598, 601, 520};
    std::mutex mutex;
    int failed = 0;
    run_threads(5, {.deadline_s = 100}, [&](World& world) {
        const auto group = world.everyone();
        Stream stream(1);
        const double own = 1e12 * tflops[world.rank()];
        const RankRates rates = gather_rates(*group, stream, concat("node", world.rank()), own, true);
        const RankRates shared = gather_rates(*group, stream, world.host(), own, world.rank() != 3);
        const std::lock_guard lock(mutex);
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
            EXPECT_NE(std::string(e.what()).find("rank 4 on node4 reaches"), std::string::npos) << e.what();
            EXPECT_NE(std::string(e.what()).find("--watch.even false"), std::string::npos) << e.what();
        }
        EXPECT_TRUE(shared.uneven().empty());  // where ranks share a processor, luck decides
        expect_even(shared);
    });
    EXPECT_EQ(failed, 5);
}
