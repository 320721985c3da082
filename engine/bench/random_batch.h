// engine/bench/random_batch.h: what benchmarks train on: rows of random tokens, each row one document; and a whole step on them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "data/loader.h"
#include "engine/config.h"
#include "engine/model/model.h"
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

// Forward, backward, norm and AdamW of one micro-batch, without data, log and votes.
class WholeStep {
public:
    WholeStep(Model& model, const Config& config) : model_(model), data_(config), batch_(data_.batch()) {}
    void operator()() {
        const auto tokens = static_cast<double>(data_.ids.size());
        model_.zero_grads();
        model_.train_micro_batch(batch_);
        model_.reduce_grads();
        const double norm = model_.grad_norm() / tokens;
        model_.update({.lr = 1e-4f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f,
                       .grad_scale = static_cast<float>(std::min(1.0, 1.0 / norm) / tokens), .step = ++taken_});
    }
    std::int64_t taken() const { return taken_; }

private:
    Model& model_;
    RandomBatch data_;
    Batch batch_;
    std::int64_t taken_ = 0;
};

}  // namespace keel::bench
