// The trace of a run on several ranks: what a person opens in Perfetto.
#include "engine/observe/trace.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "kernels/base/file.h"
#include "tests/engine/rank_runs.h"
#include "tests/engine/trace_check.h"

namespace keel {
namespace {

using Json = nlohmann::json;

Config traced(const test::TempFolder& folder) {
    test::write_token_file(folder.path() / "a.tok", 61, 4000, 1);
    Config config = test::tiny_config("f32");
    config.model.layers = 4, config.train.micro_batch = 1, config.train.steps = 5;
    config.data.train = {folder / "a.tok"}, config.run.dir = folder / "run", config.run.threads = 1;
    config.parallel.vocab_multiple = 1, config.parallel.bucket = 2000;
    return config;
}
Json trace_of(const Config& config) {
    return Json::parse(read_file(std::filesystem::path(config.run.dir) / "trace.json"));
}

}  // namespace

TEST(Trace, OfAPipelineHasEveryRankEveryCollectiveAndAnArrowPerMessage) {
    const test::TempFolder folder;
    Config config = traced(folder);
    config.parallel.tp = config.parallel.pp = 2, config.parallel.dp = 2;
    config.observe.trace_steps = {3, 4};
    test::train_whole(config);
    const Json trace = trace_of(config);
    const test::TraceCount count = test::check_trace(trace);
    EXPECT_EQ(count.ranks, (std::set<int>{0, 1, 2, 3, 4, 5, 6, 7}));
    // Of each pair of stages (2 tp x 2 dp), of each of a replica's 2 micro-batches, in each of 2 steps: there and back.
    EXPECT_EQ(count.arrows, 4 * 2 * 2 * 2);
    std::map<std::string, std::int64_t> last;  // number of a rank's collective in a group
    std::map<std::string, int> names;
    std::set<int> steps;
    for (const Json& e : trace["traceEvents"]) {
        if (e["ph"] != "X") continue;
        ++names[e["name"]];
        steps.insert(e["args"]["step"].get<int>());
        if (e["cat"] != "collective") continue;
        EXPECT_GE(e["args"]["bytes"].get<std::int64_t>(), 0);
        const std::string group = e["name"].get<std::string>().substr(0, e["name"].get<std::string>().find(' '));
        std::int64_t& before =
            last[group + (e["tid"] == 5 ? " beside of " : " of ") + std::to_string(e["pid"].get<int>())];
        EXPECT_GT(e["args"]["number"].get<std::int64_t>(), before) << e;
        before = e["args"]["number"];
    }
    EXPECT_EQ(steps, (std::set<int>{3, 4}));
    EXPECT_EQ(names["forward"], 8 * 2 * 2);  // ranks, micro-batches, steps
    EXPECT_EQ(names["backward"], 8 * 2 * 2);
    for (const char* name : {"tp all_gather", "tp reduce_scatter", "reduce", "gather", "data", "optimizer"})
        EXPECT_GT(names[name], 0) << name;
    EXPECT_FALSE(std::filesystem::exists(std::filesystem::path(config.run.dir) / "trace/rank-8.json"));
}

TEST(Trace, OfARunThatEndsBeforeItIsWholeAllTheSame) {
    const test::TempFolder folder;
    Config config = traced(folder);
    config.observe.trace_steps = {4, 100};
    config.ckpt.interval = 4;
    test::train_whole(config);
    const Json trace = trace_of(config);
    (void)test::check_trace(trace);
    std::set<int> steps;
    bool saved = false;
    for (const Json& e : trace["traceEvents"])
        if (e["ph"] == "X") steps.insert(e["args"]["step"].get<int>()), saved |= e["name"] == "write checkpoint";
    EXPECT_EQ(steps, (std::set<int>{4, 5}));
    EXPECT_TRUE(saved);
}

TEST(Trace, ThatCannotBeWrittenDoesNotEndARun) {
    const test::TempFolder folder;
    Config config = traced(folder);
    config.parallel.dp = 2, config.observe.trace_steps = {2, 3};
    std::filesystem::create_directories(config.run.dir);
    std::ofstream(std::filesystem::path(config.run.dir) / "trace") << "in the way";
    testing::internal::CaptureStderr();
    test::train_whole(config);
    const std::string warnings = testing::internal::GetCapturedStderr();
    EXPECT_NE(warnings.find("trace/rank-0.json cannot be opened for writing"), std::string::npos) << warnings;
    EXPECT_EQ(test::logged(config.run.dir, "loss").size(), 5u);
}

}  // namespace keel
