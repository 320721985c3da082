// engine/progress.h: how far a run has come, what its next step will do, and what a step did.
//
// One number is progress: the samples consumed. Data position and batch size follow from it, and the learning rate from those
// of them that were trained on (schedule.h), so a run may stop on one layout and go on with another. Everything here is an integer: a checkpoint keeps it exactly,
// and FLOPs follow from tokens and tokens_squared (observe/flops.h) instead of being summed in floating point.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace keel {

// One optimizer step: samples [first_sample, first_sample + samples), in num_micro_batches of micro_batch samples each.
struct StepPlan {
    std::int64_t first_sample = 0, samples = 0;
    std::int64_t micro_batch = 0, num_micro_batches = 0;
    double lr = 0, weight_decay = 0;
};

// The loss is (sum, count) until somebody looks at it: means of means are wrong as soon as counts differ.
struct LossSum {
    double sum = 0;          // of the negative log-likelihood, in nats
    std::int64_t count = 0;  // targets it was summed over

    double mean() const { return count > 0 ? sum / static_cast<double>(count) : std::numeric_limits<double>::quiet_NaN(); }
    void add(const LossSum& other) {
        sum += other.sum;
        count += other.count;
    }
};

struct StepResult {
    LossSum loss;
    double grad_norm = 0;             // before clipping
    bool applied = true;              // false: loss or gradients were not finite, no weight has changed
    double loss_scale = 0;            // of its gradients, by now taken out again; 0: they need none
    bool overflow = false;            // not applied because of gradients alone, and a smaller loss scale can help
    std::int64_t tokens = 0;          // ΣL over documents, without padding
    std::int64_t tokens_squared = 0;  // ΣL²; what attention costs
};

struct EvalResult {
    LossSum loss;
    std::int64_t bytes = 0;  // of the text behind the targets; 0 where the token file does not say
    double seconds = 0;

    double perplexity() const { return std::exp(loss.mean()); }
    double bits_per_byte() const {
        return bytes > 0 ? loss.sum / (static_cast<double>(bytes) * 0.69314718055994530942)
                         : std::numeric_limits<double>::quiet_NaN();
    }
};

struct Progress {
    std::int64_t samples = 0;  // consumed, by skipped steps too: their data is gone for good
    std::int64_t steps = 0;    // taken, skipped ones included
    std::int64_t skipped = 0;  // steps that changed nothing: not finite, or passed over (--fault.skip)
    std::int64_t skipped_samples = 0;  // of those; the learning rate does not move on with them
    std::int64_t tokens = 0, tokens_squared = 0;  // trained on

    void advance(const StepPlan& plan, const StepResult& result) {
        samples += plan.samples;
        steps += 1;
        skipped += result.applied ? 0 : 1;
        skipped_samples += result.applied ? 0 : plan.samples;
        tokens += result.tokens;
        tokens_squared += result.tokens_squared;
    }
    // The step is passed over: its data is consumed, and nothing else.
    void pass_over(const StepPlan& plan) { samples += plan.samples, steps += 1, skipped += 1, skipped_samples += plan.samples; }
    bool operator==(const Progress&) const = default;
};

}  // namespace keel
