// What a run tells: a frozen line, whole JSON records, seconds that sum to wall time, and no allocation on the way.
#include "engine/observe/observe.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "engine/config_check.h"
#include "engine/observe/json_line.h"
#include "kernels/base/error.h"
#include "tests/count_allocations.h"
#include "tests/temp_folder.h"

using namespace keel;
namespace fs = std::filesystem;
using std::chrono::seconds;

namespace {

std::string line_of(const StepLine& line) {
    char text[log_line_size];
    return {text, format_step(text, line)};
}

Config small_config(const fs::path& dir) {
    Config c;
    c.model.vocab = 1000, c.model.hidden = 64, c.model.layers = 2, c.model.heads = 4, c.model.ffn = 128;
    c.data.train = {"a.tok"}, c.data.valid = {"v.tok"}, c.data.seq_len = 32;
    c.train.samples = 80, c.train.global_batch = 8;
    c.run.dir = dir;
    resolve_and_validate(c);
    return c;
}

std::vector<nlohmann::json> records(const fs::path& dir) {
    std::vector<nlohmann::json> out;
    std::ifstream in(dir / "log.jsonl");
    for (std::string line; std::getline(in, line);) out.push_back(nlohmann::json::parse(line));
    return out;
}
std::vector<nlohmann::json> records(const fs::path& dir, const std::string& event) {
    auto out = records(dir);
    std::erase_if(out, [&](const auto& record) { return record["event"] != event; });
    return out;
}

}  // namespace

TEST(LogLine, IsFrozen) {
    EXPECT_EQ(line_of({.step = 120, .total_steps = 1000, .progress_percent = 12, .loss = 3.45678, .grad_norm = 0.91234, .lr = 3e-4,
                       .tokens_per_second = 21840.4, .flops_per_second = 4.12e11, .peak = 5.074e11, .seconds_left = 754,
                       .skipped = 2}),
              "step 120/1000 progress_% 12.0 loss 3.4568 grad_norm 0.9123 lr 3.000e-04 tokens/s 21840 TFLOP/s 0.4120 "
              "peak_% 81.2 left 0:12:34 skipped 2\n");
    EXPECT_EQ(line_of({.step = 1, .total_steps = 2, .progress_percent = 50, .loss = 3, .grad_norm = 1, .lr = 1e-3, .tokens_per_second = 0,
                       .flops_per_second = 0, .seconds_left = -1, .loss_scale = 65536}),
              "step 1/2 progress_% 50.0 loss 3.0000 grad_norm 1 lr 1.000e-03 tokens/s 0 TFLOP/s 0.0000 peak_% - left - skipped 0 "
              "loss_scale 65536\n");
    char text[log_line_size];
    const EvalResult eval{.loss = {51200 * std::log(30.0), 51200}, .bytes = 120000, .seconds = 1.25};
    EXPECT_EQ(std::string(text, format_eval(text, 120, eval)),
              "eval step 120 loss 3.4012 perplexity 30.000 bits/byte 2.0936 tokens 51200 seconds 1.25\n");
}

TEST(LogLine, PrintsWhatIsNotFiniteByNameAndWhatIsNotKnownAsADash) {
    const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
    EXPECT_EQ(line_of({.step = 1, .total_steps = 2, .progress_percent = 50, .loss = -nan, .grad_norm = inf, .lr = 1e-3,
                       .tokens_per_second = 0, .flops_per_second = 0, .peak = 0, .seconds_left = -1, .skipped = 1}),
              "step 1/2 progress_% 50.0 loss NaN grad_norm Inf lr 1.000e-03 tokens/s 0 TFLOP/s 0.0000 peak_% - left - skipped 1\n");
    char text[log_line_size];
    EXPECT_EQ(std::string(text, format_eval(text, 7, {.loss = {nan, 3}})),
              "eval step 7 loss NaN perplexity NaN bits/byte - tokens 3 seconds 0.00\n");
}

TEST(LogLine, NeverRunsOverItsBuffer) {
    const double big = std::numeric_limits<double>::max();
    const std::string line = line_of({.step = std::numeric_limits<std::int64_t>::min(), .total_steps = std::numeric_limits<std::int64_t>::min(),
                                      .progress_percent = -big, .loss = -big, .grad_norm = -big, .lr = -big, .tokens_per_second = -big,
                                      .flops_per_second = -big, .peak = 1e-300, .seconds_left = big, .skipped = -1, .loss_scale = big});
    EXPECT_LT(line.size(), log_line_size);
}

TEST(Duration, IsHoursMinutesSeconds) {
    EXPECT_STREQ(duration_text(0).text, "0:00:00");
    EXPECT_STREQ(duration_text(59.6).text, "0:01:00");
    EXPECT_STREQ(duration_text(3600 * 100 + 61).text, "100:01:01");
    EXPECT_STREQ(duration_text(std::nan("")).text, "-");
}

TEST(JsonRecord, IsAlwaysOneParsableLine) {
    const std::string nasty = "quote \" backslash \\ newline \n tab \t bell \a ☃";
    const auto parsed = nlohmann::json::parse(JsonLine("e").text("t", nasty).number("x", 0.1).number("n", NAN).number("i", -INFINITY)
                                                  .count("c", std::numeric_limits<std::int64_t>::min()).boolean("b", false).finish());
    EXPECT_EQ(parsed["t"], nasty);
    EXPECT_EQ(parsed["x"], 0.1);
    EXPECT_EQ(parsed["n"], "NaN");
    EXPECT_EQ(parsed["i"], "-Inf");
    EXPECT_EQ(parsed["c"], std::numeric_limits<std::int64_t>::min());
    EXPECT_EQ(parsed["b"], false);
    std::string snow;
    for (int i = 0; i < 2000; ++i) snow += "☃\n";
    const std::string line = JsonLine("e").text("t", snow).finish();
    EXPECT_EQ(line.find('\n'), line.size() - 1);
    EXPECT_TRUE(snow.starts_with(nlohmann::json::parse(line)["t"].get<std::string>()));
}

TEST(Ledger, PhasesSumToWallTime) {
    const Clock::time_point t0{};
    Ledger ledger(t0);
    ledger.enter(Phase::compute, t0 + seconds(2));
    ledger.enter(Phase::data_wait, t0 + seconds(5));
    ledger.enter(Phase::compute, t0 + seconds(6));
    ledger.enter(Phase::checkpoint, t0 + seconds(10));
    const auto now = t0 + seconds(17);
    EXPECT_EQ(ledger.seconds(Phase::startup, now), 2);
    EXPECT_EQ(ledger.seconds(Phase::compute, now), 7);
    EXPECT_EQ(ledger.seconds(Phase::data_wait, now), 1);
    EXPECT_EQ(ledger.seconds(Phase::checkpoint, now), 7);  // still running
    double sum = 0;
    for (std::size_t i = 0; i < phase_count; ++i) sum += ledger.seconds(static_cast<Phase>(i), now);
    EXPECT_EQ(sum, ledger.wall_seconds(now));
}

TEST(Ledger, ScopesNestAndGiveBackThePhaseBefore) {
    Ledger ledger(Clock::now());
    {
        const Ledger::Scope step(ledger, Phase::compute);
        {
            const Ledger::Scope wait(ledger, Phase::data_wait);
            EXPECT_EQ(ledger.part(), Phase::data_wait);
        }
        EXPECT_EQ(ledger.part(), Phase::compute);
    }
    EXPECT_EQ(ledger.part(), Phase::startup);
}

TEST(Ledger, CommunicationIsTakenOutOfTheWorkItInterrupts) {
    const Clock::time_point t0 = Clock::now();
    double waited = 5;  // before: not this ledger's business
    Ledger ledger(t0);
    ledger.enter(Phase::idle, t0);
    ledger.set_apart(Phase::communication, may_communicate, [&] { return waited; });
    ledger.enter(Phase::compute, t0 + seconds(1));
    waited += 2;
    EXPECT_EQ(ledger.seconds(Phase::compute, t0 + seconds(6)), 3);
    EXPECT_EQ(ledger.seconds(Phase::communication, t0 + seconds(6)), 2);
    ledger.enter(Phase::checkpoint, t0 + seconds(11));
    waited += 4;  // what ranks say to each other about a checkpoint is part of it
    ledger.enter(Phase::optimizer, t0 + seconds(21));
    waited += 1;
    ledger.enter(Phase::idle, t0 + seconds(24));
    const auto now = t0 + seconds(24);
    EXPECT_EQ(ledger.seconds(Phase::compute, now), 8);
    EXPECT_EQ(ledger.seconds(Phase::communication, now), 3);
    EXPECT_EQ(ledger.seconds(Phase::checkpoint, now), 10);
    EXPECT_EQ(ledger.seconds(Phase::optimizer, now), 2);
    double sum = 0;
    for (const double s : ledger.all_seconds(now)) sum += s;
    EXPECT_NEAR(sum, 24, 1e-12);
}

TEST(Ledger, ARankThatCameLateBeginsWithTheFirst) {
    const Clock::time_point t0{};
    Ledger ledger(t0);
    ledger.begin_earlier(3.5);
    ledger.enter(Phase::compute, t0 + seconds(1));
    EXPECT_EQ(ledger.seconds(Phase::startup, t0 + seconds(2)), 4.5);
    EXPECT_EQ(ledger.wall_seconds(t0 + seconds(2)), 5.5);
}

TEST(Observe, RecordsAStepWithoutAllocating) {
    const test::TempFolder folder;
    const fs::path dir = folder.path();
    const Config config = small_config(dir);
    Ledger ledger(Clock::now());
    Observe observe(config, {.parameters = 100, .matmul_peak = 1e9, .total_samples = 80, .total_steps = 10}, ledger);
    Progress progress;
    observe.start(progress);
    const EvalResult eval{.loss = {300, 100}, .bytes = 400, .seconds = 1};
    const long before = allocations();
    for (int i = 0; i < 10; ++i) {
        const Ledger::Scope scope(ledger, Phase::compute);
        const StepPlan plan{.first_sample = 8 * i, .samples = 8, .micro_batch = 8, .num_micro_batches = 1, .lr = 1e-3};
        const StepResult step{.loss = {700.0 / (i + 1), 256}, .grad_norm = i == 3 ? NAN : 1.5, .applied = i != 3, .tokens = 256,
                              .tokens_squared = 8192};
        progress.advance(plan, step);
        observe.record(progress, plan, step);
        if (i % 5 == 4) observe.record_eval(progress, eval);
        if (i % 5 == 4) observe.record_save(progress, "checkpoints/step-00000005", 0.5);
    }
    EXPECT_EQ(allocations() - before, 0);
    EXPECT_GT(allocations(), 0);  // the counter counts
    observe.finish(progress, "done", {.sample = "text"});

    EXPECT_EQ(records(dir, "eval").size(), 2u);
    EXPECT_EQ(records(dir, "save").size(), 2u);
    EXPECT_EQ(records(dir).front()["event"], "start");
    EXPECT_EQ(records(dir).front()["config_hash"].get<std::string>().size(), 16u);
    EXPECT_EQ(records(dir).back()["event"], "end");
    EXPECT_EQ(records(dir).back()["why"], "done");
    const auto steps = records(dir, "step");
    ASSERT_EQ(steps.size(), 10u);
    EXPECT_EQ(steps[0]["samples"], 8);
    EXPECT_EQ(steps[0]["tokens"], 256);
    EXPECT_NEAR(steps[0]["loss"].get<double>(), 700.0 / 256, 1e-12);
    EXPECT_EQ(steps[3]["grad_norm"], "NaN");
    EXPECT_EQ(steps[3]["applied"], false);
    const auto times = records(dir, "seconds");
    ASSERT_EQ(times.size(), 1u + 10 + 2 + 1);  // at the start, every log line, every save, the end
    for (const auto& time : times) {
        double sum = 0;
        for (std::size_t i = 0; i < phase_count; ++i) sum += time[key(static_cast<Phase>(i))].get<double>();
        EXPECT_NEAR(sum, time["wall_seconds"].get<double>(), 1e-5);  // each is rounded to a microsecond
    }
    EXPECT_TRUE(fs::exists(dir / "report.html"));
}

TEST(Observe, ARankThatStandsOutIsWarnedAboutAndRecordedAtTheStart) {
    const test::TempFolder folder;
    Ledger ledger(Clock::now());
    const RankRates rates{.flops_per_second = {6e9, 6e9, 9e9}, .hosts = {"a", "b", "c"}};
    Observe observe(small_config(folder.path()), {.rates = rates, .total_samples = 80, .total_steps = 10, .ranks = 3}, ledger);
    testing::internal::CaptureStderr();
    observe.start({});
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "keel: warning: rank 2 on c reaches 0.009 TFLOP/s in matrix products, 50.0 % more than the "
                                                      "median rank, which reaches 0.006\n");
    const auto uneven = records(folder.path(), "uneven");
    ASSERT_EQ(uneven.size(), 1u);
    EXPECT_EQ(uneven[0]["rank"], 2);
    EXPECT_EQ(uneven[0]["percent"], 50);
    EXPECT_EQ(records(folder.path(), "rates").at(0)["matmul_peak_median"], 6e9);
}

TEST(Observe, AResumedRunAppendsToItsLog) {
    const test::TempFolder folder;
    const fs::path dir = folder.path();
    const Config config = small_config(dir);
    for (int session = 0; session < 2; ++session) {
        Ledger ledger(Clock::now());
        Observe observe(config, {.parameters = 100, .total_samples = 80, .total_steps = 10}, ledger);
        Progress progress{.samples = 8 * session, .steps = session, .skipped = 0, .tokens = 256 * session, .tokens_squared = 0};
        observe.start(progress);
        progress.advance({.samples = 8}, {.loss = {10, 10}, .tokens = 256});
        observe.record(progress, {.samples = 8}, {.loss = {10, 10}, .tokens = 256});
    }
    ASSERT_EQ(records(dir, "start").size(), 2u);
    EXPECT_EQ(records(dir, "start")[1]["step"], 1);
    ASSERT_EQ(records(dir, "step").size(), 2u);
    EXPECT_EQ(records(dir, "step")[1]["step"], 2);
}

TEST(Observe, AFolderThatCannotBeWrittenIsToldBeforeTheRun) {
    Config config = small_config("/nowhere/at/all");
    Ledger ledger;
    try {
        Observe observe(config, {}, ledger);
        FAIL();
    } catch (const Error& error) {
        EXPECT_EQ(std::string(error.what()),
                  "/nowhere/at/all/log.jsonl cannot be opened for writing: No such file or directory; check --run.dir");
    }
}
