// Steps that are passed over, and steps that change nothing: their data is consumed, the learning rate stays where it was.
#include <cmath>

#include "engine/fault/skip_list.h"
#include "tests/engine/fault_runs.h"

namespace keel {
namespace {

class SkipTest : public test::FaultRuns {};

TEST(SkipList, HoldsStepsAndRanges) {
    const SkipList list({"7", "10-12"});
    std::string in;
    for (int step = 1; step <= 14; ++step)
        if (list.contains(step)) in += concat(step, " ");
    EXPECT_EQ(in, "7 10 11 12 ");
    EXPECT_FALSE(SkipList({}).contains(1));
}

TEST(SkipList, NonsenseIsRefused) {
    for (const auto& [text, message] : std::vector<std::pair<std::string, std::string>>{
             {"x", "this is no step, as in 7, and no range of them, as in 10-12"},
             {"", "this is no step"},
             {"3-", "this is no step"},
             {"3-4-5", "this is no step"},
             {"0", "steps begin at 1"},
             {"5-3", "the range ends before it begins"}}) {
        try {
            (void)SkipList({text});
            ADD_FAILURE() << text;
        } catch (const Error& e) {
            EXPECT_EQ(e.code(), ExitCode::usage);
            EXPECT_NE(std::string(e.what()).find("--fault.skip " + text + ": " + message), std::string::npos) << e.what();
        }
    }
}

// Of five steps of four samples the third is passed over and the fourth is not finite: twenty samples are consumed, and the
// learning rate has moved on by twelve.
TEST_F(SkipTest, DataIsConsumedAndTheLearningRateStaysWhereItWas) {
    Config plain = config("plain"), c = config("skip", {"grad_nan,step=4,lasting"});
    c.fault.mode = "disabled", c.fault.skip = {"3"};
    for (Config* k : {&plain, &c}) k->optim.schedule = "linear", k->optim.warmup_samples = 4, k->train.eval_interval = 0;
    EXPECT_EQ(run(plain).why, "done");
    Progress end;
    testing::internal::CaptureStderr();
    test::on_ranks(c, [&](keel::Run& run) { train(run), end = run.progress; });
    (void)testing::internal::GetCapturedStderr();
    EXPECT_EQ(end.samples, 20);
    EXPECT_EQ(end.steps, 5);
    EXPECT_EQ(end.skipped, 2);
    EXPECT_EQ(end.skipped_samples, 8);
    const auto lr = test::logged(c.run.dir, "lr"), expected = test::logged(plain.run.dir, "lr");
    EXPECT_FALSE(lr.contains(3));  // no step line, no line of the log at all but that it was passed over
    EXPECT_EQ(test::logged(c.run.dir, "samples", "skip").at(3), 12);
    EXPECT_EQ(lr.at(1), expected.at(1));
    EXPECT_EQ(lr.at(2), expected.at(2));
    EXPECT_EQ(lr.at(4), expected.at(3));
    EXPECT_EQ(lr.at(5), expected.at(3));  // the fourth moved nothing
}

// What a passed-over step leaves is what was before it: a run that begins with it trains on as one whose first step is the next.
TEST_F(SkipTest, NothingElseHappensInIt) {
    Config c = config("first");
    c.fault.skip = {"1-2"}, c.train.steps = 2;
    test::on_ranks(c, [](keel::Run& run) { EXPECT_STREQ(train(run), "done"); });
    Config untrained = config("untrained");
    test::on_ranks(untrained, [](keel::Run& run) { save_checkpoint(run); });
    EXPECT_EQ(test::differing(test::tensors_of(at_step(c, 2)), test::tensors_of(at_step(untrained, 0))), "");
}

TEST_F(SkipTest, ARunCutInTwoSkipsTheSame) {
    Config whole = config("whole"), cut = config("cut");
    for (Config* c : {&whole, &cut}) c->fault.skip = {"2", "4"}, c->parallel.tp = 2, c->optim.warmup_samples = 8, c->optim.decay_samples = 20;
    EXPECT_EQ(run(whole).why, "done");
    cut.train.steps = 3;
    EXPECT_EQ(run(cut).why, "done");
    cut.train.steps = 5;
    EXPECT_EQ(run(cut).why, "done");
    EXPECT_EQ(test::differing(test::tensors_of(at_step(whole, 5)), test::tensors_of(at_step(cut, 5))), "");
}

// A NaN on one rank of a model-parallel group: no rank updates (the success of an update is unanimous).
TEST_F(SkipTest, ANanOnOneRankOfAModelParallelGroupIsAppliedNowhere) {
    for (const auto& [tp, pp] : {std::pair{2, 1}, {1, 2}, {2, 2}}) {
        Config c = config(concat("unanimous", tp, pp), {concat("grad_nan,step=2,lasting,rank=", tp * pp - 1)});
        c.fault.mode = "disabled", c.parallel.tp = tp, c.parallel.pp = pp;
        testing::internal::CaptureStderr();
        test::on_ranks(c, [&](keel::Run& run) {
            test::take_step(run);
            run.model->gradients().need_all();
            const auto state = [&] {
                const View<float> v = run.model->second_moment(), p = run.model->master();
                return std::string(reinterpret_cast<const char*>(v.data()), static_cast<std::size_t>(v.bytes())) +
                       std::string(reinterpret_cast<const char*>(p.data()), static_cast<std::size_t>(p.bytes()));
            };
            const std::string before = state();
            const StepPlan plan = run.schedule.at(run.progress);
            const StepResult result = *train_step(run, plan);
            EXPECT_FALSE(result.applied) << run.world.rank();
            run.progress.advance(plan, result);
            EXPECT_EQ(run.schedule.at(run.progress).lr, plan.lr);
            EXPECT_TRUE(state() == before) << tp << pp << " rank " << run.world.rank();
        });
        (void)testing::internal::GetCapturedStderr();
    }
}

}  // namespace
}  // namespace keel
