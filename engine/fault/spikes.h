// engine/fault/spikes.h: whether a number is far larger than it has been: the first values set the measure, and what is
// `factor` times their largest, or more, is a spike. Later values do not move it, so that a slow rise is a spike in the end.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace keel {

struct Spikes {
    std::int64_t count = 0;  // values seen, up to `first`
    double largest = 0;      // of them

    bool is_spike(double value, double factor, std::int64_t first) const {
        return factor > 0 && count >= first && std::isfinite(value) && value >= factor * largest;
    }
    void add(double value, std::int64_t first) {
        if (count >= first || !std::isfinite(value)) return;
        ++count, largest = std::max(largest, value);
    }
    // A spike that is no fault: the next one must be larger by the factor again, so that a run that diverges is not computed
    // twice from then on.
    void accept(double value) {
        if (std::isfinite(value)) largest = std::max(largest, value);  // an overflow in f16 may come with a spike
    }

    bool operator==(const Spikes&) const = default;
};

// Of a run; a checkpoint carries it.
struct StepSpikes {
    Spikes loss, grad_norm;
    bool operator==(const StepSpikes&) const = default;
};

}  // namespace keel
