// One process at a time trains in a run's folder; a killed one leaves nothing to clean up.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "engine/fault/run_lock.h"
#include "engine/run.h"
#include "kernels/base/error.h"
#include "tests/engine/tiny.h"

namespace keel {
namespace {

std::string refusal(const std::filesystem::path& dir) {
    try {
        const RunLock lock(dir);
        return "";
    } catch (const Error& e) {
        return e.what();
    }
}

TEST(RunLock, ASecondProcessIsRefusedWithTheNumberOfTheFirst) {
    const test::TempFolder dir;
    const auto run = dir.path() / "deep" / "run";
    {
        const RunLock lock(run);
        const std::string said = refusal(run);
        EXPECT_TRUE(said.starts_with(run.string() + " is in use: process " + std::to_string(getpid()) + " on ")) << said;
        EXPECT_TRUE(said.ends_with("; wait for it, stop it, or name another --run.dir")) << said;
        EXPECT_EQ(refusal(dir.path() / "other"), "");
    }
    EXPECT_EQ(refusal(run), "");
}

TEST(RunLock, EndsWithAProcessThatIsKilled) {
    const test::TempFolder dir;
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
        const RunLock lock(dir.path());
        (void)!write(ready[1], "x", 1);
        pause();
        _exit(0);
    }
    char byte;
    ASSERT_EQ(read(ready[0], &byte, 1), 1);
    EXPECT_NE(refusal(dir.path()).find("process " + std::to_string(child) + " on "), std::string::npos);
    kill(child, SIGKILL);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    EXPECT_EQ(refusal(dir.path()), "");
    close(ready[0]), close(ready[1]);
}

TEST(RunLock, AFileInThePlaceOfTheFolderIsTold) {
    const test::TempFolder dir;
    std::ofstream(dir.path() / "file") << "x";
    EXPECT_EQ(refusal(dir.path() / "file" / "run"),
              "cannot make folder " + (dir.path() / "file" / "run").string() + ": Not a directory; name another --run.dir");
    EXPECT_NE(refusal(dir.path() / "file").find("--run.dir"), std::string::npos);
}

TEST(RunLock, ARunInAFolderInUseIsRefusedBeforeAnythingIsWrittenThere) {
    const test::TempFolder dir;
    test::write_token_file(dir.path() / "a.tok", 61, 500, 1);
    Config config = test::tiny_config();
    config.run.dir = (dir.path() / "run").string();
    config.run.threads = 1;
    config.data.train = {(dir.path() / "a.tok").string()};
    const RunLock lock(config.run.dir);
    try {
        const keel::Run run(config);
        FAIL() << "two runs share a folder";
    } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find(" is in use: process "), std::string::npos) << e.what();
    }
    EXPECT_FALSE(std::filesystem::exists(dir.path() / "run" / "checkpoints"));
    EXPECT_FALSE(std::filesystem::exists(dir.path() / "run" / "log.jsonl"));
}

}  // namespace
}  // namespace keel
