// What the device check keeps of a section that is stopped, and when it says that something is too slow. No GPU is needed.
#include "tests/gpu/result.h"

#include <gtest/gtest.h>

#include <fstream>
#include <limits>

#include "tests/temp_folder.h"

namespace keel::gpu_check {
namespace {

nlohmann::json written(const std::string& file) { return nlohmann::json::parse(std::ifstream(file)); }

TEST(GpuCheckResult, IsInItsFileAsSoonAsARowIsKnown) {
    const test::TempFolder folder;
    const std::string file = folder / "rows.json";
    Result result(file, true);
    EXPECT_EQ(written(file), nlohmann::json::array());
    for (std::size_t n = 1; n <= 3; ++n) {
        result.add({{"n", n}});
        ASSERT_EQ(written(file).size(), n);
        EXPECT_EQ(written(file).back()["n"], n);
    }
}

TEST(GpuCheckResult, TellsRowsBelowTheirGoalFromWrongOnes) {
    const test::TempFolder folder;
    const std::string file = folder / "rows.json";
    Result result(file, true);
    result.summary = "what was found";
    result.add({{"kernel", "stated"}}, {0.1, "a copy", std::nullopt});
    EXPECT_EQ(result.line(), "what was found");
    result.add({{"kernel", "fast"}}, {0.85, "a copy", 0.85});
    EXPECT_EQ(result.line(), "what was found; 0 of 1 are below their goals");
    EXPECT_EQ(result.exit_code(), 0);
    result.add({{"kernel", "slow"}}, {0.849, "a copy", 0.85});
    result.add({{"kernel", "lost"}}, {std::numeric_limits<double>::quiet_NaN(), "a copy", 0.85});
    EXPECT_EQ(result.line(), "what was found; 2 of 3 are below their goals");
    EXPECT_EQ(result.exit_code(), 3);
    result.good = false;
    EXPECT_EQ(result.exit_code(), 1);
    const auto rows = written(file);
    const char* const verdicts[] = {"not judged", "good", "below", "below"};
    for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(rows[i]["verdict"], verdicts[i]);
    EXPECT_EQ(rows[2]["share"], 0.849);
    EXPECT_EQ(rows[2]["goal"], 0.85);
    EXPECT_EQ(rows[2]["of"], "a copy");
}

TEST(GpuCheckResult, JudgesNothingOnTheSimulator) {
    const test::TempFolder folder;
    Result result(folder / "rows.json", false);
    result.summary = "tiny";
    result.add({}, {0.001, "a copy", 0.85});
    EXPECT_EQ(result.exit_code(), 0);
    EXPECT_EQ(result.line(), "tiny (speed is not judged)");
}

TEST(GpuCheckResult, SaysThatItCannotBeWritten) {
    try {
        const Result result("/nonexistent/rows.json", true);
        FAIL();
    } catch (const std::exception& e) {
        EXPECT_NE(std::string(e.what()).find("cannot write /nonexistent/rows.json.half"), std::string::npos) << e.what();
    }
}

}  // namespace
}  // namespace keel::gpu_check
