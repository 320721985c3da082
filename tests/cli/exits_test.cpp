// Every way in which a run leaves before its end, by real processes: decided by all ranks, behind a checkpoint of exactly that
// step, and the run that goes on has the curve of one that never left.
#include <gtest/gtest.h>

#include <csignal>
#include <string>

#include "tests/cli/job.h"
#include "tests/engine/rank_runs.h"

namespace keel {
namespace {

namespace fs = std::filesystem;
using test::Job, test::logged, test::within;

constexpr double patience = 100;  // seconds; only a machine that does a hundred other things needs more than one or two

class ExitsTest : public testing::Test {
protected:
    ExitsTest() { test::write_token_file(dir.path() / "a.tok", 61, 4000, 1); }

    fs::path at(const std::string& name) const { return dir.path() / name; }
    // Four ranks that are threads.
    std::string train(const std::string& run, const std::string& more) const {
        return concat("'" KEEL_BINARY "' train --model.dtype f32 --model.vocab 61 --model.hidden ", hidden, " --model.layers 2 ",
                      "--model.heads 4 --model.ffn 40 --data.seq_len 16 --data.train '", at("a.tok").string(), "' ",
                      "--train.global_batch 8 --train.micro_batch 1 --optim.schedule constant --run.threads 1 ",
                      "--parallel.tp 2 --parallel.dp 2 --parallel.vocab_multiple 1 --run.dir '", at(run).string(), "' ", more);
    }
    Job start(const std::string& run, const std::string& more) { return Job(train(run, more), at(concat("said", ++jobs_))); }
    // It ends with code 0 for this reason, and its newest checkpoint is good and of the last step that it took.
    void expect_left(const std::string& run, Job& job, const std::string& why, std::int64_t step = 0) {
        EXPECT_EQ(job.wait(patience), 0) << job.said();
        const std::string log = read_file(at(run) / "log.jsonl");
        const auto end = log.rfind("\"why\":\"");
        ASSERT_NE(end, std::string::npos) << log;
        EXPECT_EQ(log.substr(end + 7, why.size() + 1), why + "\"");
        const auto losses = logged(at(run), "loss");
        const auto saved = find_newest_checkpoint(at(run) / "checkpoints", {});
        ASSERT_TRUE(saved.has_value()) << job.said();
        EXPECT_EQ(saved->step, losses.empty() ? 0 : losses.rbegin()->first) << why;
        if (step > 0) {
            EXPECT_EQ(saved->step, step) << why;
        }
    }
    bool has_logged(const std::string& run, std::size_t steps) const { return logged(at(run), "loss").size() >= steps; }

    test::TempFolder dir;
    int hidden = 32, jobs_ = 0;
};

TEST_F(ExitsTest, ALongRunInPiecesIsTheRunInOne) {
    Job whole = start("whole", "--train.steps 14 ");
    expect_left("whole", whole, "done", 14);
    const std::string pieces = "--train.steps 14 --exit.interval 5 --exit.steps 7 ";
    for (const auto& [why, step] : {std::pair{"interval", 5}, {"phase", 7}, {"interval", 10}, {"done", 14}}) {
        Job job = start("pieces", pieces);
        expect_left("pieces", job, why, step);
    }
    EXPECT_EQ(logged(at("pieces"), "loss"), logged(at("whole"), "loss"));
}

TEST_F(ExitsTest, ALimitOfWallClockLeavesTimeForTheLastCheckpoint) {
    for (const char* save : {"--ckpt.async false", "--ckpt.async true"}) {
        Job job = start(save, concat("--train.steps 10000000 --exit.after_s 3 --ckpt.interval 50 ", save));
        expect_left(save, job, "time");
        EXPECT_NE(job.said().find("so that a checkpoint fits before --exit.after_s 3"), std::string::npos) << job.said();
    }
}

TEST_F(ExitsTest, ASignalLeavesBehindACheckpointAndItsRankSaysSo) {
    for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
        const std::string run = concat("signal", signal);
        Job job = start(run, "--train.steps 10000000 ");
        ASSERT_TRUE(within(patience, [&] { return has_logged(run, 2) || job.wait(0) != -1; })) << job.said();
        ASSERT_TRUE(job.signal(signal)) << job.said();
        expect_left(run, job, "signal");
        EXPECT_NE(job.said().find(concat("told to stop by signal ", signal)), std::string::npos) << job.said();
    }
}

TEST_F(ExitsTest, AMachineThatFailsItsSelfTestIsLeftByItsCodeAndNotTriedAgain) {
    Job job = start("bad core", "--train.steps 100 --ckpt.interval 2 --watch.self_test_interval 4 --restart.max 3 "
                                "--inject.faults bad_core,step=7,rank=1 ");
    EXPECT_EQ(job.wait(patience), static_cast<int>(ExitCode::device)) << job.said();
    EXPECT_NE(job.said().find("error: rank 1: the self-test failed on "), std::string::npos) << job.said();
    EXPECT_NE(job.said().find(" multiplied wrongly in float32: element (0, 0) of a product is "), std::string::npos) << job.said();
    EXPECT_NE(job.said().find("not started again: a machine failed its self-test, or a rank stands out (--watch.even)"), std::string::npos) << job.said();
    EXPECT_EQ(logged(at("bad core"), "loss").rbegin()->first, 8);
    const auto saved = find_newest_checkpoint(at("bad core") / "checkpoints", {});
    ASSERT_TRUE(saved.has_value());
    EXPECT_EQ(saved->step, 6);  // what was computed after the last good one is not trusted
}

TEST_F(ExitsTest, ARankThatHangsEndsTheRunByItsCode) {
    Job job = start("hang", "--train.steps 100 --watch.step_s 4 --watch.leave true --inject.faults hang,step=5,rank=2 ");
    EXPECT_EQ(job.wait(patience), static_cast<int>(ExitCode::hang)) << job.said();
    for (int rank = 0; rank < 4; ++rank)
        EXPECT_NE(job.said().find(concat("rank ", rank, " (")), std::string::npos) << job.said();
    EXPECT_NE(job.said().find("step (step 5); it waits for no other rank"), std::string::npos) << job.said();
}

// The second signal finds the checkpoint half written: the process is stopped the moment its hidden folder is there.
TEST_F(ExitsTest, ASecondSignalLeavesAtOnceAndWhatWasHalfWrittenIsNotThere) {
    hidden = 512;  // some 30 MB, which take a while
    const std::string large = "--train.steps 10000000 --ckpt.interval 3 ";
    Job job = start("twice", large);
    const fs::path root = at("twice") / "checkpoints";
    const auto newest = [&] { return find_newest_checkpoint(root, {}); };
    ASSERT_TRUE(within(patience, [&] { return (fs::exists(root) && newest()) || job.wait(0) != -1; })) << job.said();
    ASSERT_TRUE(job.signal(SIGTERM)) << job.said();
    const auto half_written = [&] {
        for (const auto& entry : fs::directory_iterator(root))
            if (entry.path().filename().string().starts_with(".tmp")) return true;
        return false;
    };
    while (!half_written() && job.wait(0) == -1) {}
    ASSERT_TRUE(job.signal(SIGSTOP)) << job.said();
    ASSERT_EQ(job.wait(1.5), -1) << job.said();  // later than the moment in which both would be one wish
    ASSERT_TRUE(job.signal(SIGTERM) && job.signal(SIGCONT)) << job.said();
    EXPECT_EQ(job.wait(patience), 128 + SIGTERM) << job.said();
    EXPECT_NE(job.said().find("a second signal: leaving at once"), std::string::npos) << job.said();
    const auto saved = newest();
    ASSERT_TRUE(saved.has_value());
    EXPECT_EQ(saved->step % 3, 0);  // the one of the signal is not there
    Job again = start("twice", large + concat("--exit.steps ", saved->step + 1));
    expect_left("twice", again, "phase", saved->step + 1);
    EXPECT_FALSE(half_written());
}

}  // namespace
}  // namespace keel
