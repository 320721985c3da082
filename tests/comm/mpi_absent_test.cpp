// A keel that was built without MPI and is started by mpirun says what to do.
#include <gtest/gtest.h>

#include "comm/mpi.h"

namespace keel {
namespace {

TEST(MpiAbsent, NamesThePackagesToInstall) {
    EXPECT_FALSE(built_with_mpi());
    Launch launch;
    launch.launcher = "Open MPI";
    launch.world = 4;
    try {
        run_mpi(launch, {}, [](World&) { FAIL(); }, [](std::exception_ptr) { return 1; });
        ADD_FAILURE() << "it went well";
    } catch (const Error& e) {
        EXPECT_EQ(e.code(), ExitCode::usage);
        EXPECT_NE(std::string(e.what()).find("Open MPI started 4 processes"), std::string::npos) << e.what();
        EXPECT_NE(std::string(e.what()).find("libopenmpi-dev openmpi-bin"), std::string::npos) << e.what();
    }
}

}  // namespace
}  // namespace keel
