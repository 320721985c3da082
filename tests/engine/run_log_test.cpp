// log.jsonl read back: what was lost is not counted twice, and every second of a run has an entry.
#include "engine/observe/run_log.h"

#include <gtest/gtest.h>

#include <cmath>

#include "engine/observe/compare.h"
#include "engine/observe/json_line.h"
#include "kernels/base/error.h"
#include "tests/temp_folder.h"

using namespace keel;

namespace {

std::string step(int number, double loss) {
    return JsonLine("step")
        .count("step", number)
        .count("samples", 8 * number)
        .count("tokens", 256 * number)
        .number("loss", loss)
        .boolean("applied", std::isfinite(loss))
        .number("seconds", 0.5)
        .number("flops", 1e9)
        .finish();
}
std::string start(int at) { return JsonLine("start").count("step", at).finish(); }

RunLog log_of(const std::string& lines) {
    const test::TempFolder folder;
    return read_log(folder.write("log.jsonl", lines));
}

// By phase: start-up, data wait, compute, communication, optimizer, evaluation, checkpoint, recovery, idle.
Session::Reading at(std::int64_t step, PhaseSeconds seconds) { return {step, seconds, sum(seconds)}; }

}  // namespace

TEST(RunLogFile, AResumeCutsAwayWhatWasLostWithTheSessionBefore) {
    const auto log =
        log_of(start(0) + step(1, 5) + step(2, 4) + step(3, 99) + step(4, 99) + start(2) + step(3, 3) + step(4, 2));
    ASSERT_EQ(log.loss.size(), 4u);
    EXPECT_EQ(log.loss[2].y, 3);
    EXPECT_EQ(log.loss[3].y, 2);
    EXPECT_EQ(log.sessions.size(), 2u);
    EXPECT_EQ(log.steps, 4);
    EXPECT_EQ(log.tokens, 1024);
    EXPECT_EQ(log.flops, 4e9);
}

// --ckpt.resume from another run's folder: its tokens are seen by the weights, but took none of the seconds here.
TEST(RunLogFile, TokensOfAnotherRunAreNoThroughputOfThisOne) {
    const std::string resumed = JsonLine("start").count("step", 100).count("tokens", 25600).finish();
    const std::string fell = JsonLine("start").count("step", 101).count("tokens", 25856).finish();
    const auto log = log_of(resumed + step(101, 5) + step(102, 99) + fell + step(102, 4));
    EXPECT_EQ(log.tokens, 26112);
    EXPECT_EQ(log.tokens_before, 25600);
    EXPECT_EQ(outcome(log).tokens, 26112);
    EXPECT_EQ(outcome(log).tokens_per_second, 512);  // in twice half a second
    EXPECT_EQ(outcome(log_of(resumed + step(101, 5) + start(0) + step(1, 5) + step(2, 4))).tokens_per_second, 512);  // from the beginning
}

TEST(RunLogFile, ADamagedLastLineAndForeignLinesAreIgnored) {
    const auto log = log_of(start(0) + step(1, 5) + "\n[1,2]\nnull\n{\"event\":5}\n" + step(2, 4).substr(0, 30));
    EXPECT_EQ(log.loss.size(), 1u);
}

TEST(RunLogFile, NotANumberComesBackAsOneAndCountsAsSkipped) {
    const auto log = log_of(start(0) + step(1, NAN) + step(2, INFINITY) + step(3, 2));
    EXPECT_TRUE(std::isnan(log.loss[0].y));
    EXPECT_TRUE(std::isinf(log.loss[1].y));
    EXPECT_EQ(log.skipped, 2);
}

TEST(RunLogFile, AStepThatWasToldToBeSkippedCountsToo) {
    const std::string skip = JsonLine("skip").count("step", 2).finish();
    EXPECT_EQ(log_of(start(0) + step(1, 2) + skip + step(3, 2)).skipped, 1);
}

TEST(RunLogFile, AnEvaluationThatWasLostIsNotTheLast) {
    const auto eval = [](int at, double loss) {
        return std::string(
            JsonLine("eval").count("step", at).number("loss", loss).number("perplexity", loss * 10).finish());
    };
    const auto log = log_of(start(0) + step(1, 5) + eval(1, 3) + step(2, 4) + eval(2, 9) + start(1));
    EXPECT_EQ(log.eval_loss.size(), 1u);
    EXPECT_EQ(log.last_perplexity, 30);
}

TEST(RunLogFile, AMissingLogIsAnErrorThatNamesIt) {
    try {
        read_log("/nowhere/log.jsonl");
        FAIL();
    } catch (const Error& error) {
        EXPECT_EQ(std::string(error.what()),
                  "report: /nowhere/log.jsonl cannot be read; a report is made from the log of its run");
    }
}

TEST(RunSeconds, OfOneSessionAreItsOwn) {
    const std::vector<Session> one{
        {.begin = 1000, .readings = {at(0, {2}), at(5, {2, 1, 20, 3, 4, 0, 1, 0, 0.5})}, .why = "done"}};
    EXPECT_EQ(run_seconds(one), one[0].readings.back().seconds);
    EXPECT_DOUBLE_EQ(goodput(run_seconds(one)), 24 / 31.5);
    EXPECT_EQ(run_seconds({}), PhaseSeconds{});
}

TEST(RunSeconds, TimeBetweenSessionsIsIdleWhereOneEndedByItselfAndRecoveryWhereItFell) {
    const std::vector<Session> three{
        {.begin = 1000, .readings = {at(0, {2}), at(5, {2, 0, 20, 0, 0, 0, 1, 0, 0})}, .why = "signal"},  // to 1023
        {.begin = 1100, .from = 5, .readings = {at(5, {3}), at(9, {3, 0, 16, 0, 0, 0, 0, 0, 1})}},        // to 1120
        {.begin = 1150,
         .from = 9,
         .readings = {at(9, {4}), at(10, {4, 0, 4, 0, 0, 0, 0, 0, 0})},
         .why = "done"}};  // to 1158
    const PhaseSeconds all = run_seconds(three);
    EXPECT_EQ(all, (PhaseSeconds{9, 0, 40, 0, 0, 0, 1, 1150 - 1120, 1 + 1100 - 1023}));
    EXPECT_EQ(sum(all), 1158 - 1000);
}

TEST(RunSeconds, StepsThatWereLostAreRecoveryToTheLastSecond) {
    const std::vector<Session> two{
        {.begin = 0,
         .readings = {at(0, {2}), at(4, {2, 0, 8}), at(5, {2, 1, 10}), at(6, {2, 1, 12, 0, 0, 0, 2})}},    // to 17
        {.begin = 30, .from = 4, .readings = {at(4, {3}), at(8, {3, 0, 8, 0, 0, 0, 1})}, .why = "done"}};  // to 42
    EXPECT_EQ(run_seconds(two), (PhaseSeconds{5, 0, 16, 0, 0, 0, 1, (17 - 10) + (30 - 17), 0}));
    EXPECT_EQ(sum(run_seconds(two)), 42);
}

TEST(RunSeconds, AClockThatWasSetBackMakesNoNegativeTime) {
    const std::vector<Session> two{{.begin = 1000, .readings = {at(3, {1, 0, 6})}, .why = "signal"},
                                   {.begin = 900, .from = 3, .readings = {at(4, {1, 0, 2})}, .why = "done"}};
    EXPECT_EQ(run_seconds(two), (PhaseSeconds{2, 0, 8}));
}

TEST(RunSeconds, AreReadFromALogThatWasCutShort) {
    const auto time = [](int step, double compute) {
        return std::string(JsonLine("seconds")
                               .count("step", step)
                               .number("startup_seconds", 1)
                               .number("compute_seconds", compute)
                               .number("wall_seconds", 1 + compute)
                               .finish());
    };
    const auto begin = [](double now, int step) {
        return std::string(
            JsonLine("start").number("time", now).number("wall_seconds", 1).count("step", step).finish());
    };
    const RunLog log = log_of(begin(101, 0) + time(0, 0) + step(1, 5) + time(1, 4) + step(2, 4) + time(2, 8) +
                              begin(121, 1) + time(1, 0) + step(2, 3) + time(2, 5) + "{\"event\":\"sec");
    EXPECT_EQ(log.seconds, (PhaseSeconds{2, 0, 9, 0, 0, 0, 0, (9 - 5) + (120 - 109), 0}));
    EXPECT_EQ(sum(log.seconds), 126 - 100);
    EXPECT_EQ(log.why, "");
}
