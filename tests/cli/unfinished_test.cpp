// What `tokenizer train`, `tokenize` and `convert` leave behind when they are killed, when the disk is full, and when nothing
// can be written: nothing that looks finished, and nothing in the way of the next try.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/temp_folder.h"

namespace keel::test {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

std::string read_all(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

// A command that needs the work of another, and the name under which its own appears when it is done: of a pair of files that
// of the one that makes it a pair.
struct Work {
    std::string name, before, words, result;
};
void PrintTo(const Work& work, std::ostream* out) { *out << work.words; }  // CTest shows it beside the test's name

class Unfinished : public testing::TestWithParam<Work> {
protected:
    TempFolder dir;

    void SetUp() override {
        std::ofstream text(dir / "book.txt");
        for (int i = 0; i < 40'000; ++i) text << "verse " << i << ": and " << i % 97 << " of them saw it, and it was good.\n";
        text.close();
        std::ofstream(dir / "short.txt") << "and they saw that it was good, and they saw it\n";
        ASSERT_EQ(run(GetParam().before), 0) << said();
    }
    pid_t start(const std::string& words, rlim_t largest_file = RLIM_INFINITY) const {
        std::vector<std::string> parts{KEEL_BINARY};
        std::string part;
        for (bool quoted = false; const char c : words + " ") {
            if (c == '\'') quoted = !quoted;
            else if (c == ' ' && !quoted) parts.push_back(std::exchange(part, ""));
            else part += c;
        }
        std::vector<char*> argv;
        for (std::string& p : parts) argv.push_back(p.data());
        argv.push_back(nullptr);
        const pid_t child = ::fork();
        if (child != 0) return child;
        const rlimit limit{largest_file, largest_file};
        if (::chdir(dir.path().c_str()) != 0 || !std::freopen("said", "w", stderr) || !std::freopen("/dev/null", "w", stdout) ||
            (largest_file != RLIM_INFINITY && ::setrlimit(RLIMIT_FSIZE, &limit) != 0))
            ::_exit(99);
        ::execv(KEEL_BINARY, argv.data());
        ::_exit(99);
    }
    static int end(pid_t child) {
        int status = 0;
        ::waitpid(child, &status, 0);
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    int run(const std::string& words) const { return end(start(words)); }
    std::string said() const { return read_all(dir / "said"); }

    // Every file of the result by its name; empty if it is not there.
    std::map<std::string, std::string> result() const {
        std::map<std::string, std::string> files;
        const fs::path path = dir.path() / GetParam().result;
        if (fs::is_regular_file(path)) files[""] = read_all(path);
        if (fs::is_directory(path))
            for (const auto& entry : fs::recursive_directory_iterator(path))
                if (entry.is_regular_file()) files[fs::relative(entry.path(), path).string()] = read_all(entry.path());
        return files;
    }
    void remove_result() const { fs::remove_all(dir.path() / GetParam().result); }
    std::vector<std::string> names() const {
        std::vector<std::string> all;
        for (const auto& entry : fs::recursive_directory_iterator(dir.path()))
            if (entry.path().filename() != "said") all.push_back(entry.path().string());
        std::sort(all.begin(), all.end());
        return all;
    }
};

TEST_P(Unfinished, KilledAtAnyTimeItLeavesNothingThatLooksDoneAndTheNextTryIsAsIfNothingHadBeen) {
    const auto began = Clock::now();
    ASSERT_EQ(run(GetParam().words), 0) << said();
    const auto whole = Clock::now() - began;
    const auto want = result();
    const auto there = names();
    ASSERT_FALSE(want.empty());
    constexpr int kills = 10;
    for (int i = 0; i < kills; ++i) {
        remove_result();
        const pid_t child = start(GetParam().words);
        std::this_thread::sleep_for(whole * (2 * i + 1) / (2 * kills));
        ::kill(child, SIGKILL);
        end(child);
        const auto left = result();
        EXPECT_TRUE(left.empty() || left == want) << "kill " << i;
    }
    remove_result();
    ASSERT_EQ(run(GetParam().words), 0) << said();
    EXPECT_TRUE(result() == want);
    EXPECT_EQ(names(), there) << "what killed runs left is still there";
}

TEST_P(Unfinished, AFullDiskIsSaidWithTheFileAndLeavesNothingThatLooksDone) {
    ASSERT_EQ(run(GetParam().words), 0) << said();
    const auto want = result();
    std::size_t largest = 0;
    for (const auto& [name, content] : want) largest = std::max(largest, content.size());
    for (std::size_t limit : {std::size_t{1024}, largest / 2, largest - 1}) {
        limit = std::max<std::size_t>(limit, 1024);  // bytes a file may have; the message is one too
        remove_result();
        EXPECT_EQ(end(start(GetParam().words, limit)), 1) << limit;
        EXPECT_TRUE(said().find("keel: error: cannot ") != std::string::npos && said().find("File too large") != std::string::npos) << said();
        EXPECT_TRUE(result().empty()) << limit;
    }
    remove_result();
    ASSERT_EQ(run(GetParam().words), 0) << said();
    EXPECT_TRUE(result() == want);
}

TEST_P(Unfinished, AFolderThatTakesNoFilesIsSaidByItsName) {
    std::string words = GetParam().words;
    const std::size_t at = words.rfind(' ');  // the result is the last word
    words = words.substr(0, at + 1) + "/proc/" + words.substr(at + 1);  // not even root writes there
    EXPECT_EQ(run(words), 1);
    EXPECT_NE(said().find("keel: error: cannot "), std::string::npos) << said();
    EXPECT_NE(said().find("/proc/"), std::string::npos) << said();
}

const std::string known = "tokenizer train --vocab 270 short.txt --out known";

const std::string llama = "convert '" KEEL_TEST_DIR "/golden/folders/llama' ";

INSTANTIATE_TEST_SUITE_P(
    Command, Unfinished,
    testing::Values(Work{"tokenizer", known, "tokenizer train --vocab 600 book.txt --out learned.json", "learned.json"},
                    Work{"tokenize", known, "tokenize --tokenizer known book.txt --out a.tok", "a.tok"},
                    Work{"megatron", known, "tokenize --tokenizer known --to megatron book.txt --out a.bin", "a.idx"},
                    Work{"llmc", known, "tokenize --tokenizer known --to llmc book.txt --out a.bin", "a.bin"},
                    Work{"checkpoint", llama + "folder", llama + "there", "there/step-00000000"},
                    Work{"folder", llama + "there", "convert there folder", "folder"}),
    [](const auto& of) { return of.param.name; });

}  // namespace
}  // namespace keel::test
