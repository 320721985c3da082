#include "engine/fault/loss_scale.h"

#include <algorithm>
#include <charconv>

#include "kernels/base/error.h"

namespace keel {

double LossScale::constant_of(const std::string& setting) {
    double value = 0;
    const char* const end = setting.data() + setting.size();
    if (const auto read = std::from_chars(setting.data(), end, value); read.ec != std::errc() || read.ptr != end)
        fail_usage("--optim.loss_scale is \"", setting, "\"; it must be dynamic, or a number such as 1024");
    return value;
}

LossScale::LossScale(const OptimSection& config)
    : dynamic_(config.loss_scale == "dynamic"), min_(config.loss_scale_min), window_(config.loss_scale_window),
      hysteresis_(config.loss_scale_hysteresis),
      state_{.scale = dynamic_ ? config.loss_scale_initial : constant_of(config.loss_scale), .good_steps = 0,
             .hysteresis = config.loss_scale_hysteresis} {}

void LossScale::update(bool overflow) {
    if (!dynamic_) return;
    if (overflow) {
        state_.good_steps = 0;
        if (--state_.hysteresis <= 0) state_.scale = std::max(state_.scale * backoff, min_);
    } else if (++state_.good_steps >= window_) {
        state_.good_steps = 0;
        state_.hysteresis = hysteresis_;
        state_.scale = std::min(state_.scale * growth, largest);
    }
}

void LossScale::restore(const State& state) {
    if (!dynamic_) return;
    state_ = state;
    state_.scale = std::max(state.scale, min_);  // which may be another by now
}

}  // namespace keel
