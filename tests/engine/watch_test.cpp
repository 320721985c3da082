// What stops a run: signals, and a limit of wall clock that leaves time for the last checkpoint.
#include <gtest/gtest.h>

#include <csignal>

#include "comm/group.h"
#include "engine/fault/watch.h"

namespace keel {
namespace {

TEST(Watch, ASignalAsksToStopAndStoppingImpliesSaving) {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
        SoloGroup group;
        Watch watch(group);
        EXPECT_FALSE(watch.asked_to_stop());
        std::raise(signal);
        EXPECT_TRUE(watch.asked_to_stop()) << signal;
        Verdict verdict = watch.decide(false, "");
        EXPECT_TRUE(verdict.stop && verdict.save);
        EXPECT_STREQ(verdict.why, "signal");
        verdict = watch.decide(false, "phase");
        EXPECT_STREQ(verdict.why, "signal");
        verdict = watch.decide(false, "done");  // nobody needs to start it again
        EXPECT_STREQ(verdict.why, "done");
    }
}

TEST(Watch, AStepIsAbandonedOnlyWhereStepsAreLong) {
    SoloGroup group;
    for (const bool long_steps : {false, true}) {
        Watch watch(group, 0, [] { return 0.0; }, long_steps ? 0 : 1e9);
        EXPECT_FALSE(watch.decide(false, "").stop);
        std::raise(SIGTERM);
        EXPECT_EQ(watch.asked_to_abandon(), long_steps);
        EXPECT_TRUE(watch.decide(false, "").stop);
    }
    Watch first(group, 0, [] { return 0.0; }, 1e9);
    std::raise(SIGTERM);
    EXPECT_TRUE(first.asked_to_abandon()) << "nothing is known of how long a step takes";
}

TEST(Watch, TheSameSignalTwiceInAMomentIsOneWish) {  // `timeout` sends it to the process and to its group
    SoloGroup group;
    Watch watch(group);
    std::raise(SIGTERM);
    std::raise(SIGTERM);
    std::raise(SIGINT);
    EXPECT_TRUE(watch.asked_to_stop());
}

TEST(Watch, WhatTheScheduleSaysStopsARunBehindACheckpoint) {
    SoloGroup group;
    Watch watch(group);
    Verdict verdict = watch.decide(true, "");
    EXPECT_TRUE(verdict.save && !verdict.stop);
    verdict = watch.decide(false, "interval");
    EXPECT_TRUE(verdict.save && verdict.stop);
    EXPECT_STREQ(verdict.why, "interval");
}

TEST(Watch, ALimitThatHasPassedStopsARunBehindACheckpoint) {
    SoloGroup group;
    Watch watch(group, 1e-9);
    const Verdict verdict = watch.decide(false, "");
    EXPECT_TRUE(verdict.save && verdict.stop);
    EXPECT_STREQ(verdict.why, "time");
}

TEST(Deadline, TheLastSaveAndAnotherPassOfTheLoopStillFit) {
    Deadline deadline(100, 10);           // asked first at 10 s
    EXPECT_FALSE(deadline.due(20, 4));    // a pass may take 10 s, a save 1.5 x 4
    EXPECT_DOUBLE_EQ(deadline.reserve_s(), 16);
    EXPECT_FALSE(deadline.due(50, 4));    // now one took 30 s
    EXPECT_FALSE(deadline.due(63.9, 4));  // 63.9 + 30 + 6 < 100
    EXPECT_TRUE(deadline.due(64, 4));
    EXPECT_TRUE(Deadline(100, 0).due(1, 66));
    EXPECT_FALSE(Deadline(0, 0).due(1e9, 1e9));  // no limit
}

TEST(Watch, TheEndOfTheTerminalIsNoWishToStopUnderNohup) {
    std::signal(SIGHUP, SIG_IGN);
    {
        SoloGroup group;
        Watch watch(group);
        std::raise(SIGHUP);
        EXPECT_FALSE(watch.asked_to_stop());
        std::raise(SIGTERM);
        EXPECT_TRUE(watch.asked_to_stop());
    }
    EXPECT_EQ(std::signal(SIGHUP, SIG_DFL), SIG_IGN);  // as it was found
}

}  // namespace
}  // namespace keel
