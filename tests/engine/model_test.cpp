// Whole models of keel, float32, bf16 and for one family f16, against float64 goldens of a program that is not keel.
//
// Bounds. The naive evaluation (reference_model.h) computes the same model with the obvious loops in keel's own
// precision, rounding where keel's ops store. keel may be at most twice as far from the truth as the worst of several
// naive evaluations that differ in the order of their sums: same precision, other rounding errors of the same size.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/model_shape.h"
#include "tests/engine/model_runs.h"

namespace keel {
namespace {

struct Case {
    std::string model, dtype;
    friend void PrintTo(const Case& c, std::ostream* out) { *out << c.model << " in " << c.dtype; }
};
std::vector<Case> cases() {
    std::vector<Case> all;
    for (const std::string& model : ModelGolden::names())
        for (const char* dtype : {"f32", "bf16"}) all.push_back({model, dtype});
    all.push_back({"qwen3", "f16"});  // one is enough: what differs between families is not how numbers are stored
    return all;
}

class ModelGoldens : public testing::TestWithParam<Case> {
protected:
    Pass truth() const { return golden_pass(golden); }
    PassError naive_error() const { return keel::naive_error(golden, dtype); }
    PassError keel_error(const ModelSection& model, const Weights& w, const Rows& r) const {
        return error(KeelModel(model, dtype, w, r).pass(r), truth(), golden.model.vocab);
    }
    PassError keel_error() const { return keel_error(golden.model, weights, rows); }

    const ModelGolden golden{GetParam().model};
    const std::string dtype = GetParam().dtype;
    const Weights weights = golden.weights();
    const Rows rows = golden.row();
};
INSTANTIATE_TEST_SUITE_P(Models, ModelGoldens, testing::ValuesIn(cases()),
                         [](const auto& test) { return test.param.model + "_" + test.param.dtype; });

TEST_P(ModelGoldens, LogitsAt300PositionsAreTrueAtEveryOne) {
    EXPECT_LE(keel_error().logits, twice * naive_error().logits);
}

TEST_P(ModelGoldens, LossIsTrueForEveryTokenAndInSum) {
    const PassError keel = keel_error(), naive = naive_error();
    EXPECT_LE(keel.token_loss, twice * naive.token_loss);
    EXPECT_LE(keel.loss, twice * naive.token_loss);
}

TEST_P(ModelGoldens, GradientOfEveryParameterIsTrue) {
    const PassError keel = keel_error(), naive = naive_error();
    ASSERT_EQ(keel.grads.size(), ParamTable(golden.model).specs.size());
    for (const auto& [name, value] : keel.grads) EXPECT_LE(value, twice * naive.grads.at(name)) << name;
}

TEST_P(ModelGoldens, TwentyStepsOfAdamwFollowTheTrueCurve) {
    expect_follows_the_true_curve(golden, dtype, KeelModel(golden.model, dtype, weights, golden.step(0)).train(golden));
}

// Weights of a file whose heads have pairs (2i, 2i + 1), read as if they were (i, i + head_dim / 2).
Weights interleaved(const ModelSection& model, Weights weights) {
    const auto reorder = [&](Values& w, std::int64_t heads, std::size_t width) {
        const Values old = w;
        const auto dim = static_cast<std::size_t>(model.head_dim), half = static_cast<std::size_t>(rotary_dim(model)) / 2;
        for (std::size_t row = 0; row < static_cast<std::size_t>(heads) * dim; ++row) {
            const std::size_t r = row % dim;
            if (r >= 2 * half) continue;
            const std::size_t from = row - r + (r < half ? 2 * r : 2 * (r - half) + 1);
            std::copy_n(old.begin() + static_cast<std::ptrdiff_t>(from * width), width,
                        w.begin() + static_cast<std::ptrdiff_t>(row * width));
        }
    };
    for (auto& [name, w] : weights) {
        if (name.ends_with(".qkv")) reorder(w, model.heads + model.kv_heads, static_cast<std::size_t>(model.hidden));
        if (name.ends_with(".qkv_bias")) reorder(w, model.heads + model.kv_heads, 1);
        if (name.ends_with(".q_norm") || name.ends_with(".k_norm")) reorder(w, static_cast<std::int64_t>(w.size()) / model.head_dim, 1);
    }
    return weights;
}

// The bound of the first test must not be met by a model that is wrong. Each fault is put into keel itself where it can
// be, and is then as large as the independent program found it.
TEST_P(ModelGoldens, WrongModelsAreFarOutsideOfTheBound) {
    constexpr double margin = 4;
    const double bound = twice * naive_error().logits;
    const auto expect_caught = [&](const std::string& fault, const ModelSection& model, const Weights& w,
                                   const Rows& r) {
        const Pass wrong = KeelModel(model, dtype, w, r).pass(r);
        EXPECT_GT(error(wrong, truth(), model.vocab).logits, margin * bound) << fault;
        const double size = golden["wrong/" + fault][0];
        EXPECT_NEAR(largest_difference(wrong.logits, golden["logits"]), size, size / margin) << fault;
    };
    expect_caught("interleaved_rope", golden.model, interleaved(golden.model, weights), rows);
    if (golden.documents.size() > 1)
        expect_caught("leak", golden.model, weights, Rows(golden.model, {"row"}, {{300}}));
    if (golden.model.rope_scaling != "none") {
        ModelSection unscaled = golden.model;
        unscaled.rope_scaling = "none";
        expect_caught("unscaled_rope", unscaled, weights, rows);
    }
    if (golden.model.rope_scaling == "longrope") {
        ModelSection whole = golden.model, shorter = golden.model;
        whole.rope_fraction = 1, whole.rope_scaling = "none";
        expect_caught("whole_rope", whole, weights, rows);
        shorter.rope_long_factors = shorter.rope_short_factors;
        expect_caught("short_rope", shorter, weights, rows);
    }
    if (golden.model.window) {
        ModelSection wider = golden.model;
        ++wider.window;
        expect_caught("window_plus_one", golden.model, weights, Rows(wider, {"row"}, {golden.documents}));
    }
}

// keel's norms cannot be built wrong from outside, so the mistake is made by the reference, to which keel's bound is
// applied. A usual eps is too small for bf16 to tell; `llama` has one that is not.
TEST_P(ModelGoldens, EpsOutsideOfTheRootIsFarOutsideOfTheBound) {
    ReferenceModel<double, double> model(golden.model, weights, 0, Fault::eps_outside);
    const double wrong = error(reference_pass(model, rows), truth(), golden.model.vocab).logits;
    if (dtype == "f32" || golden.name == "llama") {
        EXPECT_GT(wrong, 4 * twice * naive_error().logits);
    }
}

}  // namespace
}  // namespace keel
