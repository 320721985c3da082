// The suite on processes. Each test starts `mpirun comm_ranks …`, and reads what the ranks say.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdio>
#include <string>

#include "tests/comm/suite.h"

namespace keel {
namespace {

using comm_suite::FailureCase;

struct Outcome {
    int code;
    std::string said;
    double seconds;
};

constexpr const char* shared_memory = "--mca btl self,vader";
constexpr const char* tcp = "--mca btl self,tcp --mca btl_tcp_if_include lo";  // as between machines

Outcome mpirun(int ranks, const std::string& what, const char* network = shared_memory) {
    // `timeout` is for a test that would hang.
    const std::string command =
        concat("timeout 60 " KEEL_MPIEXEC " --allow-run-as-root --oversubscribe --bind-to none --mca pml ob1 ", network,
               " -np ", ranks, " '" KEEL_COMM_RANKS "' ", what, " 2>&1");
    const auto begin = std::chrono::steady_clock::now();
    Outcome outcome{-1, "", 0};
    FILE* pipe = popen(command.c_str(), "r");
    if (!pipe) return outcome;
    char piece[4096];
    for (std::size_t n; (n = fread(piece, 1, sizeof piece, pipe)) > 0;) outcome.said.append(piece, n);
    const int status = pclose(pipe);
    outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return outcome;
}

// The line of that rank.
std::string line_of(const Outcome& outcome, int rank) {
    const std::size_t begin = outcome.said.find(concat("rank ", rank, " says: "));
    return begin == std::string::npos ? "" : outcome.said.substr(begin, outcome.said.find("(code", begin) - begin);
}

class Mpi : public testing::TestWithParam<int> {};
TEST_P(Mpi, DoesWhatTheSuiteAsks) {
    const Outcome outcome = mpirun(GetParam(), "suite");
    EXPECT_EQ(outcome.code, 0) << outcome.said;
    for (const comm_suite::Case& one : comm_suite::cases())
        EXPECT_NE(outcome.said.find(concat("passed ", one.name)), std::string::npos) << outcome.said;
    EXPECT_NE(outcome.said.find("all ranks are done"), std::string::npos) << outcome.said;
}
INSTANTIATE_TEST_SUITE_P(Ranks, Mpi, testing::Range(1, 9));

TEST(MpiTcp, DoesWhatTheSuiteAsks) {
    const Outcome outcome = mpirun(3, "suite", tcp);
    EXPECT_EQ(outcome.code, 0) << outcome.said;
    EXPECT_NE(outcome.said.find("all ranks are done"), std::string::npos) << outcome.said;
}

TEST(MpiTcp, ALongMessageArrivesWhileItsSenderComputes) {
    const Outcome outcome = mpirun(2, "compute", tcp);
    EXPECT_EQ(outcome.code, 0) << outcome.said;
}

class MpiFail : public testing::TestWithParam<FailureCase> {};
TEST_P(MpiFail, EveryRankSaysWhyAndNobodyHangs) {
    const FailureCase& failure = GetParam();
    const Outcome outcome = mpirun(comm_suite::failure_ranks, failure.name);
    EXPECT_EQ(outcome.code, static_cast<int>(failure.code)) << outcome.said;
    EXPECT_LT(outcome.seconds, 10) << outcome.said;
    for (int rank = 0; rank < comm_suite::failure_ranks; ++rank)
        for (const std::string& text : failure.says(rank, comm_suite::failure_ranks))
            EXPECT_NE(line_of(outcome, rank).find(text), std::string::npos)
                << "rank " << rank << " does not say \"" << text << "\":\n" << outcome.said;
}
std::string name_of(const testing::TestParamInfo<FailureCase>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Suite, MpiFail, testing::ValuesIn(comm_suite::failure_cases()), name_of);

TEST(MpiFail, ARankThatIsKilledTakesTheOthersWithIt) {
    for (const int step : {0, 1, 17}) {
        const Outcome outcome = mpirun(3, concat("kill ", step));
        EXPECT_NE(outcome.code, 0) << outcome.said;
        EXPECT_LT(outcome.seconds, 10) << outcome.said;
    }
}

TEST(MpiFail, AWorldThatIsNotTheLaunchersIsRefused) {
    // As if keel had been started by the mpirun of another MPI: each process would be a world of its own.
    FILE* pipe = popen(
        "timeout 60 env -i PATH=/usr/bin:/bin HOME=/tmp OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
        "PMI_RANK=1 PMI_SIZE=4 '" KEEL_COMM_RANKS "' suite 2>&1",
        "r");
    ASSERT_TRUE(pipe);
    std::string said;
    char piece[4096];
    for (std::size_t n; (n = fread(piece, 1, sizeof piece, pipe)) > 0;) said.append(piece, n);
    EXPECT_NE(pclose(pipe), 0);
    EXPECT_NE(said.find("MPICH says 4 ranks, but MPI sees 1"), std::string::npos) << said;
}

}  // namespace
}  // namespace keel
