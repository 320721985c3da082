// A run as a whole: stop and resume, what a resumed run may change, signals, damaged checkpoints.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ckpt/checkpoint.h"
#include "ckpt/model_folder.h"
#include "engine/open_model.h"
#include "engine/resume.h"
#include "engine/run.h"
#include "engine/state.h"
#include "engine/train.h"
#include "kernels/base/file.h"
#include "tests/engine/rank_runs.h"

namespace keel {
namespace {

namespace fs = std::filesystem;

class RunTest : public testing::Test {
protected:
    RunTest() {
        test::write_token_file(dir.path() / "a.tok", 61, 1500, 1);
        test::write_token_file(dir.path() / "b.tok", 61, 900, 2);
    }
    Config config(const std::string& name, const std::string& dtype = "f32") const {
        Config c = test::tiny_config(dtype);
        c.run.dir = (dir.path() / name).string();
        c.run.threads = 2;
        c.data.train = {(dir.path() / "a.tok").string()};
        return c;
    }
    test::TempFolder dir;
};

struct Curve {
    std::vector<double> losses;
    std::vector<float> weights, moments;
    bool operator==(const Curve&) const = default;
};

void go(Run& run, Curve& curve, int steps) {
    for (int i = 0; i < steps; ++i) {
        const StepPlan plan = run.schedule.at(run.progress);
        const StepResult step = *train_step(run, plan);
        run.progress.advance(plan, step);
        curve.losses.push_back(step.loss.mean());
    }
    const auto copy = [](View<float> x) { return std::vector<float>(x.data(), x.data() + x.size()); };
    curve.weights = copy(run.model->master());
    curve.moments = copy(run.model->second_moment());
}

TEST_F(RunTest, TenStepsResumedForTenMoreAreTwentySteps) {
    // 1500 tokens are 62 samples: twenty steps of four cross an epoch's border. The second run is inside of a batch ramp,
    // the third draws from a blend; bf16 keeps master weights of its own.
    std::vector<Config> cases{config("epoch"), config("ramp"), config("blend"), config("bf16", "bf16")};
    cases[1].train.steps = 0, cases[1].train.samples = 60, cases[1].train.batch_ramp = {2, 2, 40};
    cases[1].train.micro_batch = 2, cases[1].train.global_batch = 6;
    cases[2].data.train = {"0.7", (dir.path() / "a.tok").string(), "0.3", (dir.path() / "b.tok").string()};
    for (const Config& c : cases) {
        Curve whole, parts;
        Config undisturbed = c;
        undisturbed.run.dir += " undisturbed";
        {
            keel::Run run(undisturbed);
            go(run, whole, 20);
        }
        {
            keel::Run run(c);
            go(run, parts, 10);
            save_checkpoint(run);
        }
        Config again = c;
        again.run.threads = 1;
        keel::Run run(again);
        EXPECT_EQ(run.progress.steps, 10);
        go(run, parts, 10);
        EXPECT_EQ(whole, parts) << c.run.dir;
    }
}

TEST_F(RunTest, AStepCanBeRunAgainOnTheSameDataWithTheSameResult) {
    keel::Run run(config("again"));
    Curve curve;
    go(run, curve, 2);
    const StepPlan plan = run.schedule.at(run.progress);
    const View<float> grads = run.model->grads();
    std::vector<float> before(run.model->master().data(), run.model->master().data() + run.model->master().size());
    run.config.optim.clip = 1e-30;  // an update that moves nothing but by decay
    run.config.optim.weight_decay = 0;
    train_step(run, plan);
    const std::vector<float> first(grads.data(), grads.data() + grads.size());
    std::memcpy(run.model->master().data(), before.data(), before.size() * sizeof(float));
    train_step(run, plan);
    EXPECT_EQ(std::memcmp(first.data(), grads.data(), first.size() * sizeof(float)), 0);
}

TEST_F(RunTest, ANonFiniteGradientChangesNothingButConsumesItsData) {
    Config c = config("nan");
    c.fault.mode = "disabled";
    keel::Run run(c);
    Curve curve;
    go(run, curve, 1);
    run.model->master()[5] = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> before(run.model->second_moment().data(),
                                    run.model->second_moment().data() + run.model->second_moment().size());
    const StepPlan plan = run.schedule.at(run.progress);
    const StepResult step = *train_step(run, plan);
    run.progress.advance(plan, step);
    EXPECT_FALSE(step.applied);
    EXPECT_EQ(run.progress.skipped, 1);
    EXPECT_EQ(run.progress.samples, 8);
    EXPECT_EQ(std::memcmp(before.data(), run.model->second_moment().data(), before.size() * sizeof(float)), 0);
}

TEST_F(RunTest, RefusesToResumeAnotherModelAndAsksBeforeTheCurveChanges) {
    {
        keel::Run run(config("resume"));
        Curve curve;
        go(run, curve, 1);
        save_checkpoint(run);
    }
    const auto message = [](const Config& c) {
        try {
            keel::Run run(c);
        } catch (const Error& e) {
            EXPECT_EQ(e.code(), ExitCode::usage);
            return std::string(e.what());
        }
        return std::string();
    };
    Config wider = config("resume");
    wider.model.ffn = 48;
    EXPECT_NE(message(wider).find("model.ffn: 40 -> 48"), std::string::npos) << message(wider);
    Config faster = config("resume");
    faster.optim.lr = 5e-3;
    EXPECT_NE(message(faster).find("optim.lr: 0.01 -> 0.005"), std::string::npos) << message(faster);
    EXPECT_NE(message(faster).find("--ckpt.accept_changes true"), std::string::npos);
    faster.ckpt.accept_changes = true;
    EXPECT_EQ(message(faster), "");
    Config longer = config("resume");  // the cosine ends with the run
    longer.train.steps = 40;
    EXPECT_NE(message(longer).find("optim.decay_samples (the end of the run): 80 -> 160"), std::string::npos) << message(longer);
    Config elsewhere = config("resume");
    elsewhere.run.threads = 1, elsewhere.memory.recompute = "block";
    EXPECT_EQ(message(elsewhere), "");
}

// The files are where they were, but made with another tokenizer: every id means something else.
TEST_F(RunTest, RefusesToGoOnWithTokensOfAnotherTokenizer) {
    const Config c = config("tokenizer");
    {
        keel::Run run(c);
        save_checkpoint(run);
    }
    test::write_token_file(dir.path() / "a.tok", 61, 1500, 1, 78);
    try {
        keel::Run run(c);
        FAIL();
    } catch (const Error& e) {
        EXPECT_NE(std::strstr(e.what(), "the tokenizer of "), nullptr) << e.what();
        EXPECT_NE(std::strstr(e.what(), "made with tokenizer"), nullptr) << e.what();
    }
}

TEST_F(RunTest, ADamagedCheckpointIsPassedOverForTheOneBeforeIt) {
    const Config c = config("damaged");
    {
        keel::Run run(c);
        Curve curve;
        go(run, curve, 1);
        save_checkpoint(run);
        go(run, curve, 1);
        save_checkpoint(run);
    }
    const fs::path newest = fs::path(c.run.dir) / "checkpoints" / "step-00000002" / "weights.safetensors";
    ASSERT_TRUE(fs::exists(newest));
    fs::resize_file(newest, fs::file_size(newest) - 1);
    keel::Run run(c);
    EXPECT_EQ(run.progress.steps, 1);
}

// Beginning again in silence would lose the run: who has checkpoints wants to go on.
TEST_F(RunTest, NoGoodCheckpointAmongThoseThereAreIsRefusedUntilAskedToStartAnew) {
    Config c = config("all damaged");
    {
        keel::Run run(c);
        Curve curve;
        go(run, curve, 1);
        save_checkpoint(run);
    }
    fs::remove(fs::path(c.run.dir) / "checkpoints" / "step-00000001" / "manifest.json");
    const auto said = [&] {
        try {
            keel::Run run(c);
            return concat("at step ", run.progress.steps);
        } catch (const Error& e) {
            return std::string(e.what());
        }
    };
    EXPECT_EQ(said(), "no checkpoint in " + c.run.dir + "/checkpoints is good; mend one, or start anew with --ckpt.resume none");
    c.ckpt.resume = c.run.dir;  // the run, and not one of its checkpoints
    EXPECT_EQ(said(), "--ckpt.resume is \"" + c.run.dir + "\"; it must be auto, none or the folder of one complete checkpoint, as in " +
                          c.run.dir + "/checkpoints/step-00001000");
    c.ckpt.resume = "none";
    EXPECT_EQ(said(), "at step 0");
}

// Asked for, and then never done: an evaluation that has no sample must not be passed over in silence.
TEST_F(RunTest, AValidationPartTooSmallForASampleIsRefused) {
    Config c = config("sliver");
    c.data.split = {0.999, 0.001, 0};
    try {
        keel::Run run(c);
        FAIL();
    } catch (const Error& e) {
        EXPECT_NE(std::strstr(e.what(), "the validation part of "), nullptr) << e.what();
        EXPECT_NE(std::strstr(e.what(), "is empty"), nullptr) << e.what();
    }
}

TEST_F(RunTest, TokensOfAnotherVocabularyAreRefused) {
    test::write_token_file(dir.path() / "large.tok", 90, 400, 3);
    Config c = config("vocab");
    c.data.train = {(dir.path() / "large.tok").string()};
    try {
        keel::Run run(c);
        FAIL();
    } catch (const Error& e) {
        EXPECT_NE(std::strstr(e.what(), "--model.vocab is 61; raise it to at least 90"), nullptr) << e.what();
    }
}

// From a model folder: the shape comes with the weights, a flag that says otherwise is refused, and what config.json holds
// beyond keel's own settings stays with the run.
TEST_F(RunTest, StartsFromTheWeightsOfAModelFolder) {
    const fs::path folder = dir.path() / "folder";
    std::vector<float> weights;
    {
        keel::Run run(config("origin"));
        ModelShape shape = model_shape(run.config.model);
        shape.other_keys = "{\"made_by\": \"a test\"}";
        save_model_folder(folder, shape, param_tensors(*run.model), {.tokenizer_from = {}, .dtype = Dtype::f32});
        weights.assign(run.model->master().data(), run.model->master().data() + run.model->master().size());
    }
    Config c = config("started");
    c.model = {};
    c.model.dtype = "f32";
    c.ckpt.init = folder.string();
    {
        keel::Run run(c);
        EXPECT_EQ(std::memcmp(run.model->master().data(), weights.data(), weights.size() * sizeof(float)), 0);
        EXPECT_EQ(run.config.model.ffn, 40);
        save_checkpoint(run);
    }
    keel::Run again(c);
    EXPECT_NE(again.config_json.find("a test"), std::string::npos);
    c.model.ffn = 48;
    try {
        keel::Run run(c);
        FAIL();
    } catch (const Error& e) {
        EXPECT_NE(std::strstr(e.what(), "--model.ffn is 48, but --ckpt.init"), nullptr) << e.what();
    }
}

TEST_F(RunTest, ASignalStopsWithACheckpointOfTheLastWholeStep) {
    Config c = config("signal");
    c.train.steps = 100000;
    keel::Run run(c);
    std::thread sender([&] {
        // The first step is in the log: the handlers are there.
        const fs::path log = fs::path(c.run.dir) / "log.jsonl";
        for (int i = 0; i < 6000 && (!fs::exists(log) || read_file(log).find("\"loss\"") == std::string::npos); ++i)
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        kill(getpid(), SIGTERM);
    });
    EXPECT_STREQ(train(run), "signal");
    sender.join();
    EXPECT_GE(run.progress.steps, 1);
    const auto info = find_newest_checkpoint(run.checkpoint_root(), {});
    ASSERT_TRUE(info.has_value());
    EXPECT_EQ(info->step, run.progress.steps);
}

// One step of a million micro-batches: nobody who sends SIGTERM waits for its end.
TEST_F(RunTest, ASignalAbandonsALongStepBetweenItsMicroBatches) {
    Config c = config("long step");
    c.train.global_batch = 2000000;
    c.train.steps = 1;
    keel::Run run(c);
    std::thread sender([] {
        struct sigaction now {};
        for (int i = 0; i < 6000 && (sigaction(SIGTERM, nullptr, &now), now.sa_handler == SIG_DFL); ++i)
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        kill(getpid(), SIGTERM);
    });
    // Were it not seen, this would run for hours.
    EXPECT_STREQ(train(run), "signal");
    sender.join();
    EXPECT_EQ(run.progress.samples, 0);
    EXPECT_EQ(find_newest_checkpoint(run.checkpoint_root(), {})->step, 0);
}

// The last evaluation comes behind the last checkpoint, and is made up for by whoever goes on from there: nothing is lost to a
// run that falls, or is told to stop, between the two.
TEST_F(RunTest, TheLastEvaluationIsOwedUntilItIsDone) {
    const auto evaluated = [](const Config& c) {
        const auto at = test::logged(c.run.dir, "loss", "eval");
        return at.size() == 1 && at.contains(c.train.steps) ? at.at(c.train.steps) : std::nan("");
    };
    Config c = config("owed");
    c.data.split = {0.8, 0.2, 0}, c.train.steps = 1, c.train.micro_batch = c.train.global_batch;
    {
        keel::Run fell(c);
        test::take_step(fell);
        save_checkpoint(fell);
    }
    {
        keel::Run run(c);
        EXPECT_STREQ(train(run), "done");
    }
    const double loss = evaluated(c);
    EXPECT_GT(loss, 0);

    Config told = c;
    told.run.dir = config("told").run.dir, told.fault.mode = "disabled";  // then nobody else looks at its gradients
    {
        keel::Run run(told);
        run.model->gradients().tap([](int, View<float>) { raise(SIGTERM); });
        testing::internal::CaptureStderr();
        EXPECT_STREQ(train(run), "signal");
        (void)testing::internal::GetCapturedStderr();
        EXPECT_EQ(find_newest_checkpoint(run.checkpoint_root(), {})->step, 1);
    }
    EXPECT_TRUE(std::isnan(evaluated(told)));
    {
        keel::Run run(told);
        EXPECT_STREQ(train(run), "done");
    }
    EXPECT_EQ(evaluated(told), loss);

    Config passed = c;
    passed.run.dir = config("passed").run.dir, passed.fault.skip = {"1"};
    {
        keel::Run run(passed);
        EXPECT_STREQ(train(run), "done");
    }
    EXPECT_GT(evaluated(passed), 0);
}

TEST_F(RunTest, TheWholeLoopTrainsEvaluatesAndSaves) {
    Config c = config("whole");
    c.data.split = {0.8, 0.2, 0};
    c.train.eval_interval = 5;
    c.ckpt.interval = 7;
    keel::Run run(c);
    EXPECT_STREQ(train(run), "done");
    EXPECT_EQ(run.progress.steps, 20);
    EXPECT_EQ(find_newest_checkpoint(run.checkpoint_root(), {})->step, 20);
    EXPECT_TRUE(fs::exists(finish(run, "done")));
    EXPECT_TRUE(fs::exists(fs::path(c.run.dir) / "log.jsonl"));
}

}  // namespace
}  // namespace keel
