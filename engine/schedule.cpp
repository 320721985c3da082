#include "engine/schedule.h"

#include "engine/parallel/layout.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/base/error.h"

namespace keel {
namespace {

double falling_cosine(double r) { return 0.5 * (std::cos(std::numbers::pi * r) + 1.0); }

double wsd_coefficient(const std::string& shape, double q) {
    if (shape == "linear") return 1.0 - q;
    if (shape == "cosine") return falling_cosine(q);
    if (shape == "exponential") return 2.0 * std::pow(0.5, q) - 1.0;
    if (shape == "minus_sqrt") return 1.0 - std::sqrt(q);
    fail_usage("--optim.wsd_decay is \"", shape, "\"; it must be linear, cosine, exponential or minus_sqrt");
}

}  // namespace

double learning_rate(const OptimSection& optim, std::int64_t decay_samples, std::int64_t samples) {
    const auto n = static_cast<double>(samples), warmup = static_cast<double>(optim.warmup_samples);
    const auto decay = static_cast<double>(decay_samples);
    if (optim.warmup_samples > 0 && n <= warmup) return optim.init_lr + (optim.lr - optim.init_lr) * n / warmup;
    if (optim.schedule == "constant") return optim.lr;
    if (n > decay) return optim.min_lr;
    if (optim.schedule == "inverse_sqrt")
        return std::max(optim.min_lr, optim.lr * std::sqrt(std::max(warmup, 1.0)) / std::sqrt(std::max(n, 1.0)));
    double c = 1.0;
    if (optim.schedule == "wsd") {
        const double start = decay - static_cast<double>(optim.wsd_samples);
        if (n > start) c = wsd_coefficient(optim.wsd_decay, (n - start) / static_cast<double>(optim.wsd_samples));
    } else {
        const double r = (n - warmup) / (decay - warmup);
        if (optim.schedule == "linear") c = 1.0 - r;
        else if (optim.schedule == "cosine") c = falling_cosine(r);
        else
            fail_usage("--optim.schedule is \"", optim.schedule,
                       "\"; it must be constant, linear, cosine, inverse_sqrt or wsd");
    }
    return optim.min_lr + c * (optim.lr - optim.min_lr);
}

double weight_decay(const OptimSection& optim, std::int64_t run_samples, std::int64_t samples) {
    const double from = optim.weight_decay, to = optim.weight_decay_end;
    if (to < 0) return from;
    if (samples >= run_samples) return to;
    const double r = static_cast<double>(samples) / static_cast<double>(run_samples);
    return from + (optim.weight_decay_schedule == "linear" ? r : falling_cosine(1 - r)) * (to - from);
}

double clip_factor(const OptimSection& optim, double grad_norm) {
    return optim.clip > 0 ? std::min(1.0, optim.clip / (grad_norm + 1e-6)) : 1.0;
}

Schedule::Schedule(const Config& config)
    : batches_(config),
      optim_(config.optim),
      samples_(config.train.samples),
      micro_batch_(compute_batch(config)),
      decay_samples_(config.optim.decay_samples > 0 ? config.optim.decay_samples : config.train.samples),
      eval_interval_(config.train.eval_interval),
      save_interval_(config.ckpt.interval),
      log_interval_(std::max<std::int64_t>(config.train.log_interval, 1)),
      self_test_interval_(config.watch.self_test_interval),
      exit_(config.exit),
      total_steps_(batches_.steps_for(samples_)),
      total_samples_(batches_.samples_after(total_steps_)) {}

StepPlan Schedule::at(const Progress& progress) const {
    const std::int64_t batch = batches_.at(progress.samples), updated = progress.samples - progress.skipped_samples;
    return {.first_sample = progress.samples,
            .samples = batch,
            .micro_batch = micro_batch_,
            .num_micro_batches = batch / micro_batch_,
            .lr = learning_rate(optim_, decay_samples_, updated),
            .weight_decay = weight_decay(optim_, samples_, updated)};
}

bool Schedule::eval_due(const Progress& progress) const {
    return eval_interval_ > 0 && progress.steps % eval_interval_ == 0 && !done(progress);
}

bool Schedule::save_due(const Progress& progress, const StepPlan& last) const {
    return (save_interval_ > 0 && progress.steps % save_interval_ == 0) || batches_.at(progress.samples) != last.samples ||
           done(progress);
}

bool Schedule::self_test_due(const Progress& progress) const {
    return self_test_interval_ > 0 && progress.steps % self_test_interval_ == 0;
}

const char* Schedule::leave(const Progress& progress) const {
    if (done(progress)) return "done";
    if (exit_.interval > 0 && progress.steps % exit_.interval == 0) return "interval";
    return std::ranges::count(exit_.steps, progress.steps) > 0 ? "phase" : "";
}

bool Schedule::log_due(const Progress& progress) const {
    return progress.steps % log_interval_ == 0 || done(progress);
}

}  // namespace keel
