#include "engine/parallel/forecast.h"

#include <algorithm>
#include <set>

#include "engine/model/model.h"
#include "engine/observe/print.h"
#include "engine/parallel/layout.h"

namespace keel {
namespace {

std::int64_t micro_batches(const Config& c) {
    return micro_batches(c, c.train.global_batch);
}

// "0-1 4-5", the blocks of a stage.
std::string blocks(const Shard& shard) {
    std::string out = shard.has_embedding() ? "embed" : "";
    for (const LayerRange& r : shard.chunks) {
        if (r.size() == 0) continue;
        out += concat(out.empty() ? "" : " ", r.begin);
        if (r.size() > 1) out += concat("-", r.end - 1);
    }
    if (shard.has_head()) out += out.empty() ? "head" : " head";
    return out;
}

// All stages if they are few; else the ends, and the largest of each size by what they keep.
std::set<std::int64_t> stages_to_show(const Config& c) {
    std::set<std::int64_t> out;
    if (c.parallel.pp <= 16) {
        for (std::int64_t s = 0; s < c.parallel.pp; ++s) out.insert(s);
        return out;
    }
    std::int64_t largest = 1;
    const auto kept = [&](std::int64_t s) {
        std::int64_t longest = 0;
        for (const LayerRange& r : shard_of(c, {.pp = s}).chunks) longest = std::max<std::int64_t>(longest, r.size());
        return longest * training_use(c, {.pp = s}).slots;
    };
    for (std::int64_t s = 1; s + 1 < c.parallel.pp; ++s)
        if (kept(s) > kept(largest)) largest = s;
    return {0, largest, c.parallel.pp - 1};
}

}  // namespace

ClusterLayout cluster_layout(const Config& c) {
    const ParallelSection& p = c.parallel;
    ClusterLayout l;
    l.tp = p.tp;
    l.cp = p.cp;
    l.dp = replicas(p);
    l.pp = p.pp;
    l.sequence = p.sequence;
    l.schedule = schedule_of(p);
    l.chunks = p.chunks;
    l.group = p.micro_batch_group;
    l.micro_batch = compute_batch(c);
    l.micro_batches = micro_batches(c);
    l.seq_len = c.data.seq_len;
    l.overlap = p.overlap;
    l.bucket = static_cast<double>(p.bucket > 0 ? p.bucket : default_bucket_size(l.dp * l.cp));
    l.split.resize(static_cast<std::size_t>(p.pp * p.chunks));
    for (std::int64_t s = 0; s < p.pp; ++s) {
        const Shard shard = shard_of(c, {.pp = s});
        for (std::int64_t chunk = 0; chunk < p.chunks; ++chunk)
            l.split[static_cast<std::size_t>(chunk * p.pp + s)] = shard.chunks[static_cast<std::size_t>(chunk)];
    }
    return l;
}

PipelineRun schedule_forecast(const Config& c) {
    const ClusterLayout l = cluster_layout(c);
    const ModelWork w = model_work(c.model, c.data.seq_len, c.memory.recompute, l.sequence);
    const auto flops = [](const PassWork& p) { return p.gemm_flops + p.attention_flops; };
    const double unit = flops(w.forward);
    PipelineCosts costs{.forward = {}, .backward = {}, .send = 0};
    for (const LayerRange& r : l.split) {
        costs.forward.push_back(r.size() + (r.head ? flops(w.head_forward) / unit : 0));
        costs.backward.push_back(r.size() * (flops(w.backward) + flops(w.again)) / unit +
                                 (r.head ? flops(w.head_backward) / unit : 0));
    }
    return run_pipeline(l.schedule, pipeline_shape(c.parallel, l.micro_batches), costs);
}

StepForecast cluster_forecast(const Config& c, const Cluster& cluster) {
    const ClusterLayout l = cluster_layout(c);
    return simulate_step(model_work(c.model, c.data.seq_len, c.memory.recompute, l.sequence), l, cluster);
}

std::string stage_memory(const Config& c, double memory_gb) {
    std::string out = "memory of one rank, by pipeline stage, at its peak\n";
    out += print("  %5s %10s %10s %10s %10s %10s %10s %8s  %s\n", "stage", "peak", "parameters", "gradients", "optimizer",
               "saved", "other", "in flight", "layers");
    std::int64_t most = 0, largest = 0;
    for (const std::int64_t s : stages_to_show(c)) {
        const RankPlace place{.pp = s};
        const ModelUse use = training_use(c, place);
        const MemoryPlan plan = plan_model(c, use, place);
        const auto live = [&](Use of) { return plan.live_bytes(plan.peak_moment(), of); };
        const std::int64_t parameters = live(Use::parameter), gradients = live(Use::gradient),
                           optimizer = live(Use::optimizer), saved = live(Use::saved),
                           other = plan.peak_bytes() - parameters - gradients - optimizer - saved;
        out += print("  %5lld %10s %10s %10s %10s %10s %10s %8d  ", static_cast<long long>(s),
                   human_bytes(plan.peak_bytes()).c_str(), human_bytes(parameters).c_str(),
                   human_bytes(gradients).c_str(), human_bytes(optimizer).c_str(), human_bytes(saved).c_str(),
                   human_bytes(other).c_str(), use.slots) +
               blocks(shard_of(c, place)) + "\n";
        if (plan.peak_bytes() > most) most = plan.peak_bytes(), largest = s;
    }
    const RankPlace place{.pp = largest};
    const std::string table = concat("\nstage ", largest, ", ", plan_model(c, training_use(c, place), place).table());
    if (memory_gb <= 0) return out + table;
    const double share = static_cast<double>(most) / (memory_gb * 1e9);
    out += print("  the largest takes %.1f %% of a device's %.4g GB%s\n", 100 * share, memory_gb,
               share > 1 ? ": it does not fit; raise --parallel.tp or --parallel.pp, lower --train.micro_batch, or "
                           "choose a stronger --memory.recompute"
                         : "");
    return out + table;
}

}  // namespace keel
