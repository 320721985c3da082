// What a parallel configuration will do, forecast from the code that a run uses.
#include "engine/parallel/forecast.h"

#include <gtest/gtest.h>

#include "engine/config_check.h"
#include "engine/model/model.h"
#include "engine/parallel/layout.h"

using namespace keel;

namespace {

Config configured(std::int64_t pp, std::int64_t chunks, std::int64_t dp = 1) {
    Config c;
    c.model.dtype = "f32";
    c.model.vocab = 512;
    c.model.hidden = 64;
    c.model.layers = 8;
    c.model.heads = 4;
    c.model.ffn = 128;
    c.data.train = {"a.tok"};
    c.data.seq_len = 32;
    c.train.samples = 100;
    c.train.micro_batch = 2;
    c.train.global_batch = 16 * dp;
    c.run.dir = "run";
    c.parallel.pp = pp;
    c.parallel.chunks = chunks;
    c.parallel.dp = dp;
    resolve_and_validate(c);
    return c;
}

std::size_t count(const std::string& text, const std::string& word) {
    std::size_t n = 0;
    for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + word.size())) ++n;
    return n;
}

}  // namespace

TEST(Forecast, PlaysTheScheduleOfTheConfiguration) {
    const PipelineRun run = schedule_forecast(configured(4, 2));
    EXPECT_EQ(run.schedule, PipelineSchedule::interleaved);
    EXPECT_EQ(run.shape.micro_batches, 8);
    EXPECT_EQ(run.ranks.size(), 4u);
    // A block's forward is the unit; its backward has twice the products and three and a half times the attention.
    const TimedAction& forward = run.ranks[1].front();
    EXPECT_DOUBLE_EQ(forward.end - forward.begin, 1);
    const double products = 2.0 * (64 * 64 * 4 + 3 * 64 * 128), attention = 2.0 * 64 * 32;
    const TimedAction& backward = run.ranks[1].back();
    // Times below 64 carry errors of 2^-47 each: the difference of two is that close.
    EXPECT_NEAR(backward.end - backward.begin, (2 * products + 3.5 * attention) / (products + attention), 1e-12);
    // The last stage also has the head.
    EXPECT_GT(run.busy[3], run.busy[2]);
    EXPECT_DOUBLE_EQ(run.busy[2], run.busy[1]);
}

TEST(Forecast, GivesTheSimulatorWhatTheRanksHold) {
    const ClusterLayout l = cluster_layout(configured(2, 2, 3));
    EXPECT_EQ(l.dp, 3);
    EXPECT_EQ(l.micro_batches, 8);
    EXPECT_EQ(l.split, layer_split({.layers = 8, .stages = 2, .chunks = 2}));
    EXPECT_EQ(l.bucket, 40e6);
    Cluster cluster = parse_cluster("gpus=6,device=h100");
    const StepForecast f = cluster_forecast(configured(2, 2, 3), cluster);
    EXPECT_GT(f.step_s, 0);
    EXPECT_NEAR(f.times.sum(), f.step_s, 1e-9 * f.step_s);
}

TEST(Forecast, TellsEveryStagesMemoryFromThePlanOfTheRun) {
    const Config c = configured(4, 2);
    const std::string text = stage_memory(c, 0);
    for (std::int64_t s = 0; s < 4; ++s) {
        const RankPlace place{.pp = s};
        EXPECT_NE(text.find(human_bytes(plan_model(c, training_use(c, place), place).peak_bytes())), std::string::npos)
            << text;
    }
    EXPECT_NE(text.find(" 11  embed 0 4\n"), std::string::npos)
        << text;  // pieces that rank 0 keeps at once, and what it holds
    EXPECT_NE(text.find("  3 7 head\n"), std::string::npos) << text;
    EXPECT_EQ(text.find("of a device"), std::string::npos);
    EXPECT_EQ(count(text, "memory plan: "), 1u);  // the largest stage's, whole
    EXPECT_NE(stage_memory(c, 1e-6).find(": it does not fit; raise --parallel.tp"), std::string::npos);
}

TEST(Forecast, ShowsTheEndsAndTheLargestOfManyStages) {
    Config c = configured(1, 1);
    c.model.layers = 20;
    c.parallel.pp = 20;
    resolve_and_validate(c);
    const std::string text = stage_memory(c, 0);
    for (const char* holds : {"embed 0\n", "  1\n", "  19 head\n"})
        EXPECT_NE(text.find(holds), std::string::npos) << text;
    EXPECT_EQ(text.find("  2\n"), std::string::npos) << text;
}
