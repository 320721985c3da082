#include "tests/engine/model_runs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace keel {
namespace {

std::pair<double, double> squares(const Values& x, const Values& truth) {
    if (x.size() != truth.size()) fail("comparing ", x.size(), " values with ", truth.size());
    double difference = 0, size = 0;
    for (std::size_t i = 0; i < x.size(); ++i)
        difference += (x[i] - truth[i]) * (x[i] - truth[i]), size += truth[i] * truth[i];
    return {difference, size};
}

}  // namespace

KeelModel::KeelModel(const ModelSection& section, const std::string& dtype, const Weights& weights, const Rows& largest,
                     const std::string& recompute, double z_loss, Device device)
    : gpu_(device == Device::cpu ? nullptr : open_gpu(device)),
      queue_(gpu_ ? gpu_->make_stream() : nullptr),
      vocab_(section.vocab) {
    Config config;
    config.model = section;
    config.model.dtype = dtype;
    config.optim.z_loss = z_loss;
    const std::int64_t positions = *std::max_element(largest.positions.begin(), largest.positions.end()) + 1;
    const ModelUse use{
        .tokens = largest.tokens(),
        .positions = positions,
        .head_chunk = std::min<std::int64_t>(largest.tokens(), 64),  // 300 positions end in a short chunk
        .recompute = recompute_policy(recompute),
        .training = true,
        .device = device};
    model_ = make_model(config, gpu_ ? Backend(*gpu_, *queue_, stream_) : Backend(stream_), use);
    model_->init(1);
    const Model::HostState state = model_->host_state();
    for (const Param& param : model_->params().specs) {
        const Values& values = weights.at(param.name);
        for (std::int64_t i = 0; i < param.size(); ++i)
            state.master[param.offset + i] = static_cast<float>(values[static_cast<std::size_t>(i)]);
    }
    with_type(model_->dtype(), [&]<class T>() {
        for (std::int64_t i = 0; i < model_->params().flat_size; ++i)
            reinterpret_cast<T*>(state.param)[i] = static_cast<T>(state.master[i]);
    });
    model_->share_params();
}

Weights KeelModel::read(View<float> flat, double scale) {
    Weights out;
    for (const Param& param : model_->params().specs)
        for (std::int64_t i = 0; i < param.size(); ++i)
            out[param.name].push_back(scale * static_cast<double>(flat[param.offset + i]));
    return out;
}

Pass KeelModel::pass(const Rows& rows) {
    Pass out;
    std::vector<float> logits(static_cast<std::size_t>(rows.tokens() * vocab_));
    model_->logits(rows.batch(), View<float>(logits.data(), {rows.tokens(), vocab_}));
    out.logits = widened(logits);
    model_->zero_grads();
    out.loss = model_->train_micro_batch(rows.batch());
    for (std::int64_t t = 0; t < rows.tokens(); ++t)
        out.token_loss.push_back(static_cast<double>(model_->token_loss()[t]));
    model_->reduce_grads();
    out.grads = read(model_->grads(), 1 / static_cast<double>(rows.loss_tokens));
    return out;
}

Curve KeelModel::train(const ModelGolden& golden) {
    Curve out;
    for (int step = 0; step < ModelGolden::steps; ++step) {
        const Rows rows = golden.step(step);
        const double tokens = static_cast<double>(rows.loss_tokens);
        model_->zero_grads();
        out.loss.push_back(model_->train_micro_batch(rows.batch()) / tokens);
        model_->reduce_grads();
        out.grad_norm.push_back(model_->grad_norm() / tokens);
        model_->update({.lr = static_cast<float>(ModelGolden::lr),
                        .beta1 = static_cast<float>(ModelGolden::beta1),
                        .beta2 = static_cast<float>(ModelGolden::beta2),
                        .eps = static_cast<float>(ModelGolden::eps),
                        .weight_decay = static_cast<float>(ModelGolden::weight_decay),
                        .grad_scale = static_cast<float>(golden.clip_factor(out.grad_norm.back()) / tokens),
                        .step = step + 1});
    }
    model_->fetch_state();
    out.final = read(model_->host_state().master, 1);
    return out;
}

Pass naive_pass(const ModelSection& section, const std::string& dtype, const Weights& weights, const Rows& rows,
                std::size_t first_term, double z_loss) {
    const auto run = [&](auto model) {
        model.first_term = first_term;
        return reference_pass(model, rows);
    };
    return with_type(dtype_named(dtype), [&]<class T>() { return run(ReferenceModel<float, T>(section, weights, z_loss)); });
}

Curve naive_train(const ModelGolden& golden, const std::string& dtype, std::size_t first_term) {
    return with_type(dtype_named(dtype), [&]<class T>() { return reference_train<float, T>(golden, first_term); });
}

PassError error(const Pass& pass, const Pass& truth, std::int64_t vocab) {
    PassError out{};
    const double tokens = static_cast<double>(truth.token_loss.size());
    for (std::ptrdiff_t at = 0; at < static_cast<std::ptrdiff_t>(truth.logits.size()); at += vocab) {
        const Values x(pass.logits.begin() + at, pass.logits.begin() + at + vocab);
        const Values y(truth.logits.begin() + at, truth.logits.begin() + at + vocab);
        out.logits = std::max(out.logits, std::sqrt(squares(x, y).first / static_cast<double>(vocab)));
    }
    for (std::size_t t = 0; t < truth.token_loss.size(); ++t)
        out.token_loss += std::abs(pass.token_loss.at(t) - truth.token_loss[t]) / tokens;
    out.loss = std::abs(pass.loss - truth.loss) / tokens;
    double all = 0;
    for (const auto& [name, grad] : truth.grads) all += squares(grad, grad).second;
    for (const auto& [name, grad] : truth.grads) {
        const auto [difference, size] = squares(pass.grads.at(name), grad);
        out.grads[name] = std::sqrt(difference / (size > 0 ? size : all));
    }
    return out;
}

PassError largest(const std::vector<PassError>& errors) {
    PassError out = errors.front();
    for (const PassError& e : errors) {
        out.logits = std::max(out.logits, e.logits);
        out.token_loss = std::max(out.token_loss, e.token_loss);
        out.loss = std::max(out.loss, e.loss);
        for (const auto& [name, value] : e.grads) out.grads[name] = std::max(out.grads[name], value);
    }
    return out;
}

Pass golden_pass(const ModelGolden& golden) {
    const Rows rows = golden.row();
    Pass out;
    out.logits = golden["logits"];
    out.loss = golden["loss"][0];
    const auto vocab = static_cast<std::ptrdiff_t>(golden.model.vocab);
    for (std::size_t t = 0; t < rows.labels.size(); ++t) {
        const auto begin = out.logits.begin() + static_cast<std::ptrdiff_t>(t) * vocab;
        double sum = 0;
        for (auto x = begin; x != begin + vocab; ++x) sum += std::exp(*x);
        out.token_loss.push_back(rows.labels[t] < 0 ? 0 : std::log(sum) - begin[rows.labels[t]]);
    }
    for (const auto& [name, w] : golden.weights()) out.grads[name] = golden["grad/" + name];
    return out;
}

PassError naive_error(const ModelGolden& golden, const std::string& dtype) {
    std::vector<PassError> errors;
    for (const std::size_t first_term : {0u, 5u, 11u})
        errors.push_back(error(naive_pass(golden.model, dtype, golden.weights(), golden.row(), first_term),
                               golden_pass(golden), golden.model.vocab));
    return largest(errors);
}

// A curve strays further at every step, so the bound of a step is the furthest that any naive run has been so far. A
// loss or a norm may be right by luck; the errors of one pass, which cannot cancel, are the least the bound is made of:
// |mean of errors| <= mean of |errors|, and ||g + e| - |g|| <= |e|.
void expect_follows_the_true_curve(const ModelGolden& golden, const std::string& dtype, const Curve& keel) {
    const Curve truth = reference_train<double, double>(golden);  // equal to the golden: reference_model_test.cpp
    std::vector<Curve> naive;
    for (const std::size_t first_term : {0u, 7u, 14u, 21u, 28u, 35u})
        if (dtype == "f32" || first_term < 21) naive.push_back(naive_train(golden, dtype, first_term));
    std::vector<std::pair<Values, Values>> runs;
    for (const Curve& c : naive) runs.emplace_back(c.loss, c.grad_norm);
    if (dtype == "bf16")
        runs.emplace_back(golden["bf16/loss"], golden["bf16/grad_norm"]);  // of the independent program

    const PassError pass = naive_error(golden, dtype);
    double loss = pass.token_loss, norm = 0;
    for (const auto& [name, value] : pass.grads) norm = std::max(norm, value);
    for (std::size_t step = 0; step < truth.loss.size(); ++step) {
        for (const auto& [losses, norms] : runs) {
            loss = std::max(loss, std::abs(losses[step] - truth.loss[step]));
            norm = std::max(norm, std::abs(norms[step] / truth.grad_norm[step] - 1));
        }
        EXPECT_LE(std::abs(keel.loss[step] - truth.loss[step]), twice * loss) << "step " << step;
        EXPECT_LE(std::abs(keel.grad_norm[step] / truth.grad_norm[step] - 1), twice * norm) << "step " << step;
    }
    for (const auto& [name, w] : truth.final) {
        double worst = 0;
        for (const Curve& c : naive) worst = std::max(worst, relative_distance(c.final.at(name), w));
        EXPECT_LE(relative_distance(keel.final.at(name), w), twice * worst) << name;
    }
    // A bound that a model which does not learn would meet proves nothing.
    EXPECT_GT(truth.loss.front() - truth.loss.back(), 4 * twice * loss);
}

double relative_distance(const Values& x, const Values& truth) {
    const auto [difference, size] = squares(x, truth);
    return std::sqrt(difference / size);
}
double largest_difference(const Values& x, const Values& truth) {
    double worst = 0;
    for (std::size_t i = 0; i < truth.size(); ++i) worst = std::max(worst, std::abs(x.at(i) - truth[i]));
    return worst;
}

}  // namespace keel
