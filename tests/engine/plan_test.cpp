#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "engine/memory/arena.h"
#include "engine/memory/memory_left.h"
#include "engine/model/layout.h"
#include "kernels/base/random.h"
#include "tests/engine/tiny.h"

namespace keel {
namespace {

bool meet(const Life& a, const Life& b) { return a.first <= b.last && b.first <= a.last; }

// No two reservations that live together share a byte, everything is inside, and the peak is the largest end.
void expect_sound(const MemoryPlan& plan) {
    std::int64_t end = 0;
    const auto& items = plan.items();
    for (std::size_t i = 0; i < items.size(); ++i) {
        EXPECT_GE(items[i].offset, 0) << items[i].name;
        EXPECT_EQ(items[i].offset % MemoryPlan::alignment, 0) << items[i].name;
        end = std::max(end, items[i].offset + items[i].bytes);
        for (std::size_t j = 0; j < i; ++j) {
            const bool overlap = items[i].offset < items[j].offset + items[j].bytes &&
                                 items[j].offset < items[i].offset + items[i].bytes;
            EXPECT_FALSE(overlap && meet(items[i].life, items[j].life)) << items[i].name << " and " << items[j].name;
        }
    }
    EXPECT_LE(end, plan.peak_bytes());
    EXPECT_GT(end + MemoryPlan::alignment, plan.peak_bytes());
    for (int m = 0; m < static_cast<int>(plan.moments().size()); ++m) EXPECT_LE(plan.live_bytes(m), plan.peak_bytes());
}

TEST(MemoryPlan, SharesMemoryBetweenLivesThatNeverMeet) {
    MemoryPlan plan;
    for (const char* name : {"a", "b", "c"}) plan.moment(name);
    plan.reserve<float>("first", {16}, {0, 0}, Use::temporary);
    plan.reserve<float>("second", {16}, {2, 2}, Use::temporary);
    plan.assign();
    EXPECT_EQ(plan.peak_bytes(), MemoryPlan::alignment);
    plan.reserve<float>("across", {16}, {0, 2}, Use::saved);
    plan.assign();
    EXPECT_EQ(plan.peak_bytes(), 2 * MemoryPlan::alignment);
    EXPECT_EQ(plan.peak_moment(), 0);
}

TEST(MemoryPlan, IsSoundForRandomLives) {
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
        const Random random(seed, Purpose::test, "plan");
        MemoryPlan plan;
        for (int m = 0; m < 12; ++m) plan.moment("m" + std::to_string(m));
        for (std::uint64_t i = 0; i < 60; ++i) {
            const int first = static_cast<int>(random.uniform(3 * i) * 12);
            const int last = first + static_cast<int>(random.uniform(3 * i + 1) * (12 - first));
            const auto bytes = static_cast<std::int64_t>(random.uniform(3 * i + 2) * 5000);
            plan.reserve<std::byte>("r" + std::to_string(i), {bytes}, {first, last}, Use::temporary);
        }
        plan.assign();
        expect_sound(plan);
    }
}

TEST(MemoryPlan, RefusesWhatCannotBeCounted) {
    MemoryPlan plan;
    plan.moment("now");
    EXPECT_THROW(plan.reserve<float>("huge", {std::int64_t(1) << 40, std::int64_t(1) << 40}, {0, 0}, Use::saved), Error);
    // Each can be counted, and their sum cannot: neither may it wrap into a small plan.
    const std::int64_t much = std::int64_t(1) << 61;
    plan.reserve<std::byte>("one", {much}, {0, 0}, Use::saved);
    plan.reserve<std::byte>("two", {much}, {0, 0}, Use::saved);
    EXPECT_THROW(plan.reserve<std::byte>("three", {much}, {0, 0}, Use::saved), Error);
}

TEST(MemoryPlan, OfAModelIsSoundUnderEveryPolicyAndEachPolicyNeedsLess) {
    for (const char* dtype : {"f32", "bf16"}) {
        Config config = test::tiny_config(dtype);
        config.model.qk_norm = config.model.qkv_bias = true;
        config.model.layers = 8;
        config.data.seq_len = 512;
        std::int64_t before = std::int64_t(1) << 60;
        for (const char* policy : {"none", "swiglu", "norms", "attention", "block"}) {
            config.memory.recompute = policy;
            const MemoryPlan plan = plan_model(config, training_use(config));
            expect_sound(plan);
            EXPECT_LT(plan.peak_bytes(), before) << policy;
            before = plan.peak_bytes();
        }
    }
}

// What `estimate` prints is what a run allocates: both come from the same reservations.
TEST(MemoryPlan, EstimateIsTheArenaToTheByte) {
    Stream stream(1);
    const Config config = test::tiny_config("bf16");
    const ModelUse use = training_use(config);
    EXPECT_EQ(make_model(config, stream, use)->arena_bytes(), plan_model(config, use).peak_bytes());
}

// The logits of a whole micro-batch never exist: with more tokens the head's buffers stay the same.
TEST(MemoryPlan, HeadMemoryIsBoundedByItsChunk) {
    Config config = test::tiny_config();
    config.model.vocab = 32000;
    const auto logits_bytes = [&](std::int64_t seq_len) {
        config.data.seq_len = seq_len;
        const MemoryPlan plan = plan_model(config, training_use(config));
        for (const auto& item : plan.items())
            if (item.name == "head/logits of a chunk") return item.bytes;
        return std::int64_t(-1);
    };
    EXPECT_EQ(logits_bytes(1024), logits_bytes(16384));
    EXPECT_LE(logits_bytes(1024), 64 << 20);
}

// Saved activations grow with the tokens, not with their square.
TEST(MemoryPlan, ActivationsAreLinearInTheSequence) {
    Config config = test::tiny_config();
    const auto peak = [&](std::int64_t seq_len) {
        config.data.seq_len = seq_len;
        const MemoryPlan plan = plan_model(config, training_use(config));
        return plan.live_bytes(plan.peak_moment(), Use::saved);
    };
    EXPECT_LE(peak(8192), 2 * peak(4096) + 8192);  // 8192: alignment of every item
}

// A machine as its kernel shows it, in a folder.
TEST(MemoryLeft, IsTheLeastOfMachineAndEveryControlGroupAbove) {
    test::TempFolder dir;
    const auto put = [&](const std::string& name, const std::string& text) {
        const auto path = dir.path() / name;
        std::filesystem::create_directories(path.parent_path());
        std::ofstream(path) << text;
    };
    EXPECT_EQ(memory_left_bytes(dir.path()), std::nullopt);
    put("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable: 8000 kB\n");
    EXPECT_EQ(memory_left_bytes(dir.path()), 8000 * 1024);
    put("proc/self/cgroup", "0::/jobs/one\n");
    put("sys/fs/cgroup/jobs/one/memory.max", "max\n");
    put("sys/fs/cgroup/jobs/one/memory.current", "5000\n");
    EXPECT_EQ(memory_left_bytes(dir.path()), 8000 * 1024);
    put("sys/fs/cgroup/jobs/memory.max", "1000000\n");
    put("sys/fs/cgroup/jobs/memory.current", "700000\n");
    put("sys/fs/cgroup/jobs/memory.stat", "anon 1\nfile 300000\ninactive_file 200000\nactive_file 50000\n");
    EXPECT_EQ(memory_left_bytes(dir.path()), 1000000 - (700000 - 250000));
    put("proc/self/cgroup", "9:name=systemd:/\n4:memory:/job\n1:cpu:/\n");  // version 1
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");  // no limit
    put("sys/fs/cgroup/memory/memory.usage_in_bytes", "1\n");
    EXPECT_EQ(memory_left_bytes(dir.path()), 8000 * 1024);
    put("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "4096\n");
    put("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "8192\n");
    EXPECT_EQ(memory_left_bytes(dir.path()), 0);
}

TEST(Arena, NamesTheFixWhenTheMachineIsTooSmall) {
    MemoryPlan plan;
    plan.moment("now");
    plan.reserve<std::byte>("a petabyte", {std::int64_t(1) << 50}, {0, 0}, Use::saved);
    plan.assign();
    Stream stream(1);
    try {
        Arena arena(plan, stream);
        FAIL();
    } catch (const Error& e) {
        EXPECT_NE(std::strstr(e.what(), "1.00 PiB"), nullptr) << e.what();
        EXPECT_NE(std::strstr(e.what(), "a petabyte"), nullptr);
        EXPECT_NE(std::strstr(e.what(), "--train.micro_batch"), nullptr);
    }
}

}  // namespace
}  // namespace keel
