// Ranks that hold the same parameter hold the same bits of it.
#include "tests/engine/fault_runs.h"

namespace keel {
namespace {

class ReplicasTest : public test::FaultRuns {
protected:
    Config compared(const std::string& name, const std::vector<std::string>& faults) const {
        Config c = config(name, faults);
        c.fault.replica_interval = 2, c.train.global_batch = 6, c.model.dtype = "bf16";
        return c;
    }
};

TEST_F(ReplicasTest, OfThreeTheOneThatDiffersIsNamed) {
    Config c = compared("three", {"param_flip,step=4,rank=1,tensor=layers.1.qkv,bit=0"});
    c.parallel.dp = 3;
    const Ending end = run(c);
    EXPECT_EQ(end.why, "fault");
    EXPECT_EQ(end.finding.code, ExitCode::fault);
    EXPECT_EQ(end.finding.verdict, "replicas");
    EXPECT_NE(end.finding.where.find("  rank 1 on "), std::string::npos) << end.finding.where;
    EXPECT_NE(end.finding.where.find("the parameter layers.1.qkv is not that of ranks 0,2\n"), std::string::npos) << end.finding.where;
    EXPECT_EQ(std::ranges::count(end.finding.where, '\n'), 1) << end.finding.where;
    EXPECT_EQ(findings(c).at(0)["step"], 4);
    EXPECT_FALSE(std::filesystem::exists(at_step(c, 3)));  // this state is no good
}

TEST_F(ReplicasTest, OfTwoBothAreNamedWhicheverKindOfCopyItIs) {
    struct Case {
        const char *name, *tensor;
        int tp, pp, cp, dp;
        bool tied;
    };
    for (const Case& k : {Case{"dp", "layers.0.down", 1, 1, 1, 2, false}, {"cp", "embed", 1, 1, 2, 1, false},
                          {"tp", "layers.1.attn_norm", 2, 1, 1, 1, false}, {"pp", "embed", 1, 2, 1, 1, true}}) {
        Config c = compared(k.name, {concat("param_flip,step=2,rank=1,bit=0,tensor=", k.tensor)});
        c.parallel.tp = k.tp, c.parallel.pp = k.pp, c.parallel.cp = k.cp, c.parallel.dp = k.dp, c.model.tied = k.tied;
        const Ending end = run(c);
        EXPECT_EQ(end.finding.code, ExitCode::fault) << k.name;
        EXPECT_EQ(std::ranges::count(end.finding.where, '\n'), 2) << k.name << end.finding.where;
        EXPECT_NE(end.finding.where.find(concat("the parameter ", k.tensor, " is not that of rank 0; which of them is right cannot be told")),
                  std::string::npos) << end.finding.where;
    }
}

// Between two comparisons a turned bit is not seen; and copies that are alike are never told.
TEST_F(ReplicasTest, AreComparedEverySoManySteps) {
    Config c = compared("every", {});
    c.parallel.tp = 2, c.parallel.dp = 2, c.parallel.pp = 2, c.model.tied = true;
    EXPECT_EQ(run(c).why, "done");
    Config off = compared("off", {"param_flip,step=2,rank=1,tensor=layers.1.qkv,bit=0"});
    off.parallel.dp = 2, off.fault.replica_interval = 0;
    EXPECT_EQ(run(off).why, "done");
}

}  // namespace
}  // namespace keel
