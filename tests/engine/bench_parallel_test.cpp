// What `keel bench --parallel` shows beside its times: the traffic of a step, what of it was hidden, and the picture.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "engine/bench/parallel.h"
#include "engine/config_check.h"
#include "engine/parallel/volume.h"
#include "tests/engine/tiny.h"

namespace keel {
namespace {

bench::ParallelCase tiny_case(const char* name, const std::function<void(ParallelSection&)>& change) {
    Config c = test::tiny_config();
    c.data.train = {"any"}, c.run.dir = "any";
    c.model.layers = 4, c.train.global_batch = 4, c.train.micro_batch = 1;
    c.parallel.vocab_multiple = 1;
    change(c.parallel);
    resolve_and_validate(c);
    return {name, c};
}

std::size_t count(const std::string& text, const std::string& part) {
    std::size_t n = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
    return n;
}

TEST(BenchParallel, CountsTheTrafficOfOneStepAndItIsTheFormulas) {
    for (const bench::ParallelCase& c : {tiny_case("dp", [](ParallelSection& p) { p.dp = 2, p.bucket = 1000; }),
                                         tiny_case("tp", [](ParallelSection& p) { p.tp = 2; }),
                                         tiny_case("cp", [](ParallelSection& p) { p.cp = 2; }),
                                         tiny_case("pp", [](ParallelSection& p) { p.pp = 2, p.chunks = 2; })}) {
        bench::ParallelStep step(c, 1);
        step(), step();
        const std::map<std::string, Traffic> formula = step_traffic(c.config, {});
        std::map<std::string, Traffic> sent = step.traffic();
        for (const auto& [group, traffic] : formula)
            EXPECT_EQ(sent[group].total(), traffic.total()) << c.name << " " << group;
    }
}

TEST(BenchParallel, ThePictureHasALaneForEveryThreadAndABoxForEveryMicroBatchAndBucket) {
    bench::ParallelStep pipeline(tiny_case("pp", [](ParallelSection& p) { p.pp = 2, p.chunks = 2; }), 1);
    pipeline();
    const std::string stages = pipeline.timeline();
    EXPECT_NE(stages.find(">rank 0<"), std::string::npos) << stages;
    EXPECT_NE(stages.find(">rank 1<"), std::string::npos);
    EXPECT_EQ(stages.find("rank 2"), std::string::npos);
    EXPECT_EQ(count(stages, "<title>forward "), 4u * 2 * 2) << stages;   // micro-batches, chunks, ranks
    EXPECT_EQ(count(stages, "<title>backward "), 4u * 2 * 2);

    // The first step is without overlap; then the gradients are reduced on a thread beside the backward.
    bench::ParallelStep replicas(tiny_case("dp", [](ParallelSection& p) { p.dp = 2, p.bucket = 1000; }), 1);
    replicas();
    EXPECT_EQ(replicas.timeline().find("beside"), std::string::npos);
    EXPECT_EQ(replicas.hidden_seconds(), 0);
    replicas();
    EXPECT_NE(replicas.timeline().find(">rank 0 beside<"), std::string::npos);
    EXPECT_GT(count(replicas.timeline(), "<title>reduce "), 2u);
}

}  // namespace
}  // namespace keel
