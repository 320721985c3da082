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

}  // namespace
}  // namespace keel
