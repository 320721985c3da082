// engine/model/model_plan.cpp: what a model needs on one rank, worked out without memory or weights.

#include <algorithm>

#include "engine/model/model.h"

namespace keel {

MemoryPlan plan_model(const Config& config, const ModelUse& use, const RankPlace& place) {
    MemoryPlan plan;
    const Shard shard = shard_of(config, place);
    if (config.model.dtype == "f32") ModelLayout<float>(plan, config.model, use, shard);
    else ModelLayout<bf16>(plan, config.model, use, shard);
    plan.assign();
    return plan;
}

ModelUse training_use(const Config& config, const RankPlace& place) {
    const std::int64_t rows = compute_batch(config), tokens = rows * config.data.seq_len / config.parallel.cp;
    const std::int64_t replicas = std::max<std::int64_t>(1, config.parallel.dp);
    const PipelineShape shape = pipeline_shape(config.parallel, config.train.global_batch / (rows * replicas));
    const PipelineTable table = pipeline_table(schedule_of(config.parallel), shape, static_cast<int>(place.pp));
    const std::int64_t vocab = vocab_range(config.model.vocab, config.parallel.vocab_multiple, config.parallel.tp, 0).size();
    return {.tokens = tokens, .positions = config.data.seq_len, .head_chunk = head_chunk(config.memory.head_chunk, tokens, vocab),
            .recompute = recompute_policy(config.memory.recompute), .training = true, .exact = config.numerics.grad_sum == "exact",
            .snapshot = config.ckpt.async,
            .slots = peak_in_flight(table),
            .bucket = config.parallel.bucket > 0 ? config.parallel.bucket : default_bucket_size(replicas * config.parallel.cp)};
}

}  // namespace keel
