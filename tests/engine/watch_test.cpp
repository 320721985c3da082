// Which signals stop a run.
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
        const Verdict verdict = watch.decide(false, false);
        EXPECT_TRUE(verdict.stop && verdict.save);
        EXPECT_STREQ(verdict.why, "signal");
    }
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
