// Models of keel in shapes that have no golden, against the float64 reference, which has goldens behind it
// (reference_model_test.cpp). Bounds as in model_test.cpp: twice the worst of several naive evaluations.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "tests/engine/model_runs.h"

namespace keel {
namespace {

constexpr double twice = 2;

struct Shape {
    std::string name;
    std::function<void(ModelSection&)> change;
    std::vector<std::vector<std::int64_t>> rows;  // of documents
    double z_loss = 0;
    std::string recompute = "none";
};

ModelSection base() {
    ModelSection m;
    m.vocab = 53, m.hidden = 40, m.layers = 2, m.heads = 4, m.kv_heads = 2, m.head_dim = 10, m.ffn = 37;
    return m;
}

const std::vector<Shape> shapes = {
    {"one_token", [](ModelSection&) {}, {{1}}},
    {"one_token_per_document", [](ModelSection& m) { m.qk_norm = true; }, {{1}, {1}, {1}, {1}, {1}}},
    {"prime_sizes", [](ModelSection& m) { m.vocab = 61, m.hidden = 31, m.ffn = 23, m.head_dim = 14; }, {{67}}},
    {"one_past_a_tile",
     [](ModelSection& m) { m.vocab = 257, m.hidden = 65, m.ffn = 129, m.head_dim = 18; },
     {{65}, {64}}},
    {"eight_queries_per_key", [](ModelSection& m) { m.heads = 8, m.kv_heads = 1, m.head_dim = 16; }, {{33, 40}}},
    {"three_queries_per_key", [](ModelSection& m) { m.heads = 6, m.kv_heads = 2, m.head_dim = 24; }, {{50}}},
    {"a_key_per_query", [](ModelSection& m) { m.heads = m.kv_heads = 3, m.head_dim = 32; }, {{70, 1}}},
    {"wide_heads", [](ModelSection& m) { m.heads = 2, m.kv_heads = 1, m.head_dim = 256; }, {{20}}},
    {"window_of_one", [](ModelSection& m) { m.window = 1; }, {{19, 18}}},
    {"window_as_long_as_the_row", [](ModelSection& m) { m.window = 48; }, {{48}}},
    {"window_one_shorter", [](ModelSection& m) { m.window = 47; }, {{48}}},
    {"window_and_documents", [](ModelSection& m) { m.window = 9, m.qkv_bias = true; }, {{1, 30, 8, 9, 10, 1}, {59}}},
    {"every_option",
     [](ModelSection& m) {
         m.tied = m.qkv_bias = m.qk_norm = true, m.layers = 3, m.head_dim = 22, m.window = 33;
         m.rope_scaling = "linear", m.rope_factor = 4;
     },
     {{7, 60, 1}, {68}, {34, 34}},
     1e-3,
     "none"},
    {"every_option_recomputed",
     [](ModelSection& m) {
         m.tied = m.qkv_bias = m.qk_norm = true, m.layers = 3, m.head_dim = 22;
         m.rope_scaling = "yarn", m.rope_factor = 8, m.rope_original_max_position = 200, m.rope_attention_factor = 1.25;
     },
     {{7, 60, 1}, {68}},
     1e-2,
     "block"},
    {"post_norm_and_whole_qk_norm",
     [](ModelSection& m) { m.post_norm = m.qk_norm = m.qk_norm_whole = true, m.layers = 3, m.head_dim = 22; },
     {{7, 60, 1}, {68}, {34, 34}}},
    {"post_norm_recomputed",
     [](ModelSection& m) {
         m.post_norm = m.qk_norm = m.qk_norm_whole = m.tied = true, m.layers = 3, m.window = 33;
     },
     {{7, 60, 1}, {68}},
     1e-2,
     "block"},
    {"post_norm_attention_recomputed",
     [](ModelSection& m) { m.post_norm = m.qk_norm = m.qk_norm_whole = true; },
     {{7, 60, 1}},
     0,
     "attention"},
    {"post_norm_alone", [](ModelSection& m) { m.post_norm = m.qkv_bias = true; }, {{60, 3}}, 0, "norms"},
    {"part_of_a_head_turns", [](ModelSection& m) { m.head_dim = 24, m.rope_fraction = 0.75, m.qk_norm = true; }, {{67}}},
    {"one_layer", [](ModelSection& m) { m.layers = 1; }, {{90}}, 1e-3},
    {"ten_layers", [](ModelSection& m) { m.layers = 10; }, {{40}}},
};

struct Case {
    Shape shape;
    std::string dtype;
    friend void PrintTo(const Case& c, std::ostream* out) { *out << c.shape.name << " in " << c.dtype; }
};
std::vector<Case> cases() {
    std::vector<Case> all;
    for (const Shape& shape : shapes)
        for (const char* dtype : {"f32", "bf16"}) all.push_back({shape, dtype});
    return all;
}

class ModelShapes : public testing::TestWithParam<Case> {
protected:
    ModelSection model() const {
        ModelSection m = base();
        GetParam().shape.change(m);
        return m;
    }
    static Rows rows(const ModelSection& model, const std::string& stream,
                     const std::vector<std::vector<std::int64_t>>& documents) {
        std::vector<std::string> names;
        for (std::size_t r = 0; r < documents.size(); ++r) names.push_back(stream + std::to_string(r));
        return Rows(model, names, documents);
    }
};
INSTANTIATE_TEST_SUITE_P(Shapes, ModelShapes, testing::ValuesIn(cases()),
                         [](const auto& test) { return test.param.shape.name + "_" + test.param.dtype; });

TEST_P(ModelShapes, AreAsTrueAsANaiveEvaluation) {
    const ModelSection m = model();
    const auto& [shape, dtype] = GetParam();
    const Weights weights = ModelGolden::initial_weights(m);
    const Rows r = rows(m, "shape", shape.rows);
    ReferenceModel<double, double> reference(m, weights, shape.z_loss);
    const Pass truth = reference_pass(reference, r);
    std::vector<PassError> errors;
    // A rounding error is a draw: of one token's few sums one order of terms may be lucky, of five hardly all.
    for (const std::size_t first_term : {0u, 3u, 5u, 7u, 11u})
        errors.push_back(error(naive_pass(m, dtype, weights, r, first_term, shape.z_loss), truth, m.vocab));
    const PassError naive = largest(errors);
    const PassError keel =
        error(KeelModel(m, dtype, weights, r, shape.recompute, shape.z_loss).pass(r), truth, m.vocab);

    EXPECT_LE(keel.logits, twice * naive.logits);
    EXPECT_LE(keel.token_loss, twice * naive.token_loss);
    EXPECT_LE(keel.loss, twice * naive.token_loss);
    // Where every query sees one key, gradients of q and k are a difference of equal numbers. What is left of it is
    // rounding, at most one unit of the whole gradient: all there is in what sees nothing else, and a part of what lies
    // before. The naive evaluation takes both numbers from one sum and may have none of it.
    const double unit = dtype == "f32" ? 0x1p-24 : 0x1p-8;
    const bool alone = std::ranges::all_of(shape.rows, [](const auto& row) { return row == std::remove_cvref_t<decltype(row)>{1}; });
    for (const auto& [name, value] : keel.grads) {
        const bool nothing = std::ranges::all_of(truth.grads.at(name), [](double x) { return x == 0; });
        EXPECT_LE(value, nothing ? unit : twice * naive.grads.at(name) + (alone ? unit : 0)) << name;
    }
}

// Gradients of the summed loss add up over micro-batches of different sizes; logits of a short one ignore the long one.
TEST_P(ModelShapes, GradientsOfMicroBatchesAdd) {
    const ModelSection m = model();
    const auto& [shape, dtype] = GetParam();
    const Weights weights = ModelGolden::initial_weights(m);
    const Rows large = rows(m, "shape", shape.rows), small = rows(m, "other", {shape.rows.front()});
    KeelModel keel(m, dtype, weights, large, shape.recompute, shape.z_loss);
    const View<float> flat = keel.model().grads();
    const auto grads = [&] { return Values(flat.data(), flat.data() + flat.size()); };
    keel.model().zero_grads();
    keel.model().train_micro_batch(large.batch());
    const Values first = grads();
    keel.model().train_micro_batch(small.batch());
    const Values both = grads();
    keel.model().zero_grads();
    keel.model().train_micro_batch(small.batch());
    const Values second = grads();
    Values sum = first;
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += second[i];
    // Each element is a float32 sum of at most as many terms as there are tokens, and so are both parts.
    const double terms = static_cast<double>(large.tokens() + small.tokens());
    EXPECT_LE(relative_distance(both, sum), terms * 0x1p-24);
}

}  // namespace
}  // namespace keel
