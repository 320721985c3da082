// engine/parallel/layout.h: the parallel section of a configuration, checked and worked out: how many ranks, and what each
// of them holds of the model.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/config.h"
#include "engine/parallel/layers.h"
#include "engine/parallel/mesh.h"
#include "engine/parallel/pipeline.h"

namespace keel {

// Refuses what the settings alone show to be impossible, by messages that name the flags. `config` is otherwise resolved;
// dp 0 counts as 1.
void check_parallel(const Config& config);

// Ranks that tp, pp, cp and dp ask for; dp 0 counts as 1.
std::int64_t ranks_asked(const ParallelSection& parallel);

// The mesh of `world` ranks; fills dp from what they leave. Refuses what makes no mesh.
MeshShape resolve_mesh(ParallelSection& parallel, std::int64_t world);

// Samples in one forward and backward: train.micro_batch, or one where gradients are summed exactly, sequence by sequence.
std::int64_t compute_batch(const Config& config);

// Replicas of the model: dp, where 0 counts as 1.
std::int64_t replicas(const ParallelSection& parallel);
// Of one step of `samples`, in each replica.
std::int64_t micro_batches(const Config& config, std::int64_t samples);

PipelineSchedule schedule_of(const ParallelSection& parallel);
PipelineShape pipeline_shape(const ParallelSection& parallel, std::int64_t micro_batches);

// Rows [begin, end) of the vocabulary that rank `rank` of `ranks` holds. Shares are equal multiples of `multiple`, so the
// last ranks may hold fewer: rows past the vocabulary exist nowhere, take no part in softmax and have no gradient.
struct VocabRange {
    std::int64_t begin, end;
    std::int64_t size() const { return end - begin; }
};
std::int64_t padded_vocab(std::int64_t vocab, std::int64_t multiple, std::int64_t ranks);
VocabRange vocab_range(std::int64_t vocab, std::int64_t multiple, std::int64_t ranks, std::int64_t rank);

// What one rank holds.
struct Shard {
    std::int64_t tp = 1, tp_rank = 0;
    bool sequence = false;                   // only with tp > 1
    std::int64_t cp = 1, cp_rank = 0;
    bool ring = false;                       // keys travel around the cp ranks; else they are gathered
    std::int64_t replicas = 1, replica = 0;  // of the same parameters: the dp x cp ranks that share their optimizer state
    std::int64_t stages = 1, stage = 0;
    VocabRange vocab{0, 0};
    std::vector<LayerRange> chunks;          // of this rank, in order

    bool has_embedding() const { return chunks.front().embedding; }
    bool has_head() const { return chunks.back().head; }
};

// Where a rank stands on each axis.
struct RankPlace {
    std::int64_t tp = 0, cp = 0, dp = 0, pp = 0;
};
Shard shard_of(const Config& config, const RankPlace& place);

}  // namespace keel
