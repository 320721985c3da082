// cli/bench.cpp: `keel bench`: this machine's ceilings, and how much of them the ops and whole steps of training reach.

#include <CLI/App.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "engine/bench/bench.h"
#include "engine/bench/data.h"
#include "engine/bench/parallel.h"
#include "engine/memory/plan.h"
#include "kernels/base/file.h"
#include "kernels/bf16_unit.h"
#include "kernels/gpu.h"
#include "kernels/matmul.h"

namespace keel {
namespace {

struct BenchOptions {
    std::vector<std::string> cases{"a", "b", "c"}, dtypes{"f32", "bf16"};
    int threads = 0;
    int rounds = 7;
    bool ops = false, lengths = false, json = false, parallel = false, data = false;
    std::string timeline, save, dir = ".", device = "cpu", bf16_by = "auto";
};

void print_json(const bench::Case& c, const bench::StepTime& t) {
    std::printf("{\"case\": \"%s\", \"dtype\": \"%s\", \"median_ms\": %.4f, \"best_ms\": %.4f, \"tokens_per_s\": %.1f, \"flops\": %.6g, "
                "\"matmul_flops_per_s\": %.6g, \"share_of_matmul\": %.5f, \"arena_bytes\": %lld}\n",
                c.name.c_str(), c.config.model.dtype.c_str(), 1e3 * t.seconds.median_s, 1e3 * t.seconds.best_s,
                t.tokens / t.seconds.median_s, t.flops, t.ceiling_median, t.flops / t.seconds.median_s / t.ceiling_median,
                static_cast<long long>(t.arena_bytes));
    std::fflush(stdout);
}

void print_step(const bench::Case& c, const bench::StepTime& t) {
    const double median = t.flops / t.seconds.median_s, best = t.flops / t.seconds.best_s;
    std::printf("%-7s %-5s %10.1f %10.1f %10.0f %10.1f %10.1f %8.1f %% %8.1f %%  %s\n", c.name.c_str(), c.config.model.dtype.c_str(),
                1e3 * t.seconds.median_s, 1e3 * t.seconds.best_s, t.tokens / t.seconds.median_s, median / 1e9,
                t.ceiling_median / 1e9, 100 * median / t.ceiling_median, 100 * best / t.ceiling_best,
                human_bytes(t.arena_bytes).c_str());
    std::fflush(stdout);
}

void print_ops(const bench::Case& c, const std::vector<bench::OpTime>& ops, const bench::Peaks& peaks) {
    double total = 0;
    for (const auto& op : ops) total += op.calls * op.seconds.median_s;
    std::printf("\nops of step %s %s, one at a time; the shares add up to 100 %%\n", c.name.c_str(), c.config.model.dtype.c_str());
    std::printf("  %-24s %7s %11s %8s %12s %12s\n", "op", "calls", "ms a step", "share", "% of matmul", "% of copy");
    for (const auto& op : ops) {
        const double seconds = op.seconds.median_s;
        std::printf("  %-24s %7.1f %11.3f %6.1f %%", op.name.c_str(), op.calls, 1e3 * op.calls * seconds, 100 * op.calls * seconds / total);
        if (op.flops > 0) std::printf(" %12.1f", 100 * op.flops / seconds / peaks.matmul(c.config.model.dtype));
        else std::printf(" %12s", "");
        if (op.bytes > 0) std::printf(" %12.1f", 100 * op.bytes / seconds / peaks.copy);
        std::printf("\n");
    }
    std::printf("  %-24s %7s %11.3f\n\n", "sum", "", 1e3 * total);
    std::fflush(stdout);
}

std::string volume(const std::map<std::string, Traffic>& sent) {
    std::string text;
    for (const auto& [group, t] : sent)
        if (t.total() > 0) text += (text.empty() ? "" : ", ") + group + " " + human_bytes(t.total());
    return text.empty() ? "nothing" : text;
}

bool same(const std::map<std::string, Traffic>& a, const std::map<std::string, Traffic>& b) {
    const auto total = [](const auto& map, const std::string& name) { return map.contains(name) ? map.at(name).total() : 0; };
    return std::ranges::all_of(a, [&](const auto& at) { return at.second.total() == total(b, at.first); }) &&
           std::ranges::all_of(b, [&](const auto& at) { return at.second.total() == total(a, at.first); });
}

void run_parallel(const BenchOptions& o) {
    const int threads = o.threads > 0 ? o.threads : available_cpus();
    std::printf("configuration b on ranks that are threads and share %d processors, in turns with one rank that has them all\n", threads);
    for (const auto& dtype : o.dtypes) {
        std::printf("%-5s %-8s %10s %10s %10s %9s %12s %12s  %s\n", "dtype", "layout", "median ms", "best ms", "tokens/s", "of 1 rank",
                    "hidden ms", "exposed ms", "rank 0 sends in a step");
        const auto times = bench::measure_parallel(dtype, threads, o.rounds);
        for (const auto& t : times) {
            const double tokens = static_cast<double>(t.c.config.train.global_batch * t.c.config.data.seq_len);
            std::printf("%-5s %-8s %10.1f %10.1f %10.0f %7.1f %% %12.2f %12.2f  %s%s\n", dtype.c_str(), t.c.name.c_str(),
                        1e3 * t.seconds.median_s, 1e3 * t.seconds.best_s, tokens / t.seconds.median_s,
                        100 * times[0].seconds.median_s / t.seconds.median_s, 1e3 * t.hidden_s, 1e3 * t.exposed_s,
                        volume(t.sent).c_str(), same(t.sent, t.formula) ? ", as the formula" : (", but the formula says " + volume(t.formula)).c_str());
            if (!o.timeline.empty()) {
                std::string name = dtype + " " + t.c.name + ".svg";
                std::ranges::replace(name, ' ', '-');
                std::filesystem::create_directories(o.timeline);
                write_file_atomically(std::filesystem::path(o.timeline) / name, t.timeline);
            }
        }
    }
    if (!o.timeline.empty()) std::printf("timelines of the last steps: %s\n", o.timeline.c_str());
}

void run_save(const BenchOptions& o) {
    constexpr double between = 100;  // steps between checkpoints, for the share
    Stream stream(o.threads);
    std::printf("checkpoints behind the training (--ckpt.async true), written to %s; %d threads\n", o.save.c_str(), stream.threads());
    std::printf("%-7s %-5s %12s %10s %12s %10s %12s  %s\n", "case", "dtype", "state", "step ms", "snapshot ms", "write ms", "costs ms",
                "of 100 steps");
    for (const auto& dtype : o.dtypes)
        for (const auto& name : o.cases) {
            const bench::SaveCost t = bench::measure_save(stream, bench::standard_case(name, dtype), o.save, o.rounds);
            std::printf("%-7s %-5s %12s %10.1f %12.1f %10.1f %12.1f  %.2f %%\n", name.c_str(), dtype.c_str(),
                        human_bytes(t.bytes).c_str(), 1e3 * t.step_s, 1e3 * t.stall_s, 1e3 * t.write_s, 1e3 * t.extra_s,
                        100 * t.extra_s / (between * t.step_s));
            std::fflush(stdout);
        }
}

void run_data(const BenchOptions& o) {
    const auto rows = bench::measure_data(o.dir, o.threads, o.rounds);
    const auto rate = [](const bench::DataTime& row) { return row.bytes / row.seconds.median_s; };
    if (!o.json)
        std::printf("made text, a tokenizer of 8192 ids, a model of 20 million parameters, files in %s; all in turns\n%-26s %10s %10s %10s %10s\n",
                    o.dir.c_str(), "what", "median ms", "best ms", "MB/s", "of bound");
    for (const auto& row : rows) {
        const auto bound = std::ranges::find(rows, row.bound, &bench::DataTime::name);
        const double share = bound == rows.end() ? 1 : rate(row) / rate(*bound);
        if (o.json)
            std::printf("{\"what\": \"%s\", \"bytes\": %.0f, \"median_ms\": %.4f, \"best_ms\": %.4f, \"bytes_per_s\": %.6g, "
                        "\"bound\": \"%s\", \"share_of_bound\": %.5f}\n",
                        row.name.c_str(), row.bytes, 1e3 * row.seconds.median_s, 1e3 * row.seconds.best_s, rate(row), row.bound.c_str(), share);
        else if (row.bound.empty())
            std::printf("%-26s %10.1f %10.1f %10.1f\n", row.name.c_str(), 1e3 * row.seconds.median_s, 1e3 * row.seconds.best_s, rate(row) / 1e6);
        else
            std::printf("%-26s %10.1f %10.1f %10.1f %8.1f %%  %s\n", row.name.c_str(), 1e3 * row.seconds.median_s, 1e3 * row.seconds.best_s,
                        rate(row) / 1e6, 100 * share, row.bound.c_str());
    }
}

void run_bench(const BenchOptions& o) {
    const auto unit = bf16_unit_of(o.bf16_by);
    if (!unit) fail_usage("--bf16-by ", o.bf16_by, ": it may be auto, tiles, dots or floats, and this processor or build has no other");
    use_bf16_unit(*unit);
    for (const auto& dtype : o.dtypes)
        if (dtype != "f32" && dtype != "bf16" && dtype != "f16")
            fail_usage("--dtype is \"" + dtype + "\"; it can be f32, bf16 or f16");
    if (o.rounds < 1) fail_usage("--rounds is ", o.rounds, "; give a positive number");
    for (const auto& name : o.cases) bench::standard_case(name, "f32");
    if (!o.timeline.empty() && !o.parallel) fail_usage("--timeline ", o.timeline, " shows steps of --parallel; give that too");
    if (o.parallel) return run_parallel(o);
    if (o.data) return run_data(o);
    if (!o.save.empty()) return run_save(o);
    const Device device = o.device == "cuda" ? Device::cuda : Device::cpu;
    if (device == Device::cpu && o.device != "cpu")
        fail_usage("--device is \"", o.device, "\"; it can be cpu or cuda: the seconds of a simulated GPU mean nothing");
    if (const auto why = device == Device::cpu ? std::nullopt : why_no_gpu(device)) fail_usage("--device cuda: ", *why, "; leave it out to measure the CPU");
    Stream stream(o.threads);
    const auto gpu = device == Device::cpu ? nullptr : open_gpu(device);
    const auto queue = gpu ? gpu->make_stream() : nullptr;
    const Backend backend = gpu ? Backend(*gpu, *queue, stream) : Backend(stream);
    if (gpu && o.ops) fail_usage("--ops measures the ops of the CPU; leave it out with --device cuda");
    const bench::Peaks peaks = bench::measure_peaks(backend);
    if (o.json) {
        for (const auto& dtype : o.dtypes)
            for (const auto& name : o.cases) {
                const bench::Case c = bench::standard_case(name, dtype);
                print_json(c, bench::measure_step(backend, c, peaks, o.rounds));
            }
        return;
    }
    if (gpu) {
        std::printf("%s; %s\n", gpu->describe().c_str(), gpu->libraries().c_str());
        std::printf("matmul f32 peak   %8.1f GFLOP/s   best of n = 2048, 4096, 8192\n", peaks.matmul("f32") / 1e9);
    } else {
        std::printf("%d threads; matmul by %s (f32), %s (bf16), %s (f16)\n", stream.threads(), matmul_isa<float>(), matmul_isa<bf16>(),
                    matmul_isa<f16>());
        std::printf("fma f32 peak      %8.1f GFLOP/s   registers only\n", peaks.fma_f32 / 1e9);
        std::printf("matmul f32 peak   %8.1f GFLOP/s   best of n = 512, 1024, 1536; %.1f %% of fma\n", peaks.matmul("f32") / 1e9,
                    100 * peaks.matmul("f32") / peaks.fma_f32);
    }
    for (const char* dtype : {"bf16", "f16"})
        if (peaks.matmul(dtype) > 0) std::printf("matmul %-4s peak  %8.1f GFLOP/s\n", dtype, peaks.matmul(dtype) / 1e9);
    std::printf("copy peak         %8.1f GB/s      read plus written, 256 MiB\n\n", peaks.copy / 1e9);
    std::printf("whole steps: forward, backward, norm, AdamW; useful FLOPs only (causal half of attention, no recompute)\n");
    std::printf("each in turns with the machine's best matmul, so that both meet the same neighbours\n");
    std::printf("%-7s %-5s %10s %10s %10s %10s %10s %10s %10s  %s\n", "case", "dtype", "median ms", "best ms", "tokens/s", "GFLOP/s",
                "matmul", "of matmul", "best", "arena");
    for (const auto& dtype : o.dtypes)
        for (const auto& name : o.cases) {
            const bench::Case c = bench::standard_case(name, dtype);
            print_step(c, bench::measure_step(backend, c, peaks, o.rounds));
        }
    if (o.lengths)
        for (const auto& dtype : o.dtypes)
            for (const std::int64_t seq_len : {256, 512, 1024, 2048, 4096}) {
                const bench::Case c = bench::length_case(seq_len, dtype);
                const bench::StepTime t = bench::measure_step(backend, c, peaks, std::min(o.rounds, 3));
                print_step(c, t);
                std::printf("        attention is %.1f %% of the FLOPs\n", 100 * t.attention_flops / t.flops);
            }
    if (o.ops)
        for (const auto& dtype : o.dtypes)
            for (const auto& name : o.cases) {
                const bench::Case c = bench::standard_case(name, dtype);
                print_ops(c, bench::measure_ops(stream, c, o.rounds), peaks);
            }
}

}  // namespace

void add_bench(CLI::App& app) {
    CLI::App* command = app.add_subcommand("bench", "measure this machine's ceilings and how much of them training reaches");
    auto o = std::make_shared<BenchOptions>();
    command->add_option("--case", o->cases, "whole steps to measure: a (d=288, T=256), b (d=512, T=512), c (d=768, T=1024)")->capture_default_str();
    command->add_option("--dtype", o->dtypes, "f32, bf16 or f16, or several of them")->capture_default_str();
    command->add_option("--device", o->device, "cpu, or cuda: ceilings and whole steps of the first GPU")->capture_default_str();
    command->add_option("--threads", o->threads, "threads that compute; 0 takes every processor");
    command->add_option("--bf16-by", o->bf16_by, "what multiplies bf16: tiles, dots or floats; auto is the fastest here")->capture_default_str();
    command->add_option("--rounds", o->rounds, "how often each is measured; the median is shown, and the best")->capture_default_str();
    command->add_flag("--ops", o->ops, "also every op of each step, one at a time");
    command->add_flag("--lengths", o->lengths, "also steps of 4096 tokens with T = 256 … 4096");
    command->add_flag("--json", o->json, "one JSON object per whole step (with --data per row), nothing else");
    command->add_flag("--parallel", o->parallel, "instead: configuration b on two ranks by data, tensor, context and pipeline parallelism");
    command->add_option("--timeline", o->timeline, "folder for a picture of each layout's last step: what is hidden behind what");
    command->add_flag("--data", o->data, "instead: tokenizing, loading and model folders, beside the disk and one core's copy");
    command->add_option("--dir", o->dir, "folder on the disk that --data measures; what is written there is removed again")->capture_default_str();
    command->add_option("--save", o->save, "instead: what a checkpoint costs that is written to this folder behind the training");
    command->callback([o] { run_bench(*o); });
}

}  // namespace keel
