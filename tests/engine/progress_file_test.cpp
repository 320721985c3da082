// progress.txt: what counts as done, and how fast, over the jobs of a run.
#include "engine/observe/progress_file.h"

#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <ctime>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "tests/temp_folder.h"

using namespace keel;

namespace {

const Warn no_warning = [](const std::string& text) { ADD_FAILURE() << text; };

double at(int hour, int minute) {
    std::tm parts{};
    parts.tm_year = 126, parts.tm_mon = 0, parts.tm_mday = 31, parts.tm_hour = hour, parts.tm_min = minute;
    return static_cast<double>(timegm(&parts));
}
std::string line(const char* clock, int ranks, const std::string& text) {
    return concat("2026-01-31 ", clock, ":00\tJob ID: 1\t# ranks: ", ranks, "\t", text, "\n");
}
std::string saving(const char* flops) {
    return concat("Saving checkpoint\tIteration: 5\tFloating-point operations: ", flops);
}
const std::string saved = "Saved checkpoint\tIteration: 5", starting = "Starting job";

// TFLOP/s per rank of a job that holds `flops` at 5 o'clock.
double cumulative(const std::string& text, int ranks, double flops) {
    const auto start = progress_start(text, ranks, "progress.txt", no_warning);
    return start ? throughput(*start, at(5, 0), flops, ranks) / 1e12 : -1;
}

}  // namespace

// behaviour.md, T14.5: worked out by hand.
TEST(ProgressFile, CountsCommittedWorkOfJobsWithTheSameNumberOfRanks) {
    const std::string text = line("00:00", 8, starting) + line("00:50", 8, saving("1.00e18")) +
                             line("00:50", 8, saved) + line("01:00", 16, starting) +
                             line("02:30", 16, saving("3.00e18")) + line("02:30", 16, saved) +
                             line("03:00", 8, starting) + line("03:40", 8, saving("5.00e18")) +  // and no more of it
                             line("04:00", 8, starting);
    EXPECT_NEAR(cumulative(text, 8, 6e18), 52.08, 0.005);
    EXPECT_EQ(cumulative(text, 16, 6e18), -1) << "a row that other jobs have ended";
    EXPECT_EQ(cumulative("", 8, 6e18), -1);
}

TEST(ProgressFile, BeginsARowAnewWhereAJobStartsFromBeforeIt) {
    const std::string text = line("00:00", 8, starting + "\tIteration: 90\tFloating-point operations: 4e18") +
                             line("03:00", 8, starting + "\tIteration: 0\tFloating-point operations: 0");
    EXPECT_NEAR(cumulative(text, 8, 6e18), 6e18 / (7200e12 * 8), 1e-9);
}

TEST(ProgressFile, ReportsDamagedLinesAndLeavesThemOut) {
    std::vector<std::string> warnings;
    const std::string text = line("03:00", 8, starting) + "2026-01-31 03:10:0\tJob" + "\n" +
                             line("03:20", 8, "Saved checkpoint\tIteration: five") + line("yesterday", 16, starting) +
                             line("03:40", 8, saving("many")) + "\n" + std::string("\0\xff\x01\n", 4);
    const auto start = progress_start(text, 8, "progress.txt", [&](const std::string& w) { warnings.push_back(w); });
    ASSERT_TRUE(start);
    EXPECT_EQ(start->unix_time, at(3, 0));
    ASSERT_EQ(warnings.size(), 5u);
    EXPECT_EQ(warnings[0], "progress.txt:2: this line is damaged and left out: 2026-01-31 03:10:0\tJob");
    EXPECT_EQ(warnings[4].substr(0, 15), "progress.txt:7:");
}

TEST(ProgressFile, IsWrittenInTwoPhases) {
    const test::TempFolder folder;
    const std::string path = folder / "progress.txt";
    ProgressFile file(path, 4, "4711", no_warning);
    file.start(at(12, 0), 0, 0);
    file.saving(at(12, 50), 100, 1.2345678901234567e18, 250000000);
    file.saved(at(12, 51), 100);
    EXPECT_EQ(
        read_file(path),
        "2026-01-31 12:00:00\tJob ID: 4711\t# ranks: 4\tStarting job\tIteration: 0\tFloating-point operations: 0\n"
        "2026-01-31 12:50:00\tJob ID: 4711\t# ranks: 4\tSaving checkpoint\tIteration: 100\tJob throughput: 102.9 "
        "TFLOP/s/rank\t"
        "Cumulative throughput: 102.9 TFLOP/s/rank\tFloating-point operations: 1234567890123456768\tTokens (in "
        "billions): 0.25\n"
        "2026-01-31 12:51:00\tJob ID: 4711\t# ranks: 4\tSaved checkpoint\tIteration: 100\n");
}

TEST(ProgressFile, IsAddedToByTheNextJobWhereverTheLastOneWasKilled) {
    const test::TempFolder folder;
    const std::string path = folder / "progress.txt";
    if (const pid_t child = fork(); child == 0) {
        ProgressFile file(path, 8, "1", [](const std::string&) {});
        file.start(at(3, 0), 10, 3e18);
        file.saving(at(3, 40), 20, 5e18, 1);
        kill(getpid(), SIGKILL);
    } else {
        int status = 0;
        ASSERT_EQ(waitpid(child, &status, 0), child);
        ASSERT_TRUE(WIFSIGNALED(status));
    }
    const std::string before = read_file(path);
    ProgressFile next(path, 8, "2", no_warning);
    next.start(at(4, 0), 10, 3e18);
    next.saving(at(5, 0), 30, 6e18, 1);
    const std::string text = read_file(path);
    EXPECT_TRUE(text.starts_with(before)) << "what is written stays";
    EXPECT_NE(text.find("Job throughput: 104.2 TFLOP/s/rank\tCumulative throughput: 52.08 TFLOP/s/rank"),
              std::string::npos)
        << text;

    folder.write("torn.txt", line("03:00", 8, starting) + "2026-01-31 03:40:00\tJob ID: 1\t# ra");
    std::vector<std::string> warnings;
    ProgressFile after(folder / "torn.txt", 8, "3", [&](const std::string& w) { warnings.push_back(w); });
    after.start(at(4, 0), 0, 0);
    EXPECT_EQ(warnings.size(), 1u);
    EXPECT_TRUE(read_file(folder / "torn.txt")
                    .ends_with("# ra\n2026-01-31 04:00:00\tJob ID: 3\t# ranks: 8\tStarting job\tIteration: 0\t"
                               "Floating-point operations: 0\n"));
}
