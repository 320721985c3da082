#include "engine/fault/loss_scale.h"

#include <gtest/gtest.h>

#include <string>

namespace keel {
namespace {

OptimSection settings(double initial, double least, std::int64_t window, std::int64_t hysteresis) {
    OptimSection s;
    s.loss_scale_initial = initial, s.loss_scale_min = least, s.loss_scale_window = window, s.loss_scale_hysteresis = hysteresis;
    return s;
}

// `events`: x an overflow, . none.
void feed(LossScale& scale, const std::string& events) {
    for (const char event : events) scale.update(event == 'x');
}

// The worked example of the reference: 65536, window 3, hysteresis 2.
TEST(LossScale, FollowsTheWorkedTrace) {
    LossScale scale(settings(65536, 1, 3, 2));
    const struct {
        const char* events;
        double scale;
        std::int64_t hysteresis;
    } trace[] = {{"x", 65536, 1}, {"x", 32768, 0}, {"x", 16384, -1}, {"...", 32768, 2}, {"x", 32768, 1}, {"..x", 16384, 0}};
    for (const auto& at : trace) {
        feed(scale, at.events);
        EXPECT_EQ(scale.value(), at.scale) << at.events;
        EXPECT_EQ(scale.state().hysteresis, at.hysteresis) << at.events;
    }
}

TEST(LossScale, CountsItsWindowAnewAfterEveryOverflow) {
    LossScale scale(settings(8, 1, 3, 1));
    feed(scale, "..x");
    EXPECT_EQ(scale.value(), 4);
    feed(scale, "..");
    EXPECT_EQ(scale.value(), 4);
    feed(scale, ".");
    EXPECT_EQ(scale.value(), 8);
}

TEST(LossScale, StaysBetweenItsMinimumAndWhatFloatsHold) {
    LossScale low(settings(8, 3, 1000, 1));
    EXPECT_TRUE(low.can_shrink());
    feed(low, "xx");
    EXPECT_EQ(low.value(), 3);
    EXPECT_FALSE(low.can_shrink());
    feed(low, "x");
    EXPECT_EQ(low.value(), 3);
    LossScale high(settings(LossScale::largest / 2, 1, 1, 1));
    feed(high, "...");
    EXPECT_EQ(high.value(), LossScale::largest);
}

TEST(LossScale, OfANumberNeverMoves) {
    OptimSection s;
    s.loss_scale = "1024";
    LossScale scale(s);
    feed(scale, "x.xx");
    scale.restore({.scale = 4, .good_steps = 1, .hysteresis = 1});
    EXPECT_EQ(scale.value(), 1024);
    EXPECT_FALSE(scale.can_shrink());
}

TEST(LossScale, GoesOnFromItsState) {
    const OptimSection s = settings(64, 1, 3, 2);
    LossScale whole(s), first(s), second(s);
    const std::string events = ".x..x.x...";
    for (std::size_t cut = 0; cut <= events.size(); ++cut) {
        whole = LossScale(s), first = LossScale(s), second = LossScale(s);
        feed(whole, events);
        feed(first, events.substr(0, cut));
        second.restore(first.state());
        feed(second, events.substr(cut));
        EXPECT_EQ(second.state(), whole.state()) << cut;
    }
}

// Whoever goes on with another window or minimum is not held to the old ones.
TEST(LossScale, GoesOnUnderOtherSettings) {
    LossScale shorter(settings(8, 1, 3, 1)), higher(settings(32, 16, 3, 1));
    shorter.restore({.scale = 4, .good_steps = 500, .hysteresis = 1});
    shorter.update(false);
    EXPECT_EQ(shorter.value(), 8);
    higher.restore({.scale = 4, .good_steps = 0, .hysteresis = 1});
    EXPECT_EQ(higher.value(), 16);
}

}  // namespace
}  // namespace keel
