// Ranks side by side: whose time is least and most, and who is slow for long.
#include "engine/observe/rank_times.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "comm/threads.h"
#include "engine/observe/timeline.h"

using namespace keel;

namespace {

Spread of(std::vector<double> values) {
    std::vector<double> scratch(values.size());
    return spread(values, scratch);
}

// Which ranks are told of, as each round of rates is looked at.
std::vector<std::string> told(const std::vector<std::vector<double>>& rounds, double factor, int times) {
    Stragglers stragglers(rounds[0].size(), factor, times);
    std::vector<std::string> out;
    for (std::size_t i = 0; i < rounds.size(); ++i)
        stragglers.look(rounds[i], [&](int rank, double share) {
            out.push_back(std::to_string(i) + ": " + std::to_string(rank) + " at " + std::to_string(share));
        });
    return out;
}

}  // namespace

TEST(Spread, NamesTheRanksOfTheLeastAndTheMostAndCountsZeros) {
    const Spread s = of({3, 0, 7, 4});
    EXPECT_EQ(s.min, 0);
    EXPECT_EQ(s.min_rank, 1);
    EXPECT_EQ(s.max, 7);
    EXPECT_EQ(s.max_rank, 2);
    EXPECT_EQ(s.median, 3.5);
    EXPECT_EQ(of({5}).median, 5);
    EXPECT_EQ(of({9, 1, 2}).median, 2);
}

// Two ranks whose programs began at 100.0 and 103.5 s: the first waited 0, and that is the least.
TEST(Spread, OfStartUpKeepsTheZero) {
    const Spread s = of({0, 3500});
    EXPECT_EQ(s.min, 0);
    EXPECT_EQ(s.max, 3500);
    EXPECT_EQ(s.max_rank, 1);
}

TEST(Stragglers, AreToldOnceAfterSoManyTimesInARow) {
    const std::vector<double> slow{100, 100, 60, 100}, fine{100, 100, 70, 100};
    EXPECT_EQ(told({slow, slow, slow, slow, slow}, 1.5, 3), (std::vector<std::string>{"2: 2 at 0.600000"}));
    EXPECT_EQ(told({slow, slow, fine, slow, slow, fine}, 1.5, 3), std::vector<std::string>{});
    EXPECT_EQ(told({slow, slow, slow, fine, slow, slow, slow}, 1.5, 3).size(), 1u);
}

TEST(Stragglers, ARankWithoutWorkIsNotASlowOne) {
    EXPECT_EQ(told({{100, 0, 100}, {100, 0, 100}}, 1.5, 1), std::vector<std::string>{});
}

// A log interval of 10 steps in which two ranks worked 1.0 and 1.2 s: 100 and 120 ms a step.
TEST(RankTimes, AreGatheredPerStepAndPerRank) {
    std::vector<nlohmann::json> records(2);
    std::string line;
    run_threads(2, {.deadline_s = 60}, [&](World& world) {
        const auto group = world.everyone();
        Stream stream(1);
        const Clock::time_point t0 = Clock::now();
        Ledger ledger(t0);
        ledger.enter(Phase::idle, t0);
        RankTimes times(*group, stream, "host", ledger, nullptr, Flops());
        Clock::time_point at = Clock::now();
        for (int i = 0; i < 10; ++i) {  // in a clock of its own: seconds need not pass
            ledger.enter(Phase::compute, at);
            at += std::chrono::milliseconds(world.rank() == 0 ? 100 : 120);
            ledger.enter(Phase::idle, at);
            times.add({.loss = {}, .tokens = 10});
        }
        times.collect();
        char text[512];
        format_ranks(text, 10, times);
        JsonLine record = ranks_record(10, times, false);
        records[static_cast<std::size_t>(world.rank())] = nlohmann::json::parse(record.finish());
        if (world.rank() == 0) line = text;
    });
    for (const auto& r : records) {
        EXPECT_EQ(r["steps"], 10);
        EXPECT_NEAR(r["work_ms_min"].get<double>(), 100, 1e-3);
        EXPECT_NEAR(r["work_ms_max"].get<double>(), 120, 1e-3);
        EXPECT_NEAR(r["work_ms_median"].get<double>(), 110, 1e-3);
        EXPECT_EQ(r["work_ms_min_rank"], 0);
        EXPECT_EQ(r["work_ms_max_rank"], 1);
        EXPECT_EQ(r["communication_ms_max"], 0);
    }
    EXPECT_TRUE(line.starts_with("ranks step 10 work_ms 100 (0) 110 120 (1) GFLOP/s 0 (0) 0 0 (0) data_wait_ms "))
        << line;
    EXPECT_TRUE(line.ends_with("\n"));
}

TEST(RankTimes, ARecordFitsItsLineWhateverTheNumbersAre) {
    run_threads(2, {.deadline_s = 60}, [&](World& world) {
        const auto group = world.everyone();
        Stream stream(1);
        Ledger ledger(Clock::now());
        StepSpans spans(4);
        for (double& s : spans.seconds) s = 123456.789012;
        Flops flops;
        flops.per_token = 1.234567e15;
        RankTimes times(*group, stream, "host", ledger, &spans, flops);
        for (double& s : spans.seconds) s = -987654.321098;
        ledger.begin_earlier(1e6);
        times.add({.loss = {}, .tokens = 1'000'000});
        times.collect();
        const auto parsed =
            nlohmann::json::parse(ranks_record(std::numeric_limits<std::int64_t>::min(), times, true).finish());
        EXPECT_TRUE(parsed.contains("data_ms_max_rank"));
        EXPECT_TRUE(nlohmann::json::parse(rank_record(1, times).finish()).contains("idle_seconds"));
    });
}

TEST(StepSpans, AreCutWholeAndSummedByKind) {
    StepSpans spans(8);
    const Clock::time_point t0 = Clock::now();
    const auto at = [&](int ms) { return t0 + std::chrono::milliseconds(ms); };
    spans.here.add({"forward", 0, 0, at(0), at(10)});
    spans.here.add({"forward", 1, 0, at(10), at(25)});
    spans.beside.add({"reduce", 3, -1, at(5), at(9)});
    spans.cut();
    spans.here.add({"forward", 0, 0, at(40), at(41)});
    EXPECT_DOUBLE_EQ(spans.seconds[span_kind("forward")], 0.025);
    EXPECT_DOUBLE_EQ(spans.seconds[span_kind("reduce")], 0.004);
    EXPECT_EQ(spans.last_here.all().size(), 2u);
    EXPECT_EQ(spans.last_beside.all().size(), 1u);
    EXPECT_EQ(spans.here.all().size(), 1u);
    EXPECT_EQ(span_kind("nothing of this name"), span_names.size());
}

TEST(Timeline, SpansTravelAsText) {
    Spans spans;
    spans.reserve(4);
    const Clock::time_point t0 = Clock::now();
    spans.add({"backward", 7, 1, t0, t0 + std::chrono::milliseconds(3)});
    spans.add({"wait", -1, -1, t0 + std::chrono::milliseconds(3), t0 + std::chrono::milliseconds(5)});
    const Spans read = read_spans(spans_text(spans) + "99 0 0 1 1\nnoise");
    ASSERT_EQ(read.all().size(), 2u);
    EXPECT_STREQ(read.all()[0].name, "backward");
    EXPECT_EQ(read.all()[0].index, 7);
    EXPECT_EQ(read.all()[0].chunk, 1);
    const auto near = [](Clock::duration d, double ms) {
        EXPECT_NEAR(std::chrono::duration<double>(d).count(), 1e-3 * ms, 1e-6);
    };
    near(read.all()[0].end - read.all()[0].begin, 3);
    near(read.all()[1].begin - read.all()[0].begin, 3);  // the time of day in doubles: a quarter of a microsecond
    EXPECT_EQ(read_spans("").all().size(), 0u);
    const TimelineLane lane{"rank 0", &read};
    EXPECT_NE(timeline_svg({&lane, 1}).find("backward 7.1, 3.000 ms"), std::string::npos);
}
