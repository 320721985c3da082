// engine/model/model_plan.cpp: what a model needs on one rank, worked out without memory or weights.

#include <algorithm>

#include "engine/batch_sizes.h"
#include "engine/config_check.h"
#include "engine/model/model.h"
#include "engine/parallel/pipeline_run.h"

namespace keel {

MemoryPlan plan_model(const Config& config, const ModelUse& use, const RankPlace& place) {
    MemoryPlan plan;
    const Shard shard = shard_of(config, place);
    with_type(dtype_named(config.model.dtype), [&]<class T>() { ModelLayout<T>(plan, config.model, use, shard); });
    plan.assign();
    return plan;
}

ModelUse training_use(const Config& config, const RankPlace& place) {
    const std::int64_t rows = compute_batch(config), tokens = rows * config.data.seq_len / config.parallel.cp;
    int slots = 1, gradients = 1;  // the most over all sizes of step
    std::int64_t most = 1;
    for (const std::int64_t batch : BatchSizes(config).all()) {
        most = std::max(most, micro_batches(config, batch));
        const PipelineShape shape = pipeline_shape(config.parallel, micro_batches(config, batch));
        const PipelineSchedule schedule = schedule_of(config.parallel);
        slots = std::max(slots, peak_in_flight(pipeline_table(schedule, shape, static_cast<int>(place.pp))));
        gradients = std::max(gradients, gradient_buffers(schedule, shape));
    }
    const std::int64_t vocab = vocab_range(config.model.vocab, config.parallel.vocab_multiple, config.parallel.tp, 0).size();
    return {.tokens = tokens, .positions = config.data.seq_len, .head_chunk = head_chunk(config.memory.head_chunk, tokens, vocab),
            .recompute = recompute_policy(config.memory.recompute), .training = true, .exact = config.numerics.grad_sum == "exact",
            .snapshot = config.ckpt.async,
            .slots = slots, .gradients = gradients, .micro_batches = most,
            .bucket = config.parallel.bucket > 0 ? config.parallel.bucket : default_bucket_size(replicas(config.parallel) * config.parallel.cp),
            .device = device_of(config)};
}

}  // namespace keel
