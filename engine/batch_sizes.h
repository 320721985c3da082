// engine/batch_sizes.h: how many samples a step takes, as a function of the samples consumed before it: one size, a ramp that
// grows evenly, or sizes given from threshold to threshold. A size never shrinks.
//
//     --train.global_batch 8                                      always 8
//     --train.global_batch 8 --train.batch_ramp 4 2 20            4, then 6, then 8 from the 20th sample on
//     --train.batch_schedule 0:768 250B:1536 500B:3072            by tokens; K, M, B and T are 10^3, 10^6, 10^9 and 10^12
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/config.h"

namespace keel {

class BatchSizes {
public:
    // Of the configuration's train section; thresholds become samples by data.seq_len, rounded down. Fails, naming the
    // flags.
    explicit BatchSizes(const Config& config);

    explicit BatchSizes(std::int64_t always);
    // batch(n) = start + floor(n increments / ramp_samples) increment until global_batch, in integers, so that a boundary cannot
    // land one step late as it does in floating point. Fails unless 0 < start <= global_batch and increment divides the
    // difference.
    static BatchSizes ramp(std::int64_t global_batch, std::int64_t start, std::int64_t increment, std::int64_t ramp_samples);
    // Entries "threshold:size" in any order, the first threshold 0. Fails where two are one sample, or a size is less than
    // the one before.
    static BatchSizes steps(const std::vector<std::string>& entries, std::int64_t seq_len);

    std::int64_t at(std::int64_t samples) const;
    std::int64_t last() const { return levels_.back().batch; }
    std::vector<std::int64_t> all() const;                 // every size there will be, ascending
    std::int64_t samples_after(std::int64_t steps) const;  // consumed by this many steps from the start
    std::int64_t steps_for(std::int64_t samples) const;    // fewest steps that consume at least this many

private:
    struct Level {
        std::int64_t from, batch;  // of steps that begin at or after `from` samples
    };
    BatchSizes() = default;
    void add(std::int64_t from, std::int64_t batch);
    const Level* level_at(std::int64_t samples) const;

    std::vector<Level> levels_;  // ascending in `from`, the first 0
};

}  // namespace keel
