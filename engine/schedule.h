// engine/schedule.h: what each step does, as a pure function of the samples consumed before it: its batch, its learning
// rate, and whether evaluation and a checkpoint follow.
//
// A run ends at the first step boundary at or past train.samples: every step has its full batch, so the last one may go
// up to global_batch - 1 samples further. (A cut last step would be the one step with another gradient noise.)
#pragma once

#include <cstdint>

#include "engine/batch_sizes.h"
#include "engine/config.h"
#include "engine/progress.h"

namespace keel {

// The learning rate of an update after `samples` samples. With W warm-up samples and the decay's end D:
//     n <= W           init_lr + (lr - init_lr) n / W                     (only if W > 0)
//     constant         lr
//     n > D            min_lr
//     inverse_sqrt     max(min_lr, lr sqrt(max(W, 1) / n))
//     otherwise        min_lr + c (lr - min_lr), with r = (n - W) / (D - W):
//         linear 1 - r, cosine (1 + cos pi r) / 2,
//         wsd 1 until D - wsd_samples, then with q from 0 to 1 over wsd_samples:
//             linear 1 - q, cosine (1 + cos pi q) / 2, exponential 2 * 2^-q - 1, minus_sqrt 1 - sqrt q
// `samples` are those that updates were made of: a step that changed nothing consumed its data and does not move the rate on.
double learning_rate(const OptimSection& optim, std::int64_t decay_samples, std::int64_t samples);

// The weight decay of the same update, of a run of N = `run_samples`: from weight_decay to weight_decay_end (if that is not
// negative; else it stays), with r = min(n / N, 1): linear r, cosine (1 - cos pi r) / 2 of the way.
double weight_decay(const OptimSection& optim, std::int64_t run_samples, std::int64_t samples);

// What the gradients of a step are multiplied by: min(1, clip / (norm + 1e-6)), or 1 where nothing is clipped.
double clip_factor(const OptimSection& optim, double grad_norm);

class Schedule {
public:
    // `config` is resolved (config_check.h).
    explicit Schedule(const Config& config);

    StepPlan at(const Progress& progress) const;                // of the step that comes next
    bool done(const Progress& progress) const { return progress.samples >= samples_; }

    // After the step `last` that made `progress`. A checkpoint is always due after the last step, and before the batch changes
    // size: whoever regrets the change can come back to it. Behind the last step's, every run evaluates (train.cpp).
    bool eval_due(const Progress& progress) const;
    bool save_due(const Progress& progress, const StepPlan& last) const;
    bool log_due(const Progress& progress) const;
    bool self_test_due(const Progress& progress) const;
    // Why the run leaves after the step that made `progress`: "done", "interval" (exit.interval), "phase" (exit.steps), or
    // "" where it goes on.
    const char* leave(const Progress& progress) const;

    std::int64_t total_samples() const { return total_samples_; }  // that the whole run will consume
    std::int64_t total_steps() const { return total_steps_; }

private:
    BatchSizes batches_;
    OptimSection optim_;
    std::int64_t samples_, micro_batch_, decay_samples_;
    std::int64_t eval_interval_, save_interval_, log_interval_, self_test_interval_;
    ExitSection exit_;
    std::int64_t total_steps_, total_samples_;
};

}  // namespace keel
