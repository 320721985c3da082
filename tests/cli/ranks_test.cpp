// `keel train` on ranks that are processes: against ranks that are threads, a job of which half is killed, a rank that
// gets a signal, a rank that hangs, and launchers' variables that cannot be.
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "engine/parallel/mesh.h"
#include "tests/cli/job.h"
#include "tests/engine/rank_runs.h"

namespace keel {
namespace {

namespace fs = std::filesystem;
using test::Job, test::checkpoint_of, test::differing, test::logged, test::tensors_of, test::within;

constexpr double patience = 100;  // seconds; only a machine that does a hundred other things needs more than one or two

class RanksTest : public testing::Test {
protected:
    RanksTest() { test::write_token_file(dir.path() / "a.tok", 31, 1500, 1); }

    std::string train(const std::string& run, const std::string& more) const {
        return concat("'" KEEL_BINARY "' train --model.dtype f32 --model.vocab 31 --model.hidden 16 --model.layers 2 ",
                      "--model.heads 2 --model.kv_heads 2 --model.head_dim 8 --model.ffn 24 --model.init_std 0.2 ",
                      "--data.seq_len 8 --data.train '", (dir.path() / "a.tok").string(), "' --train.global_batch 8 ",
                      "--train.micro_batch 1 --optim.lr 1e-2 --optim.schedule constant --parallel.vocab_multiple 1 ",
                      "--run.threads 1 --train.log_interval 1000000 --run.dir '", at(run).string(), "' ", more);
    }
    static std::string mpirun(int ranks, const std::string& command) {
        return concat(KEEL_MPIEXEC " --allow-run-as-root --oversubscribe --bind-to none --mca pml ob1 ",
                      "--mca btl self,vader -np ", ranks, " ", command);
    }
    Job start(const std::string& command) { return Job(command, at(concat("said", ++jobs_))); }
    void done(const std::string& command) {
        Job job = start(command);
        EXPECT_EQ(job.wait(patience), 0) << command << "\n" << job.said();
    }
    // Starts a job without an end, and waits until its log has `step`.
    Job under_way(const std::string& run, int ranks, int step, const std::string& more) {
        Job job = start(mpirun(ranks, train(run, "--train.steps 10000000 " + more)));
        const auto steps = [&] { return static_cast<int>(logged(at(run), "loss").size()); };
        EXPECT_TRUE(within(patience, [&] { return steps() >= step || job.wait(0) != -1; })) << job.said();
        return job;
    }
    fs::path at(const std::string& name) const { return dir.path() / name; }

    test::TempFolder dir;
    int jobs_ = 0;
};

TEST_F(RanksTest, ProcessesHaveTheBitsOfThreads) {
    const std::string layout = "--parallel.tp 2 --parallel.pp 2 --train.steps 4 ";
    done(train("threads", layout));
    done(mpirun(4, train("processes", layout)));
    for (const char* key : {"loss", "grad_norm", "tokens"})
        EXPECT_EQ(logged(at("threads"), key), logged(at("processes"), key)) << key;
    EXPECT_EQ(logged(at("processes"), "loss").size(), 4u);
    const auto threads = tensors_of(checkpoint_of(at("threads"), 4));
    EXPECT_EQ(differing(threads, tensors_of(checkpoint_of(at("processes"), 4))), "");
}

// Who is where is told once, by rank 0; and the processors of a host are shared out among its ranks.
TEST_F(RanksTest, TheMapOfTheRanksIsPrintedOnceAndProcessorsAreSharedOut) {
    const int threads = 4 * std::max(1, available_cpus() / 4);
    char host[256] = {};
    ASSERT_EQ(gethostname(host, sizeof host - 1), 0);
    const std::string map = rank_map(mesh_shape(4, {.tp = 2, .dp = 1, .pp = 2}), std::vector<std::string>(4, host));
    for (const char* how : {"threads", "processes"}) {
        std::string command = train(how, "--parallel.tp 2 --parallel.pp 2 --train.steps 1");
        command.replace(command.find("--run.threads 1"), 15, "--run.threads 0");
        Job job = start(how[0] == 't' ? command : mpirun(4, command));
        ASSERT_EQ(job.wait(patience), 0) << job.said();
        const std::string said = job.said();
        const std::size_t at = said.find(map);
        ASSERT_NE(at, std::string::npos) << said;
        EXPECT_EQ(said.find("  host\n", at + map.size()), std::string::npos) << said;
        EXPECT_NE(said.find(concat(" threads ", threads, " ")), std::string::npos) << said;
    }
}

// P40. Exact sums make each step's loss a fingerprint of its samples: no sample is lost, repeated or moved.
TEST_F(RanksTest, HalfOfTheRanksAreKilledAndHalfAWorldGoesOnWithTheSameSamples) {
    const std::string exact = "--numerics.grad_sum exact --ckpt.interval 3 ";
    {
        Job job = under_way("killed", 4, 8, exact);
        const auto ranks = job.ranks(4);
        for (const int rank : {1, 3}) {
            ASSERT_GT(ranks[static_cast<std::size_t>(rank)], 0) << job.said();
            kill(ranks[static_cast<std::size_t>(rank)], SIGKILL);
        }
        const int code = job.wait(patience);
        EXPECT_NE(code, 0) << job.said();
        EXPECT_NE(code, -1) << "it hangs\n" << job.said();
    }
    const auto saved = find_newest_checkpoint(at("killed") / "checkpoints", {});
    ASSERT_TRUE(saved.has_value());
    EXPECT_GT(saved->step, 0);
    const std::int64_t end = saved->step + 7;
    done(mpirun(2, train("killed", exact + concat("--train.steps ", end))));
    done(train("alone", exact + concat("--train.steps ", end)));
    auto losses = logged(at("killed"), "loss");
    losses.erase(losses.upper_bound(end), losses.end());  // steps past the last checkpoint, which were lost
    EXPECT_EQ(losses, logged(at("alone"), "loss"));
    EXPECT_EQ(losses.size(), static_cast<std::size_t>(end));
    EXPECT_EQ(differing(tensors_of(checkpoint_of(at("killed"), end)), tensors_of(checkpoint_of(at("alone"), end))), "");
}

// P57.
TEST_F(RanksTest, ASignalToOneRankStopsAllWithOneCheckpointAndNoFailure) {
    Job job = under_way("signal", 4, 3, "");
    const pid_t rank = job.ranks(4)[2];
    ASSERT_GT(rank, 0) << job.said();
    kill(rank, SIGTERM);
    EXPECT_EQ(job.wait(patience), 0) << job.said();
    const auto losses = logged(at("signal"), "loss");
    const auto saved = find_newest_checkpoint(at("signal") / "checkpoints", {});
    ASSERT_TRUE(saved.has_value());
    EXPECT_EQ(saved->step, losses.rbegin()->first);
    EXPECT_NE(job.said().find("report: "), std::string::npos) << job.said();
}

// P55.
TEST_F(RanksTest, ARankThatHangsIsNamedByTheOthersWithTheCollectiveAndItsNumber) {
    Job job = under_way("hang", 4, 2, "--parallel.deadline_s 4 ");
    const pid_t rank = job.ranks(4)[1];
    ASSERT_GT(rank, 0) << job.said();
    kill(rank, SIGSTOP);
    EXPECT_EQ(job.wait(patience), 3) << job.said();
    std::istringstream lines(job.said());
    int told = 0, named = 0;
    for (std::string line; std::getline(lines, line);) {
        if (line.find(" within 4 s") == std::string::npos) continue;
        ++told;
        static const std::regex whole(".* group of ranks [0-9,]+: [a-z_]+.* \\(#[0-9]+\\).* ranks? [0-9,]+[ :].*");
        EXPECT_TRUE(std::regex_match(line, whole)) << line;
        // A rank that waits for rank 1 in one group is missing in another, where the others name it instead; and who sends
        // to rank 1 may come to wait for it sooner than who waits for what it sends.
        static const std::regex one(".*: ranks? ([0-9],)*1(,[0-9])* did not come.*|.* to rank 1: what was sent was not taken.*");
        named += std::regex_match(line, one) ? 1 : 0;
    }
    EXPECT_GE(named, 1) << job.said();
    EXPECT_GE(told, 3) << job.said();  // rank 1 may say it, too: it is woken to be ended
}

// A rank is stopped; the others' watchdogs say in which collective they wait, and the run leaves by the code for that.
TEST_F(RanksTest, AHangIsToldByEveryRankThatStillRunsAndEndsTheRunIfAsked) {
    Job job = under_way("silent", 4, 2, "--watch.step_s 4 --watch.leave true --watch.heartbeat_s 0.2 ");
    const pid_t rank = job.ranks(4)[1];
    ASSERT_GT(rank, 0) << job.said();
    kill(rank, SIGSTOP);
    EXPECT_EQ(job.wait(patience), static_cast<int>(ExitCode::hang)) << job.said();
    for (const int other : {0, 2, 3}) {
        const std::regex told(concat("rank ", other, " \\(.*, process [0-9]+\\) gave no sign of life for [0-9.]+ s "
                                     "\\(--watch.step_s 4\\): [a-z]+ \\(step [0-9]+.*\\); in .* group of ranks 0,1,2,3: .* \\(#[0-9]+\\)"));
        EXPECT_TRUE(std::regex_search(job.said(), told)) << other << "\n" << job.said();
    }
    EXPECT_TRUE(fs::exists(at("silent") / "heartbeat")) << job.said();
}

// One rank has other settings: all say who differs, before any work.
TEST_F(RanksTest, ARankWithOtherSettingsIsNamed) {
    Job job = start(mpirun(1, train("differ", "--train.steps 2 ")) + ": -np 1 " +
                    train("differ", "--train.steps 2 --train.seed 7"));
    EXPECT_EQ(job.wait(patience), 1) << job.said();
    EXPECT_NE(job.said().find("--train.seed"), std::string::npos) << job.said();
    EXPECT_EQ(job.said().find("--train.steps"), std::string::npos) << job.said();  // what does not differ is not told
    EXPECT_NE(job.said().find("rank 1"), std::string::npos) << job.said();
}

// P56, and ecosystem's rules of who a process is: the rest of them are tests/comm/launch_test.cpp.
TEST_F(RanksTest, LaunchersVariablesThatCannotBeAreRefusedBeforeAnyWork) {
    const auto refused = [&](const std::string& variables, const std::string& message) {
        Job job = start(variables + " " + train("refused", "--train.steps 2"));
        EXPECT_EQ(job.wait(patience), 2) << job.said();
        EXPECT_NE(job.said().find(message), std::string::npos) << job.said();
        EXPECT_FALSE(fs::exists(at("refused")));
    };
    refused("env RANK=1", "RANK is set, but WORLD_SIZE is not");
    refused("env RANK=0 WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=8",
            "torchrun says rank 0 of 2, Open MPI says rank 3 of 8");
    refused("env RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4", "Start it by mpirun or srun");
    refused("env SLURM_JOB_ID=1 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2", "srun --mpi=pmix");
    Job job = start(mpirun(3, train("refused", "--train.steps 2 --parallel.tp 2")));
    EXPECT_EQ(job.wait(patience), 2) << job.said();
    EXPECT_NE(job.said().find("--parallel.tp"), std::string::npos) << job.said();
}

}  // namespace
}  // namespace keel
