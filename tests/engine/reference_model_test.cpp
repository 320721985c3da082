// The float64 reference model against goldens of a program that is not keel. What it proves here lets it be the truth
// for shapes that have no golden (model_shapes_test.cpp).
//
// Bound: both sides are float64, with different orders of sums. Rounding is 1e-16, a model of this size amplifies it to
// 1e-14, twenty steps to 1e-13 (seen: 5e-13). A wrong formula is off by 1e-6 or more, float32 anywhere inside by 1e-8;
// 1e-11 stands between.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/engine/model_runs.h"

namespace keel {
namespace {

constexpr double bound = 1e-11;

class ReferenceModelGolden : public testing::TestWithParam<std::string> {
protected:
    const ModelGolden golden{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Models, ReferenceModelGolden, testing::ValuesIn(ModelGolden::names()),
                         [](const auto& test) { return test.param; });

TEST_P(ReferenceModelGolden, LogitsLossAndGradientsAreThoseOfTheIndependentProgram) {
    ReferenceModel<double, double> model(golden.model, golden.weights());
    const Rows rows = golden.row();
    ASSERT_EQ(rows.tokens(), 300);
    const Pass pass = reference_pass(model, rows);
    EXPECT_LT(largest_difference(pass.logits, golden["logits"]), bound);
    EXPECT_LT(std::abs(pass.loss - golden["loss"][0]), bound * golden["loss"][0]);
    EXPECT_EQ(static_cast<double>(rows.loss_tokens), golden["loss"][1]);
    for (const auto& [name, grad] : pass.grads)
        EXPECT_LT(relative_distance(grad, golden["grad/" + name]), bound) << name;
}

TEST_P(ReferenceModelGolden, TwentyStepsOfAdamwAreThoseOfTheIndependentProgram) {
    const Curve curve = reference_train<double, double>(golden);
    EXPECT_LT(largest_difference(curve.loss, golden["step/loss"]), bound);
    EXPECT_LT(largest_difference(curve.grad_norm, golden["step/grad_norm"]), bound);
    Values probes;
    for (const Param& param : ParamTable(golden.model).specs) {
        const Values& w = curve.final.at(param.name);
        const Values weights = hashed(param.name + "/probe", w.size());
        double sum = 0, dot = 0;
        for (std::size_t i = 0; i < w.size(); ++i) sum += w[i], dot += w[i] * weights[i];
        probes.push_back(sum), probes.push_back(dot);
    }
    EXPECT_LT(largest_difference(probes, golden["final/probe"]),
              bound * 64);               // sums of up to 4096 elements: sqrt(4096)
    if (golden.name != "llama") return;  // whose parameters are all in the file
    for (const auto& [name, w] : curve.final) EXPECT_LT(relative_distance(w, golden["final/" + name]), bound) << name;
}

// The reference with eps outside of the root is wrong by as much as the independent program is with the same fault.
TEST_P(ReferenceModelGolden, EpsOutsideOfTheRootIsTheSameMistakeInBothPrograms) {
    ReferenceModel<double, double> model(golden.model, golden.weights(), 0, Fault::eps_outside);
    EXPECT_NEAR(largest_difference(widened(model.forward(golden.row()).logits), golden["logits"]),
                golden["wrong/eps_outside"][0], bound);
}

}  // namespace
}  // namespace keel
