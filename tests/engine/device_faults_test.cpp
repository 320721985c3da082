// What engine/fault promises, on simulated GPUs: hashes are taken where the tensors lie, a step that looks wrong is queued again
// op by op, replicas are compared, and exact sums leave no order to the ranks.
#include <cmath>

#include "kernels/cudasim/config.h"
#include "kernels/cudasim/findings.h"
#include "tests/engine/fault_runs.h"

namespace keel {
namespace {

class DeviceFaults : public test::FaultRuns {
protected:
    DeviceFaults() {
        sim::Config sim;
        sim.host_faults = true;
        sim::configure(sim);
    }
    ~DeviceFaults() override {
        sim::configure({});
        for (const sim::Finding& finding : sim::take_findings()) ADD_FAILURE() << finding.text;
    }
    Config on_gpus(const std::string& name, int gpus, const std::vector<std::string>& faults = {}) const {
        Config c = config(name, faults);
        c.model.layers = 1, c.model.hidden = 16, c.model.ffn = 24, c.model.heads = c.model.kv_heads = 2;
        c.data.seq_len = 8;
        c.run.device = "cudasim", c.parallel.dp = gpus;
        return c;
    }
};

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

// The first attempt is a graph from the third step on, the second is always queued: their hashes agree, or it would be told.
TEST_F(DeviceFaults, AStepIsTheSameAsAGraphAndWhenItIsComputedAgain) {
    for (const int gpus : {1, 2}) {
        Config once = on_gpus(concat("once ", gpus), gpus), twice = on_gpus(concat("twice ", gpus), gpus);
        once.fault.mode = "disabled", twice.fault.mode = "validate", twice.fault.interval = 1;
        for (const Config* c : {&once, &twice}) EXPECT_EQ(run(*c).why, "done");
        EXPECT_TRUE(findings(twice).empty());
        EXPECT_EQ(test::differing(test::tensors_of(at_step(once, 5)), test::tensors_of(at_step(twice, 5))), "") << gpus;
    }
}

TEST_F(DeviceFaults, ATurnedBitOfOneGpuIsFoundAndItsRankAndTensorAreNamed) {
    Config c = on_gpus("turned", 2, {"grad_flip,step=3,bit=18,tensor=layers.0.down,rank=1"});
    c.fault.mode = "validate", c.fault.interval = 1;
    const Ending end = run(c);
    EXPECT_EQ(end.finding.code, ExitCode::fault);
    EXPECT_EQ(end.finding.verdict, "passing");
    EXPECT_HAS(end.finding.where, "rank 1 on ");
    EXPECT_HAS(end.finding.where, "the gradient of layers.0.down");
    EXPECT_EQ(std::ranges::count(end.finding.where, '\n'), 1) << end.finding.where;
    Config calm = on_gpus("calm", 2);
    EXPECT_EQ(run(c).why, "done");  // goes on from before the step
    EXPECT_EQ(run(calm).why, "done");
    EXPECT_EQ(test::differing(test::tensors_of(at_step(calm, 5)), test::tensors_of(at_step(c, 5))), "");
}

// Steps are launched as a graph by then; what went bad first is found all the same, and nothing of it is saved.
TEST_F(DeviceFaults, AStepThatIsNotFiniteIsComputedAgainAndWhatWentBadFirstIsNamed) {
    const Config c = on_gpus("nan", 1);
    test::on_ranks(c, [](keel::Run& run) {
        for (int i = 0; i < 3; ++i) test::take_step(run);
        EXPECT_GT(run.graph->nodes(), 0);
        run.model->fetch_state();
        const Param& gain = run.model->params().at("layers.0.ffn_norm");
        reinterpret_cast<float*>(run.model->host_state().param)[gain.offset] = std::nanf("");
        run.model->share_params();
        EXPECT_FALSE(train_step(run, run.schedule.at(run.progress)));
        ASSERT_TRUE(run.findings->stop());
        EXPECT_EQ(run.findings->stop()->verdict, "open");
        EXPECT_HAS(run.findings->stop()->where, "the parameter layers.0.ffn_norm, before the step");
        EXPECT_FALSE(run.findings->stop()->save);
    });
}

TEST_F(DeviceFaults, AGradientThatIsNotFiniteIsNamed) {
    const Ending end = run(on_gpus("gradient", 1, {"grad_nan,step=2,tensor=layers.0.qkv,lasting"}));
    EXPECT_EQ(end.finding.code, ExitCode::open);
    EXPECT_HAS(end.finding.where, "the gradient of layers.0.qkv");
}

TEST_F(DeviceFaults, ReplicasOnGpusThatDifferAreTold) {
    Config c = on_gpus("replicas", 2, {"param_flip,step=2,rank=1,tensor=layers.0.qkv,bit=0"});
    c.fault.replica_interval = 2, c.model.dtype = "bf16";
    c.parallel.overlap = false;  // a gather at the beginning of a step would put it right
    const Ending end = run(c);
    EXPECT_EQ(end.finding.verdict, "replicas");
    EXPECT_HAS(end.finding.where, "the parameter layers.0.qkv is not that of rank 0");
}

TEST_F(DeviceFaults, ExactSumsGiveTheSameBitsForAnyNumberOfGpusAndAnyMicroBatch) {
    const auto train = [&](const char* name, int gpus, int micro_batch) {
        Config c = on_gpus(name, gpus);
        c.numerics.grad_sum = "exact", c.train.micro_batch = micro_batch, c.model.tied = true, c.train.steps = 3;
        EXPECT_EQ(run(c).why, "done");
        return std::pair(test::tensors_of(at_step(c, 3)), test::logged(c.run.dir, "grad_norm"));
    };
    const auto [one, norms] = train("exact one", 1, 1);
    EXPECT_TRUE(std::isfinite(norms.at(3)));
    for (const auto& [name, gpus, micro_batch] : {std::tuple{"exact two", 2, 1}, {"exact pairs", 1, 2}}) {
        const auto [other, others] = train(name, gpus, micro_batch);
        EXPECT_EQ(test::differing(one, other), "") << name;
        EXPECT_EQ(norms, others) << name;
    }
}

}  // namespace
}  // namespace keel
