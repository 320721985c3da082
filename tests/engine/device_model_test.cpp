// Whole models on a GPU, simulated here, against the same float64 goldens and within the same bounds as on the CPU
// (model_test.cpp): the two are therefore no further apart than four times the worst naive evaluation is from the truth.
#include <gtest/gtest.h>

#include "kernels/cudasim/counters.h"
#include "kernels/cudasim/findings.h"
#include "tests/engine/model_runs.h"

namespace keel {
namespace {

struct Case {
    const char *model, *dtype, *recompute;
    bool hopper = false;
    friend void PrintTo(const Case& c, std::ostream* out) { *out << c.model << " in " << c.dtype; }
};
// Tied and untied, packed documents, grouped heads, norms of heads, what is recomputed; kernels for sm_90a.
constexpr Case cases[] = {
    {"llama_tied", "f32", "none"}, {"packed", "bf16", "none"}, {"packed", "bf16", "none", true}, {"qwen3", "bf16", "block"}};

class DeviceModels : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Models, DeviceModels, testing::ValuesIn(cases),
                         [](const auto& test) { return std::string(test.param.model) + "_" + test.param.dtype + (test.param.hopper ? "_hopper" : ""); });

TEST_P(DeviceModels, TwentyStepsOfAdamwFollowTheTrueCurve) {
    const auto& [name, dtype, recompute, hopper] = GetParam();
    const ModelGolden golden(name);
    KeelModel model(golden.model, dtype, golden.weights(), golden.step(0), recompute, 0, Device::cudasim);
    if (hopper) model.allow_hopper();
    (void)sim::take_counters();
    expect_follows_the_true_curve(golden, dtype, model.train(golden));
    const sim::Counters counted = sim::take_counters();
    EXPECT_EQ(counted.wgmma > 0, hopper);
    EXPECT_EQ(counted.mma > 0, dtype == std::string_view("bf16") && !hopper);  // forward and backward are both Hopper's
    for (const sim::Finding& finding : sim::take_findings()) ADD_FAILURE() << finding.text;
}

class RefusesToBorrow final : public Group {
public:
    RefusesToBorrow() : Group("tp", {0}, 0) {}
    void lend(View<std::byte>) override { fail("no, thanks"); }
    void abort(const std::string&) noexcept override {}

protected:
    void run(Stream*, const Call&) override {}
    void* begin_send(Stream&, const std::byte*, std::int64_t, int, int) override { return nullptr; }
    void end_send(Stream&, void*) override {}
    void drop_send(void*) noexcept override {}
    void receive_bytes(Stream&, std::byte*, std::int64_t, int, int) override {}
};

// The queue outlives its models: what one lent it is gone with that one, however it ends, and no other takes it away.
TEST(DeviceModel, LendsItsQueueAWorkspaceOnlyWhileItLives) {
    const auto gpu = open_gpu(Device::cudasim);
    const auto queue = gpu->make_stream();
    Stream crew(1);
    const Backend backend(*gpu, *queue, crew);
    Config config;
    config.model = ModelGolden("llama_tied").model;
    config.model.dtype = "f32";
    const ModelUse use{.tokens = 4, .positions = 4, .head_chunk = 4, .training = true, .device = Device::cudasim};
    {
        const auto model = make_model(config, backend, use);
        const std::byte* const lent = queue->shared_workspace();
        EXPECT_NE(lent, nullptr);
        try {
            make_model(config, backend, use);
            ADD_FAILURE() << "a second model took the queue";
        } catch (const Error& e) {
            EXPECT_NE(std::string(e.what()).find("that has a workspace of"), std::string::npos) << e.what();
        }
        EXPECT_EQ(queue->shared_workspace(), lent);
    }
    EXPECT_EQ(queue->shared_workspace(), nullptr);

    SoloRanks solo;
    RefusesToBorrow tp;
    config.model.kv_heads = config.model.heads, config.parallel.tp = 2;  // is lent what sums of ranks arrive in
    const Ranks ranks{{}, solo.world, tp, solo.cp, solo.pp, solo.replicas, solo.beside, solo.embedding};
    try {
        make_model(config, backend, use, ranks);
        ADD_FAILURE() << "a group that borrows nothing was lent something";
    } catch (const Error& e) {
        EXPECT_STREQ(e.what(), "no, thanks");
    }
    EXPECT_EQ(queue->shared_workspace(), nullptr);
}

}  // namespace
}  // namespace keel
