// Batch ramp and learning rate: worked tables, computed independently of keel.
#include "engine/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/base/error.h"

using namespace keel;

namespace {

// The tables give ten digits.
void expect_lr(double got, double want) { EXPECT_NEAR(got, want, 5.0e-10 * 1e-3) << got; }

OptimSection peak_1e_3() {
    OptimSection optim;
    optim.lr = 1e-3;
    optim.min_lr = 1e-4;
    optim.init_lr = 0;
    optim.warmup_samples = 1000;
    return optim;
}

Config small_run() {
    Config config;
    config.train.samples = 100;
    config.train.global_batch = 8;
    config.train.micro_batch = 2;
    return config;
}

}  // namespace

TEST(LearningRate, FollowsTheTableOfEveryShape) {
    const std::int64_t at[] = {0, 500, 1000, 3500, 6000, 8500, 11000, 11001};
    const std::pair<const char*, std::array<double, 8>> table[] = {
        {"linear", {0, 5e-4, 1e-3, 7.75e-4, 5.5e-4, 3.25e-4, 1e-4, 1e-4}},
        {"cosine", {0, 5e-4, 1e-3, 8.681980515e-4, 5.5e-4, 2.318019485e-4, 1e-4, 1e-4}},
        {"inverse_sqrt", {0, 5e-4, 1e-3, 5.345224838e-4, 4.082482905e-4, 3.429971703e-4, 3.015113446e-4, 1e-4}},
        {"constant", {0, 5e-4, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3}}};
    for (const auto& [shape, rates] : table) {
        OptimSection optim = peak_1e_3();
        optim.schedule = shape;
        for (std::size_t i = 0; i < rates.size(); ++i) {
            SCOPED_TRACE(concat(shape, " at ", at[i]));
            expect_lr(learning_rate(optim, 11000, at[i]), rates[i]);
        }
    }
}

TEST(LearningRate, WsdDecaysInFourShapes) {
    const std::int64_t at[] = {9000, 9500, 10000, 10500, 11000};
    const std::pair<const char*, std::array<double, 5>> table[] = {
        {"linear", {1e-3, 7.75e-4, 5.5e-4, 3.25e-4, 1e-4}},
        {"cosine", {1e-3, 8.681980515e-4, 5.5e-4, 2.318019485e-4, 1e-4}},
        {"exponential", {1e-3, 7.136135475e-4, 4.727922061e-4, 2.702864035e-4, 1e-4}},
        {"minus_sqrt", {1e-3, 5.5e-4, 3.636038969e-4, 2.205771366e-4, 1e-4}}};
    for (const auto& [shape, rates] : table) {
        OptimSection optim = peak_1e_3();
        optim.schedule = "wsd";
        optim.wsd_decay = shape;
        optim.wsd_samples = 2000;
        for (std::size_t i = 0; i < rates.size(); ++i) {
            SCOPED_TRACE(concat(shape, " at ", at[i]));
            expect_lr(learning_rate(optim, 11000, at[i]), rates[i]);
        }
        expect_lr(learning_rate(optim, 11000, 500), 5e-4);     // warm-up
        expect_lr(learning_rate(optim, 11000, 5000), 1e-3);    // plateau
        expect_lr(learning_rate(optim, 11000, 11001), 1e-4);
    }
}

TEST(LearningRate, WithoutWarmUpStartsAtThePeakAndWarmUpStartsAtInit) {
    OptimSection optim = peak_1e_3();
    optim.warmup_samples = 0;
    optim.schedule = "cosine";
    EXPECT_DOUBLE_EQ(learning_rate(optim, 11000, 0), 1e-3);
    optim.warmup_samples = 1000;
    optim.init_lr = 1e-5;
    EXPECT_DOUBLE_EQ(learning_rate(optim, 11000, 0), 1e-5);
    EXPECT_NEAR(learning_rate(optim, 11000, 500), 1e-5 + 0.5 * (1e-3 - 1e-5), 1e-18);
}

TEST(BatchSizes, LongRampFollowsTheTable) {
    const BatchSizes ramp = BatchSizes::ramp(1024, 16, 8, 300000);  // 126 increments
    const std::pair<std::int64_t, std::int64_t> table[] = {{0, 16},        {2380, 16},      {2381, 24},      {4762, 32},
                                                           {100000, 352},  {299999, 1016},  {300000, 1024},  {300001, 1024}};
    for (const auto& [samples, batch] : table) EXPECT_EQ(ramp.at(samples), batch) << samples;
}

TEST(BatchSizes, StepsOfAShortRampFollowTheTable) {
    Config config = small_run();
    config.train.batch_ramp = {4, 2, 20};
    config.train.micro_batch = 2;  // the table's unit
    const Schedule schedule(config);
    const std::int64_t consumed[] = {0, 4, 8, 12, 18, 24, 32}, batch[] = {4, 4, 4, 6, 6, 8, 8}, micro[] = {2, 2, 2, 3, 3, 4, 4};
    Progress progress;
    for (int i = 0; i < 7; ++i) {
        const StepPlan plan = schedule.at(progress);
        EXPECT_EQ(progress.samples, consumed[i]);
        EXPECT_EQ(plan.first_sample, consumed[i]);
        EXPECT_EQ(plan.samples, batch[i]) << "step " << i + 1;
        EXPECT_EQ(plan.num_micro_batches, micro[i]) << "step " << i + 1;
        EXPECT_EQ(plan.micro_batch * plan.num_micro_batches, plan.samples);
        progress.advance(plan, {});
    }
}

// behaviour.md, T2.4: thresholds are tokens, and 250B of them are 61 035 156 samples of 4096.
TEST(BatchSizes, AScheduleByTokensChangesAtTheSampleAfterThem) {
    const BatchSizes sizes = BatchSizes::steps({"500B:3072", "0:768", "250B:1536"}, 4096);
    const std::pair<std::int64_t, std::int64_t> table[] = {{0, 768},          {61035155, 768},  {61035156, 1536},
                                                           {122070311, 1536}, {122070312, 3072}, {std::int64_t{1} << 60, 3072}};
    for (const auto& [samples, batch] : table) EXPECT_EQ(sizes.at(samples), batch) << samples;
    EXPECT_EQ(sizes.all(), (std::vector<std::int64_t>{768, 1536, 3072}));
    EXPECT_EQ(BatchSizes::steps({"0:8", "1.5K:2K", "0.25M:1M"}, 1).at(1500), 2000);
    EXPECT_EQ(BatchSizes::steps({"0:8", "1.5K:2K", "0.25M:1M"}, 1).at(250000), 1000000);
    for (std::int64_t thousandths = 1000; thousandths < 1100; ++thousandths) {  // 1.001B is not quite 1001000000 of a double
        const BatchSizes two = BatchSizes::steps({"0:8", concat("1.", std::to_string(thousandths).substr(1), "B:16")}, 1);
        EXPECT_EQ(two.at(thousandths * 1'000'000 - 1), 8) << thousandths;
        EXPECT_EQ(two.at(thousandths * 1'000'000), 16) << thousandths;
    }
}

TEST(BatchSizes, AScheduleThatCannotBeIsRefusedByItsWords) {
    const auto refused = [](std::vector<std::string> entries) {
        try {
            (void)BatchSizes::steps(entries, 100);
        } catch (const Error& e) {
            return std::string(e.what());
        }
        return std::string("taken");
    };
    EXPECT_EQ(refused({"10K:8"}), "--train.batch_schedule says nothing of the first step; it begins with 0:samples");
    EXPECT_EQ(refused({"0:8", "250"}), "--train.batch_schedule: \"250\" is not tokens:samples, such as 250B:1536");
    for (const char* wrong : {"x", "", "-1", "1.5", "1Q", "1KB", "nan", "1e3", "9e30T", "99999999T"})
        EXPECT_EQ(refused({"0:8", concat(wrong, ":16")}),
                  concat("--train.batch_schedule: \"", wrong, "\" in \"", wrong, ":16\" is no whole count, such as 768, 1.5M or 250B"));
    EXPECT_EQ(refused({"0:0"}), "--train.batch_schedule: \"0:0\" has steps of no sample");
    EXPECT_EQ(refused({"0:8", "200:16", "210:32"}),
              "--train.batch_schedule has steps of 16 and of 32 samples from sample 2 (of --data.seq_len 100 tokens) on; leave one out");
    EXPECT_EQ(refused({"0:16", "1K:8"}), "--train.batch_schedule goes from 16 samples to 8 at sample 10; a step never takes "
                                         "fewer than the one before, so make each entry larger than the last");
}

// behaviour.md, T3.3.
TEST(WeightDecay, FollowsTheTable) {
    OptimSection optim;
    optim.weight_decay = 0.01, optim.weight_decay_end = 0.1;
    const std::int64_t samples[] = {0, 250, 500, 750, 1000, 1001};
    const double linear[] = {.01, .0325, .055, .0775, .1, .1}, cosine[] = {.01, .023180195, .055, .086819805, .1, .1};
    for (int i = 0; i < 6; ++i) {
        optim.weight_decay_schedule = "linear";
        EXPECT_NEAR(weight_decay(optim, 1000, samples[i]), linear[i], 1e-16);  // two roundings of numbers below 0.1
        optim.weight_decay_schedule = "cosine";
        EXPECT_NEAR(weight_decay(optim, 1000, samples[i]), cosine[i], 5e-10) << "the table has nine digits";
    }
    optim.weight_decay_end = -1;
    EXPECT_EQ(weight_decay(optim, 1000, 500), 0.01) << "nothing is said of the end";
}

// behaviour.md, T7.4: a norm of 5 clipped at 1, and one that need not be.
TEST(ClipFactor, ScalesTheNormToItsCeilingAndNeverUp) {
    OptimSection optim;
    optim.clip = 1;
    EXPECT_NEAR(clip_factor(optim, 5), 0.19999996, 5e-12);  // 1 / 5.000001 = 0.19999996000000…8
    EXPECT_EQ(clip_factor(optim, 0.5), 1);
    EXPECT_EQ(clip_factor(optim, 0), 1);
    optim.clip = 0;
    EXPECT_EQ(clip_factor(optim, 1e9), 1) << "nothing is clipped";
}

TEST(BatchSizes, ExactBoundariesDoNotComeLate) {
    // 3 increments over 10 samples: 10/3 is not a double, and 3 * (10/3) need not be 10.
    for (std::int64_t increments = 1; increments <= 200; ++increments)
        for (const std::int64_t per : {1, 3, 7, 10, 1001}) {
            const BatchSizes ramp = BatchSizes::ramp(1 + increments, 1, 1, increments * per);
            for (std::int64_t k = 1; k <= increments; ++k) {
                ASSERT_EQ(ramp.at(k * per), 1 + k);
                ASSERT_EQ(ramp.at(k * per - 1), k);
            }
        }
}

TEST(BatchSizes, CountsEqualASimulationStepByStep) {
    for (const BatchSizes& ramp :
         {BatchSizes(8), BatchSizes::ramp(8, 4, 2, 20), BatchSizes::ramp(1024, 16, 8, 30000), BatchSizes::ramp(5, 5, 1, 100),
          BatchSizes::ramp(7, 1, 3, 0), BatchSizes::ramp(64, 1, 1, 10), BatchSizes::steps({"0:3", "100:5", "400:16"}, 7)}) {
        std::int64_t samples = 0;
        for (std::int64_t steps = 0; steps < 300; ++steps) {
            ASSERT_EQ(ramp.samples_after(steps), samples);
            ASSERT_EQ(ramp.steps_for(samples), steps);
            ASSERT_EQ(ramp.steps_for(samples + 1), steps + 1);
            samples += ramp.at(samples);
        }
    }
}

TEST(BatchSizes, HugeRampsAreCountedWithoutWalkingEveryStep) {
    const std::int64_t far = 4'000'000'000'000'000'000;
    EXPECT_EQ(BatchSizes::ramp(2, 1, 1, far).at(far - 1), 1);
    EXPECT_EQ(BatchSizes::ramp(2, 1, 1, far).at(far), 2);
    EXPECT_EQ(BatchSizes::ramp(2, 1, 1, far).steps_for(far + 2), far + 1);
    EXPECT_EQ(BatchSizes::ramp(2, 1, 1, far).samples_after(far + 1), far + 2);
    EXPECT_THROW((void)BatchSizes(16).samples_after(far), Error);
}

TEST(Schedule, RunEndsAtTheFirstStepBoundaryAtOrPastItsSamples) {
    const Schedule schedule(small_run());  // 100 samples in steps of 8
    EXPECT_EQ(schedule.total_steps(), 13);
    EXPECT_EQ(schedule.total_samples(), 104);
    Progress progress;
    while (!schedule.done(progress)) {
        const StepPlan plan = schedule.at(progress);
        EXPECT_EQ(plan.samples, 8);
        progress.advance(plan, {});
    }
    EXPECT_EQ(progress.samples, 104);
    EXPECT_EQ(progress.steps, 13);
}

TEST(Schedule, LearningRateOfAStepIsThatOfTheSamplesBeforeIt) {
    Config config = small_run();
    config.optim.warmup_samples = 16;
    config.optim.lr = 1;
    const Schedule schedule(config);
    Progress progress;
    for (const double want : {0.0, 0.5, 1.0}) {
        const StepPlan plan = schedule.at(progress);
        EXPECT_DOUBLE_EQ(plan.lr, want);
        progress.advance(plan, {});
    }
}

// After the last step (13) the run saves, and then evaluates whatever the interval: engine/train.cpp.
TEST(Schedule, WhatHappensNowAndThenFollowsItsInterval) {
    Config config = small_run();
    config.data.valid = {"v.tok"};
    config.train.eval_interval = 5;
    config.ckpt.interval = 4;
    config.train.log_interval = 3, config.watch.self_test_interval = 6;  // a function of progress: on all ranks alike, and never else
    const Schedule schedule(config);
    std::string evals, saves, logs, tests;
    for (Progress p; !schedule.done(p);) {
        const StepPlan plan = schedule.at(p);
        p.advance(plan, {});
        if (schedule.eval_due(p)) evals += concat(p.steps, " ");
        if (schedule.save_due(p, plan)) saves += concat(p.steps, " ");
        if (schedule.log_due(p)) logs += concat(p.steps, " ");
        if (schedule.self_test_due(p)) tests += concat(p.steps, " ");
    }
    EXPECT_EQ(evals, "5 10 ");
    EXPECT_EQ(saves, "4 8 12 13 ");
    EXPECT_EQ(logs, "3 6 9 12 13 ");
    EXPECT_EQ(tests, "6 12 ");
}

TEST(Schedule, ACheckpointIsDueBeforeEachChangeOfTheBatchWhichNeverShrinks) {
    Config config = small_run();
    config.train.batch_ramp = {4, 2, 20};  // steps begin at 0 4 8 12 18 24 32 …, with batches 4 4 4 6 6 8 8 …
    config.train.micro_batch = 2;
    const Schedule schedule(config);
    std::string saves;
    std::int64_t batch = 0;
    for (Progress p; !schedule.done(p);) {
        const StepPlan plan = schedule.at(p);
        EXPECT_GE(plan.samples, batch);
        batch = plan.samples;
        p.advance(plan, {});
        if (schedule.save_due(p, plan)) saves += concat(p.steps, " ");
    }
    EXPECT_EQ(saves, concat("3 5 ", schedule.total_steps(), " "));
}

TEST(Schedule, AStepHasTheWeightDecayOfTheSamplesThatUpdatesWereMadeOf) {
    Config config = small_run();
    config.optim.weight_decay = 0, config.optim.weight_decay_end = 1;
    const Schedule schedule(config);
    Progress progress;
    progress.samples = 60, progress.skipped_samples = 10;
    EXPECT_EQ(schedule.at(progress).weight_decay, 0.5);
}

TEST(Schedule, TheRunLeavesAtItsIntervalAtTheEndsOfPhasesAndWhenItIsDone) {
    Config config = small_run();
    config.exit.interval = 5;
    config.exit.steps = {7, 10};
    const Schedule schedule(config);
    std::string left;
    for (Progress p; !schedule.done(p);) {
        p.advance(schedule.at(p), {});
        if (*schedule.leave(p)) left += concat(p.steps, " ", schedule.leave(p), ", ");
    }
    EXPECT_EQ(left, "5 interval, 7 phase, 10 interval, 13 done, ");
}

TEST(Progress, SkippedStepsConsumeTheirDataAndTheirFlops) {
    // Five steps of 8 samples; the fourth changes nothing.
    Progress progress;
    for (int i = 1; i <= 5; ++i)
        progress.advance({.samples = 8}, {.loss = {}, .grad_norm = 1, .applied = i != 4, .tokens = 512, .tokens_squared = 512 * 64});
    EXPECT_EQ(progress, (Progress{.samples = 40, .steps = 5, .skipped = 1, .skipped_samples = 8, .tokens = 2560, .tokens_squared = 163840}));
}

// Five steps of 8 samples; the third is passed over, the fourth changes nothing: 40 samples are consumed, 24 were trained on.
TEST(Progress, StepsPassedOverConsumeTheirDataAndNothingElse) {
    Progress progress;
    for (int i = 1; i <= 5; ++i) {
        if (i == 3) progress.pass_over({.samples = 8});
        else progress.advance({.samples = 8}, {.loss = {}, .grad_norm = 1, .applied = i != 4, .tokens = 512, .tokens_squared = 512 * 64});
    }
    EXPECT_EQ(progress, (Progress{.samples = 40, .steps = 5, .skipped = 2, .skipped_samples = 16, .tokens = 2048, .tokens_squared = 131072}));
}

TEST(Schedule, TheLearningRateMovesOnWithSamplesThatWereTrainedOn) {
    Config config = small_run();
    config.optim.schedule = "linear";
    const Schedule schedule(config);
    EXPECT_EQ(schedule.at({.samples = 40, .steps = 5, .skipped = 2, .skipped_samples = 16}).lr, schedule.at({.samples = 24, .steps = 3}).lr);
    EXPECT_EQ(schedule.at({.samples = 40, .steps = 5, .skipped = 2, .skipped_samples = 16}).first_sample, 40);
}

TEST(LossSum, IsDividedOnceAfterAllSums) {
    LossSum loss{2, 1};
    loss.add({90, 9});
    EXPECT_DOUBLE_EQ(loss.mean(), 9.2);  // 6.0 would be the mean of means
    LossSum uneven{10 * 2.0, 10};
    uneven.add({1000 * 3.0, 1000});
    EXPECT_NEAR(uneven.mean(), 2.990099, 5e-7);
    LossSum replicas{20, 10};  // behaviour.md, T7.1: 1.5 would be the mean of two replicas' means
    replicas.add({30, 30});
    EXPECT_EQ(replicas.mean(), 1.25);
    EXPECT_TRUE(std::isnan(LossSum{}.mean()));
}

TEST(EvalResult, BitsPerByteAreNatsOverBytesOfText) {
    const EvalResult eval{.loss = {1000 * std::log(2.0) * 3, 1000}, .bytes = 2000, .seconds = 1};
    EXPECT_NEAR(eval.bits_per_byte(), 1.5, 1e-12);
    EXPECT_NEAR(eval.perplexity(), 8.0, 1e-12);
    EXPECT_TRUE(std::isnan(EvalResult{}.bits_per_byte()));
}
