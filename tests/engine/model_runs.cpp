#include "tests/engine/model_runs.h"

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
                     const std::string& recompute, double z_loss)
    : vocab_(section.vocab) {
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
        .training = true};
    model_ = make_model(config, stream_, use);
    model_->init(1);
    for (const Param& param : model_->params().specs) {
        const Values& values = weights.at(param.name);
        for (std::int64_t i = 0; i < param.size(); ++i)
            model_->master()[param.offset + i] = static_cast<float>(values[static_cast<std::size_t>(i)]);
    }
    if (model_->dtype() == Dtype::bf16)
        for (std::int64_t i = 0; i < model_->params().flat_size; ++i)
            reinterpret_cast<bf16*>(model_->param_data())[i] = static_cast<bf16>(model_->master()[i]);
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
    out.final = read(model_->master(), 1);
    return out;
}

Pass naive_pass(const ModelSection& section, const std::string& dtype, const Weights& weights, const Rows& rows,
                std::size_t first_term, double z_loss) {
    const auto run = [&](auto model) {
        model.first_term = first_term;
        return reference_pass(model, rows);
    };
    if (dtype == "f32") return run(ReferenceModel<float, float>(section, weights, z_loss));
    return run(ReferenceModel<float, bf16>(section, weights, z_loss));
}

Curve naive_train(const ModelGolden& golden, const std::string& dtype, std::size_t first_term) {
    return dtype == "f32" ? reference_train<float, float>(golden, first_term)
                          : reference_train<float, bf16>(golden, first_term);
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
