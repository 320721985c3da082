// tests/engine/model_runs.h: one model run in three ways (keel, the naive evaluation in keel's precision, the float64
// reference), as the same list of numbers, and the measures by which the tests compare such lists.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/model/model.h"
#include "kernels/hopper.h"
#include "tests/engine/model_golden.h"
#include "tests/engine/reference_model.h"

namespace keel {

// What one forward and backward over one Rows yields. Gradients are those of the mean loss.
struct Pass {
    Values logits, token_loss;  // logits [tokens, vocab]
    double loss = 0;            // summed
    Weights grads;
};
// What training yields.
struct Curve {
    Values loss, grad_norm;  // of the mean loss, per step, before the update and before clipping
    Weights final;
};

// A model of keel with given weights.
class KeelModel {
public:
    KeelModel(const ModelSection& section, const std::string& dtype, const Weights& weights, const Rows& largest,
              const std::string& recompute = "none", double z_loss = 0, Device device = Device::cpu);
    Pass pass(const Rows& rows);  // gradients start from zero; on the CPU
    Curve train(const ModelGolden& golden);
    void allow_hopper() { keel::allow_hopper(*queue_); }
    Model& model() { return *model_; }

private:
    Weights read(View<float> flat, double scale);  // memory of the host

    Stream stream_{1};
    std::unique_ptr<Gpu> gpu_;
    std::unique_ptr<Stream> queue_;
    std::int64_t vocab_;
    std::unique_ptr<Model> model_;
};

template <class Array> Values widened(const Array& x) { return Values(x.begin(), x.end()); }

template <class R, class Store> Pass reference_pass(ReferenceModel<R, Store>& model, const Rows& rows) {
    Pass out;
    const auto result = model.forward(rows);
    model.zero_grads();
    model.backward(rows);
    out.logits = widened(result.logits), out.token_loss = widened(result.token_loss), out.loss = result.loss;
    for (const auto& [name, grad] : model.grads) {
        out.grads[name] = widened(grad);
        for (double& x : out.grads[name]) x /= static_cast<double>(rows.loss_tokens);
    }
    return out;
}

template <class R, class Store> Curve reference_train(const ModelGolden& golden, std::size_t first_term = 0) {
    ReferenceModel<R, Store> model(golden.model, golden.weights());
    model.first_term = first_term;
    Curve out;
    for (int step = 0; step < ModelGolden::steps; ++step) {
        const Rows rows = golden.step(step);
        const double tokens = static_cast<double>(rows.loss_tokens);
        model.zero_grads();
        out.loss.push_back(model.forward(rows).loss / tokens);
        model.backward(rows);
        out.grad_norm.push_back(model.grad_norm() / tokens);
        model.update({.lr = ModelGolden::lr,
                      .beta1 = ModelGolden::beta1,
                      .beta2 = ModelGolden::beta2,
                      .eps = ModelGolden::eps,
                      .weight_decay = ModelGolden::weight_decay,
                      .grad_scale = golden.clip_factor(out.grad_norm.back()) / tokens},
                     step + 1);
    }
    for (const auto& [name, w] : model.master) out.final[name] = widened(w);
    return out;
}

// The naive evaluation in the precision of `dtype`, "f32", "bf16" or "f16". The order of its sums starts at `first_term`: each
// start is another sample of what rounding does.
Pass naive_pass(const ModelSection& section, const std::string& dtype, const Weights& weights, const Rows& rows,
                std::size_t first_term = 0, double z_loss = 0);
Curve naive_train(const ModelGolden& golden, const std::string& dtype, std::size_t first_term = 0);

// How far a pass is from the truth. Everything is a Euclidean norm or a mean, so that no single lucky element decides.
struct PassError {
    double logits;      // largest over the positions of the root mean square over the vocabulary, so that an error that
                        // grows with distance does not hide behind near ones
    double token_loss;  // mean of absolute values
    double loss;        // of the mean loss; its bound is token_loss, because |sum of errors| <= sum of |errors|
    std::map<std::string, double> grads;  // |difference| / |truth|, or / |all gradients| where the truth is zero
};
PassError error(const Pass& pass, const Pass& truth, std::int64_t vocab);

Pass golden_pass(const ModelGolden& golden);  // the truth, over golden.row()
// The largest of several naive evaluations that differ in the order of their sums.
PassError naive_error(const ModelGolden& golden, const std::string& dtype);

// The element-wise maximum: the error that evaluations in this precision make, seen several times.
PassError largest(const std::vector<PassError>& errors);

// Twenty steps of a golden's trajectory, within the bound of what rounding does (model_runs.cpp).
void expect_follows_the_true_curve(const ModelGolden& golden, const std::string& dtype, const Curve& keel);
constexpr double twice = 2;  // as far from the truth as the worst naive evaluation; other errors of the same size

double relative_distance(const Values& x, const Values& truth);  // |x - truth| / |truth|, Euclidean
double largest_difference(const Values& x, const Values& truth);

}  // namespace keel
