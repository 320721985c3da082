#include "engine/parallel/layout.h"

#include <algorithm>
#include <limits>

#include "engine/batch_sizes.h"
#include "engine/config_names.h"
#include "engine/parallel/slices.h"
#include "kernels/base/error.h"

namespace keel {
namespace {

void check_sizes(const ParallelSection& p) {
    const struct {
        const char* flag;
        std::int64_t value, least;
    } sizes[] = {{"tp", p.tp, 1}, {"pp", p.pp, 1}, {"cp", p.cp, 1}, {"dp", p.dp, 0}, {"chunks", p.chunks, 1},
                 {"micro_batch_group", p.micro_batch_group, 0}, {"first_layers", p.first_layers, 0},
                 {"last_layers", p.last_layers, 0}, {"vocab_multiple", p.vocab_multiple, 1}, {"bucket", p.bucket, 0}};
    constexpr std::int64_t most = 1 << 20;  // ranks on an axis, and so on: sums of them stay far from overflow
    for (const auto& s : sizes) {
        if (s.value < s.least) fail_usage("--parallel.", s.flag, " is ", s.value, "; it must be at least ", s.least);
        if (s.value > most && std::string_view(s.flag) != "bucket")
            fail_usage("--parallel.", s.flag, " is ", s.value, "; it must be at most ", most);
    }
    if (!(p.deadline_s > 0) || p.deadline_s > 1e6)
        fail_usage("--parallel.deadline_s is ", p.deadline_s, "; it must be more than 0 and at most 1e6 seconds");
    if (p.context != "gather" && p.context != "ring")
        fail_usage("--parallel.context is \"", p.context, "\"; choices are gather, ring");
}

// A tensor-parallel rank holds whole heads, an equal part of the ffn, and at least one row of the vocabulary.
void check_tensor(const Config& c) {
    const ParallelSection& p = c.parallel;
    const ModelSection& m = c.model;
    if (p.tp == 1) return;
    if (m.heads % p.tp != 0)
        fail_usage("--model.heads ", m.heads, " cannot be shared out over --parallel.tp ", p.tp, "; a rank holds whole heads");
    if (m.kv_heads % p.tp != 0)
        fail_usage("--model.kv_heads ", m.kv_heads, " cannot be shared out over --parallel.tp ", p.tp,
                   "; a rank holds whole key and value heads, since two copies of one would need their gradients summed: ",
                   "lower --parallel.tp to a divisor of ", m.kv_heads);
    if (m.ffn % p.tp != 0)
        fail_usage("--model.ffn ", m.ffn, " is not a multiple of --parallel.tp ", p.tp, ", over which it is shared out");
    if (m.vocab > 0 && vocab_range(m.vocab, p.vocab_multiple, p.tp, p.tp - 1).size() <= 0)
        fail_usage("--model.vocab ", m.vocab, " in multiples of --parallel.vocab_multiple ", p.vocab_multiple,
                   " leaves nothing for the last of --parallel.tp ", p.tp, " ranks; lower --parallel.vocab_multiple");
    if (p.sequence && c.data.seq_len / p.cp % p.tp != 0)
        fail_usage("--data.seq_len ", c.data.seq_len, p.cp > 1 ? concat(" / --parallel.cp ", p.cp) : std::string(),
                   " is not a multiple of --parallel.tp ", p.tp, ", over which the tokens of a sequence are cut; ",
                   "change one of them, or give --parallel.sequence false");
}

void check_batch(const Config& c) {
    const std::int64_t dp = replicas(c.parallel), unit = c.train.micro_batch * dp;
    if (c.train.global_batch % unit != 0)
        fail_usage("--train.global_batch ", c.train.global_batch, " is not a multiple of --train.micro_batch ",
                   c.train.micro_batch, " x ", dp, " replicas (--parallel.dp); every replica takes equally many micro-batches");
    if (!c.train.batch_ramp.empty() && c.train.batch_ramp[0] != c.train.global_batch)
        for (const int i : {0, 1})
            if (const std::int64_t n = c.train.batch_ramp[static_cast<std::size_t>(i)]; n % unit != 0)
                fail_usage("--train.batch_ramp ", i == 0 ? "starts at " : "grows by ", n,
                           ", which is not a multiple of --train.micro_batch ", c.train.micro_batch, " x ", dp,
                           " replicas (--parallel.dp)");
    for (const std::int64_t batch : BatchSizes(c).all()) {
        if (batch % unit != 0)
            fail_usage("--train.batch_schedule comes to steps of ", batch, " samples, which is not a multiple of --train.micro_batch ",
                       c.train.micro_batch, " x ", dp, " replicas (--parallel.dp)");
        check_pipeline(schedule_of(c.parallel), pipeline_shape(c.parallel, micro_batches(c, batch)));
    }
}

}  // namespace

std::int64_t replicas(const ParallelSection& p) { return std::max<std::int64_t>(1, p.dp); }

std::int64_t ranks_asked(const ParallelSection& p) {
    std::int64_t n = p.tp;
    for (const std::int64_t size : {p.pp, p.cp, replicas(p)})
        if (__builtin_mul_overflow(n, size, &n) || n > std::numeric_limits<std::int32_t>::max())
            fail_usage("--parallel.tp ", p.tp, " x pp ", p.pp, " x cp ", p.cp, " x dp ", replicas(p), " are too many ranks");
    return n;
}

MeshShape resolve_mesh(ParallelSection& p, std::int64_t world) {
    check_sizes(p);
    const auto size = [](std::int64_t n) { return static_cast<int>(n); };
    MeshShape wanted{.tp = size(p.tp), .cp = size(p.cp), .dp = size(p.dp), .pp = size(p.pp)};
    const MeshShape shape = mesh_shape(size(world), wanted, size(p.chunks));
    p.dp = shape.dp;
    return shape;
}

std::int64_t compute_batch(const Config& c) { return c.numerics.grad_sum == "exact" ? 1 : c.train.micro_batch; }

std::int64_t micro_batches(const Config& c, std::int64_t samples) { return samples / (compute_batch(c) * replicas(c.parallel)); }

PipelineSchedule schedule_of(const ParallelSection& p) {
    return pipeline_schedule(p.schedule, static_cast<int>(p.pp), static_cast<int>(p.chunks));
}

PipelineShape pipeline_shape(const ParallelSection& p, std::int64_t micro_batches) {
    return {.stages = static_cast<int>(p.pp), .chunks = static_cast<int>(p.chunks),
            .micro_batches = static_cast<int>(micro_batches), .group = static_cast<int>(p.micro_batch_group)};
}

std::int64_t padded_vocab(std::int64_t vocab, std::int64_t multiple, std::int64_t ranks) {
    const std::int64_t unit = multiple * ranks;
    return (vocab + unit - 1) / unit * unit;
}

VocabRange vocab_range(std::int64_t vocab, std::int64_t multiple, std::int64_t ranks, std::int64_t rank) {
    if (ranks == 1) return {0, vocab};
    const std::int64_t share = padded_vocab(vocab, multiple, ranks) / ranks;
    return {std::min(vocab, rank * share), std::min(vocab, (rank + 1) * share)};
}

Shard shard_of(const Config& c, const RankPlace& at) {
    const ParallelSection& p = c.parallel;
    const auto split = layer_split({.layers = static_cast<int>(c.model.layers), .stages = static_cast<int>(p.pp),
                                    .chunks = static_cast<int>(p.chunks), .first = static_cast<int>(p.first_layers),
                                    .last = static_cast<int>(p.last_layers), .count_embedding = p.count_embedding,
                                    .count_head = p.count_head, .layout = p.layers});
    Shard shard{.tp = p.tp, .tp_rank = at.tp, .sequence = p.sequence && p.tp > 1, .cp = p.cp, .cp_rank = at.cp, .ring = p.context == "ring",
                .replicas = replicas(p) * p.cp, .replica = at.dp * p.cp + at.cp, .stages = p.pp, .stage = at.pp,
                .vocab = vocab_range(c.model.vocab, p.vocab_multiple, p.tp, at.tp), .chunks = {}};
    for (std::int64_t chunk = 0; chunk < p.chunks; ++chunk)
        shard.chunks.push_back(split[static_cast<std::size_t>(chunk * p.pp + at.pp)]);
    return shard;
}

void check_parallel(const Config& c) {
    check_sizes(c.parallel);
    if (c.numerics.grad_sum != "float" && c.numerics.grad_sum != "exact")
        fail_usage("--numerics.grad_sum is \"", c.numerics.grad_sum, "\"; choices are float, exact");
    (void)ranks_asked(c.parallel);
    check_tensor(c);
    if (c.parallel.cp > 1) (void)ContextSlices(c.data.seq_len, c.parallel.cp);
    (void)shard_of(c, {});
    check_batch(c);
}

}  // namespace keel
