// A run that falls is started again from its newest good checkpoint; real processes, killed for real.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "ckpt/local_checkpoints.h"
#include "tests/engine/tiny.h"

namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

std::string read_all(const fs::path& path) {
    std::ifstream in(path);
    return {std::istreambuf_iterator<char>(in), {}};
}

class Supervise : public testing::Test {
protected:
    Supervise() { keel::test::write_token_file(dir_.path() / "a.tok", 61, 20000, 1); }

    std::string command(const std::string& name, const std::string& more) const {
        return "\"" KEEL_BINARY "\" train --model.dtype f32 --model.vocab 61 --model.hidden 32 --model.layers 2 --model.heads 4"
               " --model.ffn 40 --data.seq_len 32 --train.global_batch 4 --train.micro_batch 1 --run.threads 1 --data.train '" +
               (dir_.path() / "a.tok").string() + "' --run.dir '" + (dir_.path() / name).string() + "' " + more + " >'" +
               (dir_.path() / (name + ".out")).string() + "' 2>'" + (dir_.path() / (name + ".err")).string() + "'";
    }
    // Starts it in a shell of its own that becomes the command.
    pid_t start(const std::string& name, const std::string& more) const {
        const std::string line = "exec " + command(name, more);
        const pid_t pid = fork();
        if (pid < 0) throw std::runtime_error("no process could be made");  // a signal to -1 goes to everybody
        if (pid == 0) {
            execl("/bin/bash", "bash", "-c", line.c_str(), nullptr);
            _exit(127);
        }
        return pid;
    }
    int end(pid_t pid) const {
        int status = 0;
        for (int i = 0; i < 1200; ++i) {  // a minute
            if (waitpid(pid, &status, WNOHANG) == pid) return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            std::this_thread::sleep_for(50ms);
        }
        kill(pid, SIGKILL);
        return -1;
    }
    std::string err(const std::string& name) const { return read_all(dir_.path() / (name + ".err")); }

    // The process that `parent` watches, 0 if there is none now.
    static pid_t child_of(pid_t parent) {
        const std::string text = read_all("/proc/" + std::to_string(parent) + "/task/" + std::to_string(parent) + "/children");
        return text.empty() ? 0 : std::atoi(text.c_str());
    }
    // Kills the run under `watcher` and returns once the watcher has said that it starts it for the `restart`th time. Until then no
    // child lives: what is on the disk now is all that the killed run made.
    void kill_child_of(pid_t watcher, const std::string& name, int restart) const {
        pid_t child = 0;
        for (int i = 0; i < 3000 && (child = child_of(watcher)) <= 0; ++i) std::this_thread::sleep_for(20ms);
        if (child <= 0) throw std::runtime_error("there is no run to kill");
        kill(child, SIGKILL);
        const std::string said = "Restart " + std::to_string(restart) + " of";
        for (int i = 0; i < 3000 && err(name).find(said) == std::string::npos; ++i) std::this_thread::sleep_for(20ms);
    }
    bool has_checkpoint_past(const std::string& name, int step) const {
        const fs::path root = dir_.path() / name / "checkpoints";
        if (!fs::exists(root)) return false;
        for (const auto& entry : fs::directory_iterator(root)) {
            const std::string folder = entry.path().filename().string();
            if (folder.starts_with("step-") && std::stoi(folder.substr(5)) > step) return true;
        }
        return false;
    }
    // Losses of the surviving curve: of a step that was trained twice the later line counts.
    std::vector<std::string> curve(const std::string& name) const {
        std::ifstream log(dir_.path() / name / "log.jsonl");
        const std::regex step("\"step\":\\s*([0-9]+).*\"loss\":\\s*([0-9.eE+-]+)");
        std::vector<std::string> losses(61);
        std::smatch found;
        for (std::string line; std::getline(log, line);)
            if (line.find("\"samples\"") != std::string::npos && std::regex_search(line, found, step) && std::stoul(found[1]) < losses.size())
                losses[std::stoul(found[1])] = found[2];
        return losses;
    }

    keel::test::TempFolder dir_;
};

TEST_F(Supervise, AKilledRunGoesOnAndItsCurveIsTheUndisturbedOne) {
    const std::string run = "--train.steps 60 --ckpt.interval 5";
    ASSERT_EQ(end(start("plain", run)), 0) << err("plain");
    const pid_t watcher = start("killed", run + " --restart.max 5");
    for (int i = 0; i < 1200 && !has_checkpoint_past("killed", 0); ++i) std::this_thread::sleep_for(20ms);
    kill_child_of(watcher, "killed", 1);
    for (int i = 0; i < 1200 && !has_checkpoint_past("killed", 20); ++i) std::this_thread::sleep_for(20ms);
    if (const pid_t child = child_of(watcher); child > 0) kill(child, SIGKILL);  // if it is not at its end already
    ASSERT_EQ(end(watcher), 0) << err("killed");
    EXPECT_NE(err("killed").find("was killed by signal 9"), std::string::npos) << err("killed");
    EXPECT_NE(err("killed").find("Restart 1 of 5 in 1 s"), std::string::npos) << err("killed");
    EXPECT_EQ(curve("killed"), curve("plain"));
    EXPECT_NE(curve("plain")[60], "");
}

// At steps 9 and 21 the run kills itself, once each: three lives, and the curve of one.
TEST_F(Supervise, AnInjectedKillIsSufferedOnceAtEachOfItsSteps) {
    const std::string run = "--train.steps 30 --ckpt.interval 4";
    ASSERT_EQ(end(start("calm", run)), 0) << err("calm");
    ASSERT_EQ(end(start("hard", run + " --restart.max 9 --inject.faults kill,step=9,every=12")), 0) << err("hard");
    EXPECT_EQ(curve("hard"), curve("calm"));
    EXPECT_NE(err("hard").find("keel: warning: faults will be injected into this run (--inject.faults):\n  rank 0: kill,step=9,every=12"),
              std::string::npos) << err("hard");
    EXPECT_EQ(read_all(dir_.path() / "hard" / "injected.txt"),
              "0 9 kill,step=9,every=12\n0 21 kill,step=9,every=12\n");
}

// The clock starts with step 9, and any time at all has passed when step 10 begins, however fast the machine is.
TEST_F(Supervise, AKillAtARandomTimeIsSufferedOnceAndTheRunRecovers) {
    const std::string run = "--train.steps 30 --ckpt.interval 4", fault = "kill/hang:0,step=9,mttf=1e-9";
    ASSERT_EQ(end(start("calm", run)), 0) << err("calm");
    ASSERT_EQ(end(start("hard", run + " --restart.max 2 --inject.faults " + fault)), 0) << err("hard");
    EXPECT_EQ(curve("hard"), curve("calm"));
    EXPECT_NE(err("hard").find("rank 0: " + fault + ", drawn: kill, 0.00 s after the beginning of step 9"), std::string::npos) << err("hard");
    EXPECT_NE(err("hard").find("was killed by signal 9"), std::string::npos) << err("hard");
    EXPECT_EQ(read_all(dir_.path() / "hard" / "injected.txt"), "0 10 " + fault + "\n");
}

TEST_F(Supervise, LocalCheckpointsAreProgress) {
    const fs::path local = dir_.path() / "local", root = dir_.path() / "local only" / "checkpoints";
    const auto newest = [&] { return keel::LocalCheckpoints::newest_here(local, root, 1).value_or(-1); };
    const pid_t watcher = start("local only", "--train.steps 1000000 --ckpt.local_interval 3 --ckpt.local_dir '" + local.string() +
                                                  "' --restart.max 9");
    std::int64_t step = 0;
    for (int kills = 1; kills <= 3; ++kills) {  // two in vain would be the end
        for (int i = 0; i < 3000 && newest() <= step; ++i) std::this_thread::sleep_for(20ms);
        kill_child_of(watcher, "local only", kills);
        step = newest();
    }
    for (int i = 0; i < 3000 && newest() <= step; ++i) std::this_thread::sleep_for(20ms);
    kill(watcher, SIGTERM);
    EXPECT_EQ(end(watcher), 0) << err("local only");
    EXPECT_NE(err("local only").find("the newest good checkpoint is of step"), std::string::npos) << err("local only");
    EXPECT_NE(err("local only").find("Restart 3 of 9 in 1 s"), std::string::npos) << err("local only");  // the delay began anew
}

TEST_F(Supervise, ARunThatMakesNoProgressIsGivenUp) {
    // A file may be no larger than 8 KiB: no checkpoint can ever be written.
    const std::string line = "ulimit -f 8; exec " + command("stuck", "--train.steps 4 --ckpt.interval 2 --restart.max 9");
    const pid_t pid = fork();
    if (pid == 0) {
        execl("/bin/bash", "bash", "-c", line.c_str(), nullptr);
        _exit(127);
    }
    EXPECT_EQ(end(pid), 1) << err("stuck");
    EXPECT_NE(err("stuck").find("there is no checkpoint yet. Given up: two starts in a row made no new checkpoint"), std::string::npos)
        << err("stuck");
}

TEST_F(Supervise, ARefusedConfigurationIsNotTriedAgain) {
    EXPECT_EQ(end(start("refused", "--train.steps 4 --optim.lr -1 --restart.max 3")), 2);
    EXPECT_NE(err("refused").find("not started again: the configuration was refused"), std::string::npos) << err("refused");
}

TEST_F(Supervise, ASignalToTheWatcherStopsTheRunForGood) {
    const pid_t watcher = start("stopped", "--train.steps 1000000 --ckpt.interval 5 --restart.max 3");
    for (int i = 0; i < 1200 && !has_checkpoint_past("stopped", 0); ++i) std::this_thread::sleep_for(20ms);
    kill(watcher, SIGTERM);
    EXPECT_EQ(end(watcher), 0) << err("stopped");
    EXPECT_EQ(err("stopped").find("Restart"), std::string::npos) << err("stopped");
}

}  // namespace
