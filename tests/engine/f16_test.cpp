// Training in f16: gradients that overflow skip their step on every rank, cost the loss scale and nothing else, and a run goes
// on from a checkpoint as if it had never stopped.
#include "engine/state.h"
#include "tests/engine/fault_runs.h"

namespace keel {
namespace {

namespace fs = std::filesystem;
using test::differing, test::logged, test::on_ranks, test::take_step, test::tensors_of, test::train_whole;

struct Layout {
    const char* name;
    int tp = 1, pp = 1, cp = 1, dp = 1;
    const char* sum = "float";
};
constexpr Layout layouts[] = {{"tp", 2}, {"pp", 1, 2}, {"cp", 1, 1, 2}, {"dp", 1, 1, 1, 2}, {"exact dp", 1, 1, 1, 2, "exact"}};

class F16 : public test::FaultRuns {
protected:
    Config config(const std::string& name, const std::vector<std::string>& faults = {}) const {
        Config c = FaultRuns::config(name, faults);
        c.model.dtype = "f16";
        c.optim.loss_scale_initial = 1024;  // which overflows nothing here
        return c;
    }
    static Config laid_out(Config c, const Layout& l) {
        c.parallel.tp = l.tp, c.parallel.pp = l.pp, c.parallel.cp = l.cp, c.parallel.dp = l.dp, c.numerics.grad_sum = l.sum;
        return c;
    }
    // A gradient of a logit is up to 1, so at twice what f16 holds something overflows.
    static void overflow_first(Config& c, double initial = 0x1p24) {
        c.optim.loss_scale_initial = initial, c.optim.loss_scale_hysteresis = 2;
    }
};

TEST_F(F16, ARunThatOverflowsAtFirstFindsItsScaleAndLearns) {
    Config c = config("run");
    overflow_first(c);
    c.train.steps = 40, c.optim.lr = 3e-3, c.optim.schedule = "constant", c.optim.warmup_samples = 40, c.optim.loss_scale_window = 12;
    train_whole(c);
    const auto loss = logged(c.run.dir, "loss"), scale = logged(c.run.dir, "loss_scale"), lr = logged(c.run.dir, "lr"),
               samples = logged(c.run.dir, "samples"), norm = logged(c.run.dir, "grad_norm");
    ASSERT_EQ(loss.size(), 40u);
    std::int64_t skipped = 0, grown = 0;
    for (std::int64_t step = 1; step <= 40; ++step) {
        EXPECT_TRUE(std::isfinite(loss.at(step))) << step;
        EXPECT_EQ(samples.at(step), 4 * step);  // its data is consumed
        EXPECT_DOUBLE_EQ(lr.at(step), c.optim.lr * std::min(1.0, static_cast<double>(4 * (step - 1 - skipped)) / 40)) << step;
        skipped += norm.at(step) > 0 ? 0 : 1;  // "NaN" is read as 0
        if (step > 1 && scale.at(step) > scale.at(step - 1)) ++grown;
    }
    EXPECT_EQ(scale.at(2), 0x1p24);  // the hysteresis
    EXPECT_EQ(scale.at(3), 0x1p23);
    EXPECT_GE(skipped, 9);  // 2^16 is the first that may hold
    EXPECT_LE(skipped, 20);
    EXPECT_GE(grown, 1);
    EXPECT_LT(scale.at(40), 0x1p17);
    EXPECT_LT(loss.at(40), 0.8 * loss.at(1));
    EXPECT_TRUE(findings(c).empty());
}

TEST_F(F16, ASkippedStepChangesNoWeightAndNoMoment) {
    Config c = config("skipped");
    overflow_first(c);
    c.train.steps = 2, c.ckpt.interval = 1;
    train_whole(c);
    EXPECT_EQ(differing(tensors_of(at_step(c, 1)), tensors_of(at_step(c, 2))), "");
}

TEST_F(F16, ARunCutInTwoIsTheWholeRunToTheBitAndToTheScale) {
    Config whole = config("whole"), cut = config("cut");
    for (Config* c : {&whole, &cut}) {
        overflow_first(*c, 0x1p20);
        c->train.steps = 20, c->optim.loss_scale_window = 4, c->optim.schedule = "constant";
    }
    train_whole(whole);
    Config half = cut;
    half.train.steps = 7;  // in the midst of overflows
    train_whole(half);
    train_whole(cut);
    EXPECT_EQ(differing(tensors_of(at_step(whole, 20)), tensors_of(at_step(cut, 20))), "");
    for (const char* key : {"loss", "loss_scale", "lr"}) EXPECT_EQ(logged(whole.run.dir, key), logged(cut.run.dir, key)) << key;
    const auto state = [&](const Config& c) { return nlohmann::json::parse(read_file(at_step(c, 20) / "state.json"))["loss_scale"]; };
    EXPECT_EQ(state(whole), state(cut));
    EXPECT_EQ(state(whole).size(), 3u);
}

// An infinite gradient on the last rank alone: no rank takes the step, and all have the same scale afterwards.
TEST_F(F16, AnOverflowOnOneRankSkipsTheStepOnAll) {
    for (const Layout& l : layouts) {
        const int last = l.tp * l.pp * l.cp * l.dp - 1;
        Config c = laid_out(config(l.name, {concat("grad_value,step=2,value=1e39,tensor=layers.1.down,rank=", last)}), l);
        c.optim.loss_scale_hysteresis = 1, c.run.dir += " unanimous";
        testing::internal::CaptureStderr();
        on_ranks(c, [&](keel::Run& run) {
            for (int i = 0; i < 3; ++i) take_step(run);
            EXPECT_EQ(run.progress.skipped, 1) << l.name;
            EXPECT_EQ(run.progress.samples, 12) << l.name;
            EXPECT_EQ(run.progress.skipped_samples, 4) << l.name;
            EXPECT_EQ(run.loss_scale->value(), 512) << l.name;
            EXPECT_FALSE(run.findings->stop());
        });
        testing::internal::GetCapturedStderr();
        EXPECT_TRUE(findings(c).empty()) << l.name;
    }
}

// Pipeline stages change no bit in f16 either, nor do replicas where sums are exact; overflows included.
TEST_F(F16, StagesAndExactReplicasHaveTheBitsOfOneRank) {
    for (const Layout& l : {layouts[1], layouts[4]}) {
        Config one = laid_out(config(concat(l.name, " one")), {"one", 1, 1, 1, 1, l.sum}), many = laid_out(config(concat(l.name, " many")), l);
        for (Config* c : {&one, &many}) {
            overflow_first(*c, 0x1p19);
            c->train.steps = 10;
            train_whole(*c);
        }
        EXPECT_EQ(differing(tensors_of(at_step(one, 10)), tensors_of(at_step(many, 10))), "") << l.name;
        for (const char* key : {"loss", "loss_scale"}) EXPECT_EQ(logged(one.run.dir, key), logged(many.run.dir, key)) << l.name;
        EXPECT_LT(logged(one.run.dir, "loss_scale").at(10), 0x1p19);
    }
}

TEST_F(F16, ComputedTwiceARunIsTheSameAndOverflowsAreNoFindings) {
    Config once = config("once"), twice = config("twice");
    once.fault.mode = "disabled", twice.fault.mode = "validate", twice.fault.interval = 1;
    for (Config* c : {&once, &twice}) {
        overflow_first(*c, 0x1p19);
        c->train.steps = 10;
        EXPECT_EQ(run(*c).why, "done");
    }
    EXPECT_EQ(differing(tensors_of(at_step(once, 10)), tensors_of(at_step(twice, 10))), "");
    EXPECT_EQ(logged(once.run.dir, "loss_scale"), logged(twice.run.dir, "loss_scale"));
    EXPECT_TRUE(findings(twice).empty());
}

// Where no smaller scale can help, it is a number that is not finite like any other.
TEST_F(F16, AnOverflowAtTheMinimumOrOfAConstantScaleIsAFault) {
    for (const char* scale : {"dynamic", "16777216"}) {
        Config c = config(concat("minimum ", scale));
        c.optim.loss_scale = scale, c.optim.loss_scale_initial = c.optim.loss_scale_min = 0x1p24;
        const Ending end = run(c);
        EXPECT_EQ(end.finding.code, ExitCode::open) << scale;
        EXPECT_EQ(end.finding.step, 1);
        EXPECT_NE(end.finding.where.find("the gradient of "), std::string::npos) << end.finding.where;
        c.fault.mode = "disabled", c.run.dir += " on";
        EXPECT_EQ(run(c).why, "done");  // every step is skipped
        EXPECT_EQ(logged(c.run.dir, "loss_scale").at(5), 0x1p24);
    }
}

// A loss that is not finite comes from forward, where the scale has no part.
TEST_F(F16, ALossThatIsNotFiniteIsAFaultAtAnyScale) {
    const Config c = config("forward", {"param_nan,step=2,tensor=layers.0.qkv"});
    const Ending end = run(c);
    EXPECT_EQ(end.finding.code, ExitCode::open);
    EXPECT_NE(end.finding.where.find("the parameter layers.0.qkv, before the step"), std::string::npos) << end.finding.where;
}

TEST(State, HoldsTheLossScaleAndRefusesOneThatCannotBe) {
    const Config c = test::tiny_config("f16");
    const auto read = [&](double scale) {
        const LossScale::State state{.scale = scale, .good_steps = 7, .hysteresis = -1};
        return parse_state(state_text({}, c, 0, {.loss_scale = state}), "state.json");
    };
    EXPECT_EQ(read(0.5).loss_scale, (LossScale::State{.scale = 0.5, .good_steps = 7, .hysteresis = -1}));
    try {
        (void)read(-4);
        FAIL();
    } catch (const Error& e) {
        EXPECT_STREQ(e.what(), "state.json: the loss scale is -4; it can be from 2^-24 to 2^64");
    }
    EXPECT_FALSE(parse_state(state_text({}, c, 0), "state.json").loss_scale);  // of a run in another type
}

// The scale is a power of two and comes out of float gradients again: where nothing overflows and nothing is lost, no bit changes.
TEST(LossScaleOfAModel, LeavesNormAndUpdateOfAFloatModelAsTheyWere) {
    Config c = test::tiny_config("f32");
    const test::TinyBatch batch(c, 2, 1);
    const auto trained = [&](float scale) {
        Stream stream(1);
        const auto model = make_model(c, Backend(stream), training_use(c));
        model->init(1);
        model->scale_loss(scale);
        model->zero_grads();
        std::vector<double> out{model->train_micro_batch(batch.batch())};
        model->reduce_grads();
        out.push_back(model->grad_norm());
        model->update({.lr = 1e-2f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .grad_scale = 0.125f, .step = 1});
        for (std::int64_t i = 0; i < model->master().size(); ++i) out.push_back(static_cast<double>(model->master()[i]));
        return out;
    };
    EXPECT_EQ(trained(1), trained(0x1p20f));
}

}  // namespace
}  // namespace keel
