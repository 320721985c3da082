#include "engine/parallel/simulate.h"

#include <algorithm>
#include <cmath>

#include "engine/observe/print.h"
#include "kernels/base/error.h"

namespace keel {
namespace {

// Seconds of one action of one virtual stage.
struct Parts {
    double gemm = 0, attention = 0, memory = 0, tp = 0, cp = 0;
    double sum() const { return gemm + attention + memory + tp + cp; }
    void add(const Parts& o, double times) {
        gemm += times * o.gemm, attention += times * o.attention, memory += times * o.memory, tp += times * o.tp,
            cp += times * o.cp;
    }
};

struct CostTable {
    const ModelWork& work;
    const ClusterLayout& l;
    const Cluster& c;
    double tp = static_cast<double>(l.tp), cp = static_cast<double>(l.cp);
    double tokens = static_cast<double>(l.micro_batch * l.seq_len) / cp;  // of a micro-batch, on one rank

    Parts seconds(const PassWork& w) const {
        Parts p;
        p.gemm = std::max(w.gemm_flops * tokens / tp / c.matmul(), w.weight_bytes / tp / c.memory());
        p.attention = w.attention_flops * tokens / tp / (c.peak() * c.attention);
        p.memory = (w.split_bytes / tp + w.row_bytes / (l.sequence ? tp : 1)) * tokens / c.memory();
        p.tp = tp_seconds(w.tp_passes);
        if (l.cp > 1) p.cp = w.cp_passes * (tokens * work.kv_bytes / tp * (cp - 1) / c.wire(l.tp, l.cp) + c.latency_s);
        return p;
    }
    double tp_seconds(double passes) const {
        if (l.tp == 1) return 0;
        return passes * (tokens * work.hidden_bytes * (tp - 1) / tp / c.wire(1, l.tp) + c.latency_s);
    }
    Parts stage(const LayerRange& range, bool forward) const {
        Parts p;
        p.add(seconds(forward ? work.forward : work.backward), range.size());
        if (!forward) p.add(seconds(work.again), range.size());
        if (range.head) p.add(seconds(forward ? work.head_forward : work.head_backward), 1);
        return p;
    }
    double send_seconds() const {
        if (l.pp == 1) return 0;
        const double bytes = tokens * work.hidden_bytes / (l.sequence || l.scattered_sends ? tp : 1);
        const double gather = l.scattered_sends ? tp_seconds(1) : 0;
        return bytes / c.wire(l.tp * l.cp * l.dp, l.pp) + c.latency_s + gather;
    }
    double parameters(const LayerRange& range) const {
        double n = range.size() * work.block_parameters;
        if (range.embedding) n += work.embedding_parameters;
        if (range.head && !(work.tied && range.embedding))
            n += work.tied ? work.embedding_parameters : work.head_parameters;
        return n / tp;
    }
};

// What follows a rank's last backward.
struct Ending {
    double reduce, gather, optimizer;  // seconds, nothing hidden
    double hidden_reduce, hidden_gather;
    double after() const { return reduce - hidden_reduce + optimizer + gather - hidden_gather; }
};

Ending ending(const CostTable& table, double parameters, double first_forward_s, double last_backward_s) {
    const ClusterLayout& l = table.l;
    const auto ranks = static_cast<double>(l.dp * l.cp);
    Ending e{};
    e.optimizer = parameters / (l.sharded ? ranks : 1) * table.work.optimizer_bytes / table.c.memory();
    if (ranks == 1) return e;
    const double wire = table.c.wire(l.tp, l.dp * l.cp), share = (ranks - 1) / ranks;
    const double buckets = l.bucket > 0 ? std::max(1.0, std::ceil(parameters / l.bucket)) : 1;
    e.reduce = parameters * table.work.grad_bytes * share * (l.sharded ? 1 : 2) / wire + buckets * table.c.latency_s;
    e.gather = l.sharded ? parameters * table.work.param_bytes * share / wire + buckets * table.c.latency_s : 0;
    if (!l.overlap) return e;
    // The last bucket is complete only when backward is; forward cannot start without the first layers' parameters.
    e.hidden_reduce = std::min(e.reduce * (buckets - 1) / buckets, last_backward_s);
    e.hidden_gather = std::min(e.gather * (buckets - 1) / buckets, first_forward_s);
    return e;
}

void check_layout(const ModelWork& work, const ClusterLayout& l, const Cluster& c) {
    if (l.tp * l.cp * l.dp * l.pp != c.gpus)
        fail_usage("--cluster has gpus=", c.gpus, ", but tp ", l.tp, " x cp ", l.cp, " x dp ", l.dp, " x pp ", l.pp,
                   " needs ", l.tp * l.cp * l.dp * l.pp);
    if (l.split.size() != static_cast<std::size_t>(l.pp * l.chunks) || l.split.back().end != work.layers)
        fail("simulator: ", l.split.size(), " ranges of layers for ", l.pp * l.chunks, " virtual stages of ",
             work.layers, " layers");
}

}  // namespace

StepForecast simulate_step(const ModelWork& work, const ClusterLayout& l, const Cluster& cluster) {
    check_layout(work, l, cluster);
    const CostTable table{work, l, cluster};
    const PipelineShape shape{.stages = static_cast<int>(l.pp), .chunks = static_cast<int>(l.chunks),
                              .micro_batches = static_cast<int>(l.micro_batches), .group = static_cast<int>(l.group)};
    PipelineCosts costs{.forward = {}, .backward = {}, .send = 0};
    const auto stages = static_cast<std::size_t>(l.pp);
    std::vector<Parts> per_micro_batch(stages);
    std::vector<double> first_forward(stages), last_backward(stages), parameters(stages);
    for (std::size_t i = 0; i < l.split.size(); ++i) {
        const Parts f = table.stage(l.split[i], true), b = table.stage(l.split[i], false);
        costs.forward.push_back(f.sum());
        costs.backward.push_back(b.sum());
        const std::size_t r = i % stages;
        per_micro_batch[r].add(f, 1);
        per_micro_batch[r].add(b, 1);
        first_forward[r] += f.sum();
        last_backward[r] += b.sum();
        parameters[r] += table.parameters(l.split[i]);
    }
    StepForecast out;
    out.bubble = run_pipeline(l.schedule, shape, costs).bubble_fraction();
    costs.send = table.send_seconds();
    if (l.blocking_sends) {  // the transfer takes the sender's time instead
        for (auto* list : {&costs.forward, &costs.backward})
            for (double& seconds : *list) seconds += costs.send;
        costs.send = 0;
    }
    out.run = run_pipeline(l.schedule, shape, costs);

    std::vector<Ending> endings;
    for (std::size_t r = 0; r < stages; ++r) {
        endings.push_back(ending(table, parameters[r], first_forward[r], last_backward[r]));
        out.rank_s.push_back(out.run.ranks[r].back().end + endings.back().after());
    }
    out.step_s = *std::max_element(out.rank_s.begin(), out.rank_s.end());
    for (std::size_t r = 0; r < stages; ++r) {
        const double share = 1 / static_cast<double>(stages), times = share * static_cast<double>(l.micro_batches);
        const Ending& e = endings[r];
        StepTimes& t = out.times;
        t.gemm += times * per_micro_batch[r].gemm;
        t.attention += times * per_micro_batch[r].attention;
        t.memory += times * per_micro_batch[r].memory;
        t.tp += times * per_micro_batch[r].tp;
        t.cp += times * per_micro_batch[r].cp;
        t.optimizer += share * e.optimizer;
        t.dp += share * (e.after() - e.optimizer);
        t.idle += share * (out.step_s - e.after()) - times * per_micro_batch[r].sum();
        out.dp_hidden_s += share * (e.hidden_reduce + e.hidden_gather);
    }
    const double tokens = static_cast<double>(l.micro_batch * l.micro_batches * l.dp * l.seq_len);
    out.tokens_per_s = tokens / out.step_s;
    out.mfu = work.useful_flops * tokens / (out.step_s * cluster.peak() * static_cast<double>(cluster.gpus));
    return out;
}

std::string forecast_text(const StepForecast& f, const ClusterLayout& l, const Cluster& c) {
    std::string out;
    const auto line = [&](const char* format, auto... values) { out += print(format, values...); };
    const auto whole = [](std::int64_t n) { return static_cast<long long>(n); };
    line(
        "cluster      %lld x %s (%.4g TFLOP/s, %.4g GB at %.4g GB/s), %lld per node, NVLink %.4g GB/s, between nodes "
        "%.4g GB/s per device\n",
        whole(c.gpus), c.device.c_str(), c.tflops, c.memory_gb, c.hbm_gb, whole(c.per_node), c.nvlink_gb, c.ib_gb);
    line("layout       tp %lld%s, cp %lld, dp %lld, pp %lld", whole(l.tp),
         l.tp > 1 && l.sequence ? " with sequence" : "", whole(l.cp), whole(l.dp), whole(l.pp));
    if (l.chunks > 1) line(" in %lld chunks", whole(l.chunks));
    line(" (%s), %lld micro-batch%s of %lld x %lld tokens per replica\n", name(l.schedule), whole(l.micro_batches),
         l.micro_batches == 1 ? "" : "es", whole(l.micro_batch), whole(l.seq_len));
    line("step         %.4g s, mean over ranks:\n", f.step_s);
    const auto part = [&](const char* what, double seconds, const std::string& note) {
        line("  %-11s %9.4g s %6.1f %%  %s\n", what, seconds, 100 * seconds / f.step_s, note.c_str());
    };
    part("products", f.times.gemm, concat("at ", 100 * c.gemm, " % of peak"));
    part("attention", f.times.attention, concat("at ", 100 * c.attention, " % of peak"));
    part("memory", f.times.memory, "kernels that only move data");
    if (l.tp > 1) part("tp", f.times.tp, "collectives inside of blocks, not hidden");
    if (l.cp > 1) part("cp", f.times.cp, "keys, values and their gradients, not hidden");
    if (l.pp > 1)
        part("idle", f.times.idle,
             concat("waiting for other stages; the schedule's own bubble is ", std::round(1000 * f.bubble) / 10,
                    " % of the busiest rank's work"));
    if (l.dp * l.cp > 1)
        part("dp", f.times.dp,
             concat("gradients and parameters, not hidden; hidden ", std::round(1e4 * f.dp_hidden_s) / 1e4, " s"));
    part("optimizer", f.times.optimizer, l.sharded ? "sharded over dp x cp" : "on every replica");
    line("tokens/s     %.4g, %.4g per device\n", f.tokens_per_s, f.tokens_per_s / static_cast<double>(c.gpus));
    line("MFU          %.1f %% = useful FLOPs of a step / (%.4g s x %lld devices x %.4g TFLOP/s)\n", 100 * f.mfu,
         f.step_s, whole(c.gpus), c.tflops);
    return out;
}

}  // namespace keel
