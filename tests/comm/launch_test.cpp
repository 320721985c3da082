// Who a process is, by its environment: every launcher, and every way to contradict oneself.
#include <gtest/gtest.h>

#include "comm/launch.h"
#include "kernels/base/error.h"

namespace keel {
namespace {

std::string refusal(const Environment& environment) {
    try {
        (void)read_launch(environment);
    } catch (const Error& e) {
        EXPECT_EQ(e.code(), ExitCode::usage);
        return e.what();
    }
    return "";
}

#define EXPECT_REFUSED(text, ...) EXPECT_NE(refusal(Environment{__VA_ARGS__}).find(text), std::string::npos) \
    << "said: " << refusal(Environment{__VA_ARGS__})

const Environment open_mpi = {{"OMPI_COMM_WORLD_RANK", "3"},
                              {"OMPI_COMM_WORLD_SIZE", "8"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};

Environment with(Environment base, const Environment& more) {
    for (const auto& [name, value] : more) base[name] = value;
    return base;
}

TEST(Launch, WithoutALauncherIsOneRank) {
    const Launch launch = read_launch({{"PATH", "/bin"}});
    EXPECT_EQ(launch.launcher, "none");
    EXPECT_EQ(launch.rank, 0);
    EXPECT_EQ(launch.world, 1);
    EXPECT_EQ(launch.local_size, 1);
    EXPECT_TRUE(launch.note.empty());
}

TEST(Launch, OpenMpiIsRecognised) {
    const Launch launch = read_launch(open_mpi);
    EXPECT_EQ(launch.launcher, "Open MPI");
    EXPECT_EQ(launch.rank, 3);
    EXPECT_EQ(launch.world, 8);
    EXPECT_EQ(launch.local_rank, 1);
    EXPECT_EQ(launch.local_size, 2);
}

TEST(Launch, MpichIsRecognisedWithAndWithoutLocalRanks) {
    Launch launch = read_launch({{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}});
    EXPECT_EQ(launch.launcher, "MPICH");
    EXPECT_EQ(launch.local_rank, -1);
    EXPECT_EQ(launch.local_size, -1);
    launch = read_launch({{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}});
    EXPECT_EQ(launch.local_rank, 1);
    EXPECT_EQ(launch.local_size, 2);
}

TEST(Launch, ASlurmStepIsRecognisedAndItsTaskListRead) {
    const Environment step = {
        {"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "17"}, {"SLURM_STEP_NUM_TASKS", "20"},     {"SLURM_NTASKS", "20"},
        {"SLURM_LOCALID", "1"}, {"SLURM_NODEID", "2"},  {"SLURM_TASKS_PER_NODE", "8(x2),4"}};
    const Launch launch = read_launch(step);
    EXPECT_EQ(launch.launcher, "Slurm");
    EXPECT_EQ(launch.rank, 17);
    EXPECT_EQ(launch.world, 20);
    EXPECT_EQ(launch.local_rank, 1);
    EXPECT_EQ(launch.local_size, 4);
    EXPECT_EQ(read_launch(with(step, {{"SLURM_NODEID", "1"}})).local_size, 8);
    EXPECT_EQ(read_launch(with(step, {{"SLURM_STEP_TASKS_PER_NODE", "5(x4)"}})).local_size, 5);
    EXPECT_EQ(read_launch(with(step, {{"SLURM_TASKS_PER_NODE", "8(x"}})).local_size, -1);
}

TEST(Launch, AStepOfFewerTasksThanTheJobIsTheStep) {
    const Launch launch = read_launch({{"SLURM_STEP_ID", "3"}, {"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "2"},
                                       {"SLURM_NTASKS", "16"}, {"SLURM_LOCALID", "1"}});
    EXPECT_EQ(launch.world, 2);
}

TEST(Launch, ASlurmJobWithoutAStepRunsAloneAndIsToldSo) {
    const Launch launch =
        read_launch({{"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "16"}, {"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}});
    EXPECT_EQ(launch.world, 1);
    EXPECT_EQ(launch.launcher, "none");
    EXPECT_NE(launch.note.find("16 tasks, but srun did not start this process"), std::string::npos);
}

TEST(Launch, MpirunInsideOfASlurmJobIsMpirun) {
    // In the batch script's node there is no step; elsewhere the daemon's step shows through.
    EXPECT_EQ(read_launch(with(open_mpi, {{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}})).launcher, "Open MPI");
    const Environment daemon = {{"SLURM_STEP_ID", "0"},
                                {"SLURM_PROCID", "1"},
                                {"SLURM_STEP_NUM_TASKS", "3"},
                                {"SLURM_LOCALID", "0"},
                                {"SLURM_STEP_TASKS_PER_NODE", "1(x3)"},
                                {"SLURM_NODEID", "1"}};
    EXPECT_EQ(read_launch(with(open_mpi, daemon)).rank, 3);
    EXPECT_TRUE(read_launch(with(open_mpi, daemon)).note.empty());
}

TEST(Launch, FamiliesThatAgreeAreOne) {
    const Launch launch =
        read_launch(with(open_mpi, {{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"PMI_RANK", "3"}, {"PMI_SIZE", "8"}}));
    EXPECT_EQ(launch.launcher, "Open MPI");
}

TEST(Launch, FamiliesThatContradictEachOtherAreRefusedWithBothNumbers) {
    EXPECT_REFUSED("torchrun says rank 0 of 2, Open MPI says rank 3 of 8", {"OMPI_COMM_WORLD_RANK", "3"},
                   {"OMPI_COMM_WORLD_SIZE", "8"}, {"RANK", "0"}, {"WORLD_SIZE", "2"});
    EXPECT_REFUSED("MPICH says rank 1 of 4, Slurm says rank 2 of 4", {"PMI_RANK", "1"}, {"PMI_SIZE", "4"},
                   {"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "4"});
    EXPECT_REFUSED("contradict", {"PMI_RANK", "1"}, {"PMI_SIZE", "8"}, {"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "2"},
                   {"SLURM_NTASKS", "4"}, {"SLURM_TASKS_PER_NODE", "4"});
}

TEST(Launch, HalfAFamilyIsRefused) {
    EXPECT_REFUSED("RANK is set, but WORLD_SIZE is not", {"RANK", "0"});
    EXPECT_REFUSED("WORLD_SIZE is set, but RANK is not", {"WORLD_SIZE", "4"});
    EXPECT_REFUSED("OMPI_COMM_WORLD_RANK is set, but OMPI_COMM_WORLD_SIZE is not", {"OMPI_COMM_WORLD_RANK", "0"});
    EXPECT_REFUSED("PMI_SIZE is set, but PMI_RANK is not", {"PMI_SIZE", "4"});
    EXPECT_REFUSED("SLURM_PROCID is set, but SLURM_NTASKS is not", {"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "1"});
    EXPECT_EQ(read_launch({{"RANK", ""}, {"WORLD_SIZE", ""}}).world, 1);  // set to nothing is not set
}

TEST(Launch, NumbersThatCannotBeAreRefused) {
    EXPECT_REFUSED("RANK is 4, but WORLD_SIZE is 4: ranks are 0…3", {"RANK", "4"}, {"WORLD_SIZE", "4"});
    EXPECT_REFUSED("PMI_RANK is -1", {"PMI_RANK", "-1"}, {"PMI_SIZE", "4"});
    EXPECT_REFUSED("PMI_SIZE is 0", {"PMI_RANK", "0"}, {"PMI_SIZE", "0"});
    EXPECT_REFUSED("RANK is \"two\" in the environment", {"RANK", "two"}, {"WORLD_SIZE", "4"});
    EXPECT_REFUSED("WORLD_SIZE is \"4 \"", {"RANK", "1"}, {"WORLD_SIZE", "4 "});
    EXPECT_REFUSED("PMI_SIZE is \"99999999999\"", {"PMI_RANK", "1"}, {"PMI_SIZE", "99999999999"});
    EXPECT_REFUSED("LOCAL_RANK is 3, which cannot be with rank 3 of 4 and 2 ranks on this machine", {"RANK", "3"},
                   {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "3"}, {"LOCAL_WORLD_SIZE", "2"});
    EXPECT_REFUSED("LOCAL_RANK is 2, which cannot be with rank 1 of 4", {"RANK", "1"}, {"WORLD_SIZE", "4"},
                   {"LOCAL_RANK", "2"});
    EXPECT_REFUSED("LOCAL_WORLD_SIZE is 9", {"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"},
                   {"LOCAL_WORLD_SIZE", "9"});
}

TEST(Launch, TorchrunsVariablesAloneAreRefusedWithWhatToUse) {
    EXPECT_REFUSED("keel writes no network protocol of its own. Start it by mpirun or srun", {"RANK", "1"},
                   {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "4"}, {"MASTER_ADDR", "10.0.0.1"});
    EXPECT_REFUSED("RANK counts pods", {"RANK", "1"}, {"WORLD_SIZE", "2"});
    const Launch one = read_launch({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}});
    EXPECT_EQ(one.world, 1);
}

}  // namespace
}  // namespace keel
