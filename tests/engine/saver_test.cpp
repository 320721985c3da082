// Checkpoints behind the training and on local storage: they change nothing of a run, and a run comes back from them.
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <map>
#include <string>
#include <thread>

#include "ckpt/checkpoint.h"
#include "comm/threads.h"
#include "engine/run.h"
#include "engine/train.h"
#include "kernels/base/file.h"
#include "kernels/base/file_faults.h"
#include "tests/engine/tiny.h"

namespace keel {
namespace {

namespace fs = std::filesystem;

class SaverTest : public testing::Test {
protected:
    SaverTest() { test::write_token_file(dir.path() / "a.tok", 61, 1500, 1); }

    Config config(const std::string& name) const {
        Config c = test::tiny_config("bf16");
        c.run.dir = (dir.path() / name).string();
        c.run.threads = 1;
        c.data.train = {(dir.path() / "a.tok").string()};
        c.train.steps = 6;
        c.ckpt.interval = 2, c.ckpt.keep_last = 0;
        c.parallel.tp = 2, c.parallel.dp = 2, c.parallel.vocab_multiple = 1;
        return c;
    }
    template <class Body>
    static void ranks(const Config& config, Body body) {
        run_threads(4, {.deadline_s = 60}, [&](World& world) {
            keel::Run run(config, &world);
            body(run);
        });
    }
    static void expect_same_tensors(const fs::path& a, const fs::path& b) {
        int files = 0;
        for (const CheckpointFile& file : verify_checkpoint(a).files)
            if (file.name.ends_with(".safetensors")) {
                ++files;
                EXPECT_EQ(read_file(a / file.name), read_file(b / file.name)) << b / file.name;
            }
        EXPECT_GT(files, 1);
    }
    test::TempFolder dir;
};

TEST_F(SaverTest, WhatIsWrittenBehindTheTrainingIsWhatWouldHaveBeenWrittenAtOnce) {
    const Config at_once = config("at once");
    Config behind = config("behind");
    behind.ckpt.async = true;
    for (const Config& c : {at_once, behind}) ranks(c, [](keel::Run& run) { EXPECT_STREQ(train(run), "done"); });
    for (const char* step : {"step-00000002", "step-00000004", "step-00000006"})
        expect_same_tensors(fs::path(at_once.run.dir) / "checkpoints" / step,
                            fs::path(behind.run.dir) / "checkpoints" / step);
}

TEST_F(SaverTest, APausedWriterNeverSeesLaterWeights) {
    Config at_once = config("at once"), behind = config("behind");
    behind.ckpt.async = true;
    std::atomic<bool> released{true};
    std::atomic<int> paused{0};
    const FileFaults faults([&](FileStep, const fs::path&) {
        if (!released) ++paused;
        while (!released) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        return 0;
    });
    for (const Config& c : {at_once, behind})
        ranks(c, [&](keel::Run& run) {
            for (int i = 1; i <= 5; ++i) {  // saved after the second step, released after three more
                const StepPlan plan = run.schedule.at(run.progress);
                run.progress.advance(plan, *train_step(run, plan));
                run.ranks.world.barrier();
                if (i == 2) released = !c.ckpt.async;
                run.ranks.world.barrier();
                if (i == 2) save_checkpoint(run);
                // The writer is at its first file before the weights go on.
                for (int ms = 0; i == 2 && c.ckpt.async && paused == 0 && ms < 20000; ++ms)
                    std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
            run.ranks.world.barrier();
            EXPECT_EQ(run.saver->under_way(), c.ckpt.async);
            released = true;
            tend_saves(run, false, true);
        });
    EXPECT_GT(paused, 0);
    expect_same_tensors(fs::path(at_once.run.dir) / "checkpoints/step-00000002",
                        fs::path(behind.run.dir) / "checkpoints/step-00000002");
}

TEST_F(SaverTest, AFullDiskBehindTheTrainingCostsOneCheckpointAndTheLastMustSucceed) {
    Config c = config("full");
    c.ckpt.async = true;
    std::string full = "step-00000002";
    const FileFaults faults([&](FileStep step, const fs::path& path) {
        const bool hit = step == FileStep::write && path.string().find(full) != std::string::npos &&
                         path.filename() == "optimizer-rank-00003-of-00004.safetensors";
        return hit ? ENOSPC : 0;
    });
    testing::internal::CaptureStderr();
    ranks(c, [](keel::Run& run) { EXPECT_STREQ(train(run), "done"); });
    const std::string told = testing::internal::GetCapturedStderr();
    EXPECT_NE(told.find("step 2 failed on rank 3: cannot write"), std::string::npos) << told;
    EXPECT_NE(told.find("training goes on"), std::string::npos) << told;
    const fs::path root = fs::path(c.run.dir) / "checkpoints";
    EXPECT_FALSE(fs::exists(root / "step-00000002"));
    EXPECT_TRUE(fs::exists(root / "step-00000004"));
    EXPECT_TRUE(fs::exists(root / "step-00000006"));

    full = "step-00000008";
    c.train.steps = 8;
    c.ckpt.accept_changes = true;
    try {
        ranks(c, [](keel::Run& run) { train(run); });
        ADD_FAILURE() << "the last checkpoint could not be written, and the run ended as if it was";
    } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find("step 8 failed on rank 3: cannot write"), std::string::npos) << e.what();
    }
}

TEST_F(SaverTest, ALostRunGoesOnFromItsLocalCheckpointBitForBit) {
    const Config whole = config("whole");
    ranks(whole, [](keel::Run& run) { train(run); });
    Config c = config("lost");
    c.ckpt.interval = 0;
    c.ckpt.local_dir = (dir.path() / "local").string(), c.ckpt.local_interval = 1;
    ranks(c, [](keel::Run& run) {  // three steps, and then it is gone without a checkpoint
        for (int i = 0; i < 3; ++i) {
            const StepPlan plan = run.schedule.at(run.progress);
            run.progress.advance(plan, *train_step(run, plan));
            tend_saves(run, true, false);
        }
    });
    EXPECT_FALSE(find_newest_checkpoint(fs::path(c.run.dir) / "checkpoints", {}));
    ranks(c, [](keel::Run& run) {
        EXPECT_EQ(run.progress.steps, 3);
        train(run);
    });
    expect_same_tensors(fs::path(whole.run.dir) / "checkpoints/step-00000006",
                        fs::path(c.run.dir) / "checkpoints/step-00000006");

    // A checkpoint as new as the local one is as good; starting anew, the local ones are of another history.
    c.ckpt.resume = "none";
    ranks(c, [](keel::Run& run) { EXPECT_EQ(run.progress.steps, 0); });
    c.ckpt.resume = "auto";
    ranks(c, [](keel::Run& run) { EXPECT_EQ(run.progress.steps, 0); });
}

TEST_F(SaverTest, TheSnapshotIsInTheMemoryPlan) {
    Config c = config("plan");
    c.parallel = {};
    resolve_and_validate(c);
    const std::int64_t without = plan_model(c, training_use(c)).peak_bytes();
    c.ckpt.async = true;
    const MemoryPlan plan = plan_model(c, training_use(c));
    EXPECT_GT(plan.peak_bytes(), without);
    EXPECT_NE(plan.table().find("snapshot of a checkpoint"), std::string::npos) << plan.table();
}

TEST_F(SaverTest, LocalFlagsNeedEachOther) {
    Config c = config("flags");
    c.ckpt.local_dir = "/tmp";
    try {
        resolve_and_validate(c);
        ADD_FAILURE();
    } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find("--ckpt.local_dir and --ckpt.local_interval need each other"),
                  std::string::npos)
            << e.what();
    }
}

}  // namespace
}  // namespace keel
