#include "engine/parallel/volume.h"

#include <algorithm>

#include "engine/model/layout.h"
#include "engine/model/model.h"

namespace keel {
namespace {

// As comm/group.h counts.
std::int64_t all_reduce(std::int64_t ranks, std::int64_t bytes) { return 2 * (ranks - 1) * bytes / ranks; }
std::int64_t of_shard(std::int64_t ranks, std::int64_t shard_bytes) { return (ranks - 1) * shard_bytes; }

}  // namespace

std::map<std::string, Traffic> step_traffic(const Config& c, const RankPlace& place) {
    const Shard shard = shard_of(c, place);
    const ModelUse use = training_use(c, place);
    const ParamTable params(c.model, shard, use.bucket);
    const BlockDims dims = block_dims(c.model, shard.tp);
    const std::int64_t e = c.model.dtype == "f32" ? 4 : 2, gradient = use.exact ? 8 : 4;
    const std::int64_t rows = shard.sequence ? use.tokens / shard.tp : use.tokens, stream = rows * dims.hidden * e;
    const std::int64_t m = micro_batches(c, c.train.global_batch);
    std::int64_t blocks = 0;
    for (const LayerRange& range : shard.chunks) blocks += range.size();
    const std::int64_t again_attention = use.recompute >= Recompute::attention, again_block = use.recompute >= Recompute::block;

    std::map<std::string, Traffic> out;
    if (shard.tp > 1) {
        Traffic& t = out["tp"];
        const std::int64_t all_gathers = blocks * (6 + again_attention + again_block) + shard.has_embedding() + shard.has_head(),
                           partial_sums = blocks * (4 + again_block * (dims.post_norm ? 2 : 1)) + shard.has_head();
        if (shard.sequence) {
            t.all_gather = m * all_gathers * of_shard(shard.tp, stream);
            t.reduce_scatter = m * (partial_sums + shard.has_embedding()) * of_shard(shard.tp, stream);
        } else {
            t.all_reduce = m * (partial_sums + shard.has_embedding()) * all_reduce(shard.tp, stream);
        }
        if (dims.qk_norm_whole)  // a number of every token, of q and of k
            t.all_reduce += m * blocks * 2 * (2 + again_attention) * all_reduce(shard.tp, 4 * use.tokens);
        if (shard.has_head())  // largest, sum and target of every token
            for (std::int64_t begin = 0; begin < use.tokens; begin += use.head_chunk)
                t.all_reduce += m * 3 * all_reduce(shard.tp, 4 * std::min(use.head_chunk, use.tokens - begin));
        for (int bucket = 0; bucket < static_cast<int>(params.buckets.buckets.size()); ++bucket) {
            std::int64_t gains = 0;
            for (std::size_t i = 0; i < params.specs.size(); ++i) {
                if (params.specs[i].held != Held::partial || params.buckets.bucket_of[i] != bucket) continue;
                gains += params.specs[i].size();
                if (use.exact) t.all_reduce += all_reduce(shard.tp, 8 * params.specs[i].size());
            }
            if (!use.exact) t.all_reduce += all_reduce(shard.tp, 4 * gains);
        }
    }
    if (shard.cp > 1) {
        const std::int64_t keys = use.tokens * dims.kv_size() * e;
        const std::int64_t passes = (4 + 2 * again_attention) * of_shard(shard.cp, keys);
        if (shard.ring) {  // sums of gradients travel as float
            out["cp"].send = m * blocks * (passes + 2 * of_shard(shard.cp, keys / e * 4));
        } else {
            out["cp"].all_gather = m * blocks * passes;
            out["cp"].reduce_scatter = m * blocks * 2 * of_shard(shard.cp, keys);
        }
    }
    if (shard.stages > 1) {
        const PipelineShape shape = pipeline_shape(c.parallel, m);
        for (int chunk = 0; chunk < shape.chunks; ++chunk) {
            const StagePlace here{static_cast<int>(place.pp), chunk};
            out["pp"].send += m * stream * (next_stage(shape, here).has_value() + previous_stage(shape, here).has_value());
        }
        if (c.model.tied && (shard.has_embedding() || shard.has_head()))
            out["embd"].all_reduce = all_reduce(2, params.at("embed").size() * gradient);
    }
    if (shard.replicas > 1) {
        out["dp_cp"].reduce_scatter = of_shard(shard.replicas, params.owned_size * gradient);
        out["dp_cp"].all_gather = of_shard(shard.replicas, params.owned_size * e);
    }
    return out;
}

}  // namespace keel
