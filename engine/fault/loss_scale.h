// engine/fault/loss_scale.h: the factor on the loss under which f16 gradients are computed (--optim.loss_scale).
//
// f16 has few exponents: gradients of activations are mostly smaller than its least normal number, 2^-14, and lose bits or
// vanish. Backward is linear, so the loss is multiplied before it and the gradients, by then float, are divided after it. What
// is too large overflows to infinity, which the gradient norm shows: the step is skipped on every rank, its data consumed, and
// a dynamic scale is halved; after `window` steps without an overflow it is doubled. That follows Micikevicius et al., "Mixed
// Precision Training" (arXiv:1710.03740), with a hysteresis: an overflow halves the scale only from the hysteresis-th on since it
// last grew, so that an odd batch does not cost a thousand steps at half the scale.
//
// keel scales the loss of a token, not the mean of a batch: what f16 must hold is a token's gradient, however many there are.
// (The summed weight gradients are float.) Scales are therefore smaller than elsewhere by the tokens of a step.
//
// The state changes once a step, after the verdict on it (engine/train.cpp): a step that is computed again is so under the
// same scale, and a checkpoint from before a step has the scale from before it.
#pragma once

#include <cstdint>
#include <string>

#include "engine/config.h"

namespace keel {

class LossScale {
public:
    static constexpr double growth = 2, backoff = 0.5;                // powers of two: the bits of a gradient stay as they are
    static constexpr double least = 0x1p-24, largest = 0x1p64;        // that a scale may be, so that floats hold what it makes

    struct State {
        double scale = 1;
        std::int64_t good_steps = 0;  // since the last overflow or growth
        std::int64_t hysteresis = 0;  // overflows from the one on which halves the scale; below 1 each does
        bool operator==(const State&) const = default;
    };

    explicit LossScale(const OptimSection& config);
    // The number that `--optim.loss_scale` is, where it is not "dynamic"; fails by a message where it is neither.
    static double constant_of(const std::string& setting);

    double value() const { return state_.scale; }
    // Whether an overflow can be cured by a smaller scale. If not, it is a fault like any other number that is not finite.
    bool can_shrink() const { return dynamic_ && state_.scale > min_; }
    // After a step: whether its update failed because a number was not finite. Nothing happens to a constant scale.
    void update(bool overflow);

    const State& state() const { return state_; }
    void restore(const State& state);  // of a checkpoint; a constant scale stays what the configuration says

private:
    bool dynamic_;
    double min_;
    std::int64_t window_, hysteresis_;
    State state_;
};

}  // namespace keel
