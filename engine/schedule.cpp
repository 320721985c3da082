#include "engine/schedule.h"

#include "engine/parallel/layout.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "kernels/base/error.h"

namespace keel {
namespace {

__extension__ typedef __int128 wide;  // n * increments passes 2^63 for long runs

double falling_cosine(double r) { return 0.5 * (std::cos(std::numbers::pi * r) + 1.0); }

double wsd_coefficient(const std::string& shape, double q) {
    if (shape == "linear") return 1.0 - q;
    if (shape == "cosine") return falling_cosine(q);
    if (shape == "exponential") return 2.0 * std::pow(0.5, q) - 1.0;
    if (shape == "minus_sqrt") return 1.0 - std::sqrt(q);
    fail_usage("--optim.wsd_decay is \"", shape, "\"; it must be linear, cosine, exponential or minus_sqrt");
}

}  // namespace

BatchRamp::BatchRamp(std::int64_t global_batch, std::int64_t start, std::int64_t increment, std::int64_t ramp_samples)
    : global_batch_(global_batch), start_(start), increment_(increment), ramp_samples_(ramp_samples) {
    if (global_batch <= 0) fail_usage("--train.global_batch is ", global_batch, "; it must be at least 1");
    if (start <= 0 || start > global_batch)
        fail_usage("--train.batch_ramp starts at ", start, " samples per step; it must start between 1 and ",
                   "--train.global_batch ", global_batch);
    if (increment <= 0) fail_usage("--train.batch_ramp has increment ", increment, "; it must be at least 1");
    if (ramp_samples < 0) fail_usage("--train.batch_ramp lasts ", ramp_samples, " samples; it cannot be negative");
    if ((global_batch - start) % increment != 0)
        fail_usage("--train.batch_ramp ", start, " ", increment, " ", ramp_samples, " never arrives at ",
                   "--train.global_batch ", global_batch, ": ", global_batch - start, " is not a multiple of ", increment);
    increments_ = (global_batch - start) / increment;
}

BatchRamp::BatchRamp(const TrainSection& train)
    : BatchRamp(train.batch_ramp.empty() ? BatchRamp(train.global_batch)
                                         : BatchRamp(train.global_batch, train.batch_ramp.at(0), train.batch_ramp.at(1),
                                                     train.batch_ramp.at(2))) {}

std::int64_t BatchRamp::at(std::int64_t samples) const {
    if (samples > ramp_samples_ || ramp_samples_ == 0) return global_batch_;
    const auto k = static_cast<std::int64_t>(static_cast<wide>(samples) * increments_ / ramp_samples_);
    return start_ + k * increment_;
}

std::vector<std::int64_t> BatchRamp::levels() const {
    std::vector<std::int64_t> batches;
    if (ramp_samples_ > 0)
        for (std::int64_t batch = start_; batch < global_batch_; batch += increment_) batches.push_back(batch);
    batches.push_back(global_batch_);
    return batches;
}

// Walks the ramp level by level, not step by step: a ramp may last for billions of steps.
std::int64_t BatchRamp::end_of_level(std::int64_t samples) const {
    if (samples > ramp_samples_ || ramp_samples_ == 0) return std::numeric_limits<std::int64_t>::max();
    const wide k = static_cast<wide>(samples) * increments_ / ramp_samples_;
    if (k >= increments_) return ramp_samples_ + 1;
    const wide next = ((k + 1) * ramp_samples_ + increments_ - 1) / increments_;  // first n with floor(...) = k + 1
    return static_cast<std::int64_t>(next);
}

std::int64_t BatchRamp::samples_after(std::int64_t steps) const {
    std::int64_t samples = 0;
    while (steps > 0) {
        const std::int64_t batch = at(samples), end = end_of_level(samples);
        const std::int64_t taken = std::min(steps, (end - samples - 1) / batch + 1);
        if (batch > 0 && taken > (std::numeric_limits<std::int64_t>::max() - samples) / batch)
            fail_usage("--train.steps ", steps, " of --train.global_batch ", global_batch_,
                       " samples are more than a 64-bit count of samples holds; shorten the run");
        samples += taken * batch;
        steps -= taken;
    }
    return samples;
}

std::int64_t BatchRamp::steps_for(std::int64_t target) const {
    std::int64_t samples = 0, steps = 0;
    while (samples < target) {
        const std::int64_t batch = at(samples), end = std::min(target, end_of_level(samples));
        const std::int64_t taken = (end - samples - 1) / batch + 1;
        samples += taken * batch;
        steps += taken;
    }
    return steps;
}

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

Schedule::Schedule(const Config& config)
    : ramp_(config.train),
      optim_(config.optim),
      samples_(config.train.samples),
      micro_batch_(compute_batch(config)),
      decay_samples_(config.optim.decay_samples > 0 ? config.optim.decay_samples : config.train.samples),
      eval_interval_(config.train.eval_interval),
      save_interval_(config.ckpt.interval),
      log_interval_(std::max<std::int64_t>(config.train.log_interval, 1)),
      self_test_interval_(config.watch.self_test_interval),
      exit_(config.exit),
      evaluates_(!config.data.valid.empty() || (config.data.split.size() > 1 && config.data.split[1] > 0)),
      total_steps_(ramp_.steps_for(samples_)),
      total_samples_(ramp_.samples_after(total_steps_)) {}

StepPlan Schedule::at(const Progress& progress) const {
    const std::int64_t batch = ramp_.at(progress.samples);
    return {.first_sample = progress.samples,
            .samples = batch,
            .micro_batch = micro_batch_,
            .num_micro_batches = batch / micro_batch_,
            .lr = learning_rate(optim_, decay_samples_, progress.samples - progress.skipped_samples)};
}

bool Schedule::eval_due(const Progress& progress) const {
    return evaluates_ && ((eval_interval_ > 0 && progress.steps % eval_interval_ == 0) || done(progress));
}

bool Schedule::save_due(const Progress& progress, const StepPlan& last) const {
    return (save_interval_ > 0 && progress.steps % save_interval_ == 0) || ramp_.at(progress.samples) != last.samples ||
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
