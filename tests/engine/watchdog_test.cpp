// Who watches the ranks of a run: where they stand, when it is told, and what an outside observer reads.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>

#include "comm/threads.h"
#include "engine/fault/heartbeat.h"
#include "engine/fault/watchdog.h"
#include "kernels/base/file.h"
#include "tests/temp_folder.h"

namespace keel {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

// What was told so far. A watchdog that tells too often does so within this time, or not at all.
constexpr auto a_while = 400ms;

std::string where(const Standing& standing) {
    char text[768];
    standing.describe(text, sizeof text);
    return text;
}

template <class Holds> bool within_a_minute(Holds holds) {
    for (int i = 0; i < 6000 && !holds(); ++i) std::this_thread::sleep_for(10ms);
    return holds();
}

int count_of(const std::string& text, const std::string& part) {
    int n = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
    return n;
}

TEST(Standing, SaysStepMicroBatchAndTheCollectiveWithItsNumber) {
    run_threads(3, {.deadline_s = 60}, [](World& world) {
        static std::atomic<bool> seen;
        seen = false;
        const auto group = world.everyone("dp");
        Standing standing(world);
        EXPECT_EQ(where(standing), "start-up; it waits for no other rank: it computes, reads or writes");
        standing.enter("step", 17);
        standing.micro_batch(2, 8);
        group->barrier();
        if (world.rank() == 2) {  // the one that the others wait for
            EXPECT_EQ(where(standing), "step (step 17, micro-batch 3 of 8); it waits for no other rank: it computes, reads or writes");
            EXPECT_TRUE(within_a_minute([] { return seen.load(); }));
            group->any(true);
            return;
        }
        std::thread watcher([&] {
            if (world.rank() != 0) return;
            EXPECT_TRUE(within_a_minute([&] { return where(standing).find("#2") != std::string::npos; })) << where(standing);
            const std::string text = where(standing);
            EXPECT_EQ(text.substr(0, text.find(", for ")), "step (step 17, micro-batch 3 of 8); in dp group of ranks 0,1,2: any (#2)");
            seen = true;
        });
        group->any(false);
        watcher.join();
        EXPECT_NE(where(standing).find("it waits for no other rank"), std::string::npos);
    });
}

TEST(Watchdog, TellsOnceForEachHangAndLeavesOnlyWhereItIsAskedTo) {
    SoloWorld world;
    for (const bool leave : {false, true}) {
        testing::internal::CaptureStderr();
        Standing standing(world);
        standing.enter("evaluation", 12);
        std::atomic<int> left{0};
        {
            const Watchdog watchdog({.start_s = 0, .step_s = 0.05, .leave = leave}, standing, [&] { ++left; });
            EXPECT_TRUE(within_a_minute([&] { return leave ? left > 0 : watchdog.told() > 0; }));
            std::this_thread::sleep_for(a_while);
            standing.enter("step", 13);  // it was slow, and goes on; then it hangs again
            EXPECT_TRUE(within_a_minute([&] { return watchdog.told() > 1; }));
            std::this_thread::sleep_for(a_while);
        }
        const std::string told = testing::internal::GetCapturedStderr();
        EXPECT_EQ(count_of(told, "gave no sign of life for "), 2) << told;
        EXPECT_EQ(count_of(told, "(--watch.step_s 0.05): evaluation (step 12); it waits for no other rank"), 1) << told;
        EXPECT_EQ(count_of(told, "(--watch.step_s 0.05): step (step 13); it waits for no other rank"), 1) << told;
        EXPECT_EQ(count_of(told, "leaving (--watch.leave)"), leave ? 2 : 0) << told;
        EXPECT_EQ(left > 0, leave);
    }
}

TEST(Watchdog, ASaveAndTheReportMayTakeAsLongAsTheStart) {
    SoloWorld world;
    for (const char* what : {"checkpoint", "report"}) {
        testing::internal::CaptureStderr();
        {
            Standing standing(world);
            standing.enter(what, 12);
            const Watchdog watchdog({.start_s = 0.3, .step_s = 0.05}, standing, [] {});
            EXPECT_TRUE(within_a_minute([&] { return watchdog.told() > 0; }));
            std::this_thread::sleep_for(a_while);
        }
        const std::string told = testing::internal::GetCapturedStderr();
        EXPECT_EQ(count_of(told, "gave no sign of life for "), 1) << told;
        EXPECT_EQ(count_of(told, concat("(--watch.start_s 0.3): ", what, " (step 12)")), 1) << told;
    }
}

TEST(Watchdog, TheStartHasALimitOfItsOwn) {
    SoloWorld world;
    testing::internal::CaptureStderr();
    {
        Standing standing(world);
        const Watchdog watchdog({.start_s = 0.05, .step_s = 1000}, standing, [] {});
        EXPECT_TRUE(within_a_minute([&] { return watchdog.told() > 0; }));
        standing.enter("step", 1);
        std::this_thread::sleep_for(a_while);
    }
    const std::string told = testing::internal::GetCapturedStderr();
    EXPECT_EQ(count_of(told, "gave no sign of life for "), 1) << told;
    EXPECT_EQ(count_of(told, "(--watch.start_s 0.05): start-up; "), 1) << told;
}

TEST(Heartbeat, IsWrittenWholeFromWhenTheRunHasAFolderAndSaysWhenItEnded) {
    const test::TempFolder dir;
    const fs::path run = dir.path() / "run", file = run / "heartbeat" / "rank-00000.json";
    SoloWorld world;
    {
        Standing standing(world);
        const Heartbeat heartbeat(0.02, run, standing);
        std::this_thread::sleep_for(100ms);
        EXPECT_FALSE(fs::exists(run));  // a run that is refused leaves nothing
        fs::create_directory(run);
        standing.enter("evaluation", 40);
        standing.micro_batch(6, 9);
        // A beat that was under way when the folder appeared still tells of the start; those after it do not.
        ASSERT_TRUE(within_a_minute([&] { return fs::exists(file) && read_file(file).find("\"micro_batch\":7,") != std::string::npos; }));
        for (int i = 0; i < 200; ++i) {
            const std::string text = read_file(file);
            EXPECT_TRUE(text.starts_with("{\"event\":\"heartbeat\",\"rank\":0,\"host\":\"") && text.ends_with("\"waits_in\":\"\"}\n")) << text;
            EXPECT_NE(text.find("\"phase\":\"evaluation\""), std::string::npos) << text;
            EXPECT_NE(text.find("\"step\":40,\"micro_batch\":7,"), std::string::npos) << text;
        }
    }
    EXPECT_NE(read_file(file).find("\"phase\":\"ended\""), std::string::npos);
}

TEST(Heartbeat, ThatCannotBeWrittenIsToldOnce) {
    const test::TempFolder dir;
    dir.write("heartbeat", "a file where the folder should be");
    SoloWorld world;
    testing::internal::CaptureStderr();
    {
        const Standing standing(world);
        const Heartbeat heartbeat(0.02, dir.path(), standing);
        std::this_thread::sleep_for(200ms);
    }
    const std::string told = testing::internal::GetCapturedStderr();
    EXPECT_EQ(count_of(told, "cannot write " + (dir.path() / "heartbeat/rank-00000.json").string()), 1) << told;
}

}  // namespace
}  // namespace keel
