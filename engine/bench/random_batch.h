// engine/bench/random_batch.h: a batch for benchmarks: rows of random tokens, each row one document.
#pragma once

#include <cstdint>
#include <vector>

#include "data/loader.h"
#include "engine/config.h"
#include "kernels/base/random.h"

namespace keel::bench {

struct RandomBatch {
    std::vector<std::int32_t> ids, labels, positions, lo;

    explicit RandomBatch(const Config& c) {
        const Random random(7, Purpose::test, "bench tokens");
        const std::int64_t n = c.train.micro_batch * c.data.seq_len;
        const auto draw = [&](std::int64_t i) {
            return static_cast<std::int32_t>(random.uniform(static_cast<std::uint64_t>(i)) * static_cast<double>(c.model.vocab));
        };
        for (std::int64_t i = 0; i < n; ++i) {
            const std::int64_t begin = i / c.data.seq_len * c.data.seq_len;
            ids.push_back(draw(i));
            labels.push_back(draw(i + 1));
            positions.push_back(static_cast<std::int32_t>(i - begin));
            lo.push_back(static_cast<std::int32_t>(begin));
        }
    }
    Batch batch() const {
        const auto view = [](const std::vector<std::int32_t>& x) {
            return View<const std::int32_t>(x.data(), {static_cast<std::int64_t>(x.size())});
        };
        return {.ids = view(ids), .labels = view(labels), .positions = view(positions), .lo = view(lo),
                .loss_tokens = static_cast<std::int64_t>(ids.size()), .sum_len = 0, .sum_len_sq = 0, .first_sample = 0, .count = 0};
    }
};

}  // namespace keel::bench
