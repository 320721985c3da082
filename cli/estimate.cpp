// cli/estimate.cpp: `keel estimate`: what a configuration needs and costs, without allocating any of it. The memory
// plan is made by the code that a run uses, so the two agree to the byte.

#include <CLI/App.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/config_flags.h"
#include "data/tokenizer.h"
#include "engine/config_check.h"
#include "engine/model/model.h"
#include "engine/model_shape.h"
#include "engine/observe/flops.h"
#include "engine/observe/log_line.h"
#include "engine/parallel/forecast.h"
#include "engine/parallel/layout.h"
#include "engine/parallel/schedule_picture.h"
#include "engine/presets.h"
#include "kernels/base/file.h"

namespace keel {
namespace {

// 6 738 415 616, as a person reads it.
std::string grouped(std::int64_t n) {
    const std::string digits = std::to_string(n);
    std::string out;
    for (std::size_t i = 0; i < digits.size(); ++i) {
        if (i > 0 && (digits.size() - i) % 3 == 0) out += ' ';
        out += digits[i];
    }
    return out;
}

void print_presets() {
    std::printf("%-16s %14s %7s %7s %6s %8s %4s %6s  %s\n", "preset", "parameters", "vocab", "hidden", "layers",
                "heads/kv", "dim", "ffn", "about");
    for (const Preset& p : presets())
        std::printf("%-16s %14s %7lld %7lld %6lld %8s %4lld %6lld  %s\n", std::string(p.name).c_str(),
                    grouped(p.parameters).c_str(), static_cast<long long>(p.vocab), static_cast<long long>(p.hidden),
                    static_cast<long long>(p.layers), concat(p.heads, "/", p.kv_heads).c_str(),
                    static_cast<long long>(p.head_dim), static_cast<long long>(p.ffn), std::string(p.about).c_str());
}

void print_count(const char* what, std::int64_t count, std::int64_t total) {
    std::printf("  %-10s %16s  %5.1f %%\n", what, grouped(count).c_str(),
                100 * static_cast<double>(count) / static_cast<double>(total));
}

struct EstimateOptions {
    bool presets = false;
    std::optional<std::string> schedule;  // "text", or a file.svg
    std::string cluster;
};

// What an estimate does not need may be left out.
Config estimated(Config config, const std::optional<Cluster>& cluster) {
    if (config.model.vocab == 0 && !config.data.tokenizer.empty())
        config.model.vocab = Tokenizer::load(config.data.tokenizer).vocab_size();
    resolve_model(config.model);
    if (config.model.vocab == 0)
        fail_usage("--model.vocab is missing: give it, a --data.tokenizer to take it from, or a --model.preset");
    if (config.data.train.empty()) config.data.train = {"any.tok"};
    if (config.run.dir.empty()) config.run.dir = "any";
    if (cluster) resolve_mesh(config.parallel, cluster->gpus);
    if (config.train.global_batch == 0 && config.train.batch_schedule.empty()) {  // the smallest batch that gives every replica and stage something to do
        config.train.micro_batch = std::max<std::int64_t>(config.train.micro_batch, 1);
        config.train.global_batch =
            config.train.micro_batch * replicas(config.parallel) * config.parallel.pp;
    }
    resolve_batch(config);
    if (config.train.steps == 0 && config.train.samples == 0) config.train.samples = config.train.global_batch;
    resolve_and_validate(config);
    return config;
}

// The picture of the schedule that the parallel settings make: on the terminal, or as a file.
void draw_schedule(const Config& config, const std::string& where) {
    const PipelineRun run = schedule_forecast(config);
    const std::string unit = "block forwards by FLOPs";
    if (where == "text") {
        std::printf("%s", schedule_text(run, unit).c_str());
        return;
    }
    if (!where.ends_with(".svg"))
        fail_usage("--schedule ", where, ": give text, or the name of a file that ends in .svg");
    write_file_atomically(where, schedule_svg(run, unit));
    std::printf("%s\nwritten to %s\n", schedule_caption(run, unit).c_str(), where.c_str());
}

void run_estimate(Config asked, const EstimateOptions& options) {
    const bool has_length = asked.train.steps > 0 || asked.train.samples > 0;
    std::optional<Cluster> cluster;
    if (!options.cluster.empty()) cluster = parse_cluster(options.cluster);
    const Config config = estimated(std::move(asked), cluster);
    if (options.schedule) {
        draw_schedule(config, *options.schedule);
        if (!cluster) return;
        std::printf("\n");
    }
    const std::int64_t seq_len = config.data.seq_len;

    const ParameterCount count = parameter_count(config.model);
    std::printf("parameters   %16s\n", grouped(count.total()).c_str());
    print_count("embedding", count.embedding, count.total());
    print_count("attention", count.attention, count.total());
    print_count("ffn", count.ffn, count.total());
    print_count("norms", count.norms, count.total());
    if (config.model.tied) std::printf("  %-10s %16s\n", "head", "is the embedding");
    else print_count("head", count.head, count.total());

    const Flops flops(config.model);
    const double token = flops.at_length(seq_len), attention = flops.per_square * static_cast<double>(seq_len);
    std::printf("\nFLOPs per token, forward and backward: %.4g (%s, causal attention over %lld tokens is %.1f %%)\n",
                token, "no recompute", static_cast<long long>(seq_len), 100 * attention / token);
    const double step_tokens = static_cast<double>(config.train.global_batch) * static_cast<double>(seq_len);
    std::printf("FLOPs per step: %.4g (%lld samples of %lld tokens)\n", token * step_tokens,
                static_cast<long long>(config.train.global_batch), static_cast<long long>(seq_len));
    if (has_length) {
        const double tokens = static_cast<double>(config.train.samples) * static_cast<double>(seq_len);
        std::printf("the run: %lld steps, %.4g tokens, %.4g FLOPs, %s at 1 TFLOP/s\n",
                    static_cast<long long>(config.train.steps), tokens, token * tokens,
                    duration_text(token * tokens / 1e12).text);
    }
    if (!cluster && ranks_asked(config.parallel) == 1) {
        std::printf("\n%s", plan_model(config, training_use(config)).table().c_str());
        return;
    }
    std::printf("\n");
    if (cluster)
        std::printf("%s\n",
                    forecast_text(cluster_forecast(config, *cluster), cluster_layout(config), *cluster).c_str());
    std::printf("%s", stage_memory(config, cluster ? cluster->memory_gb : 0).c_str());
}

}  // namespace

void add_estimate(CLI::App& app) {
    CLI::App* command =
        app.add_subcommand("estimate", "show parameters, FLOPs and memory plan of a run, allocating nothing");
    auto flags = std::make_shared<ConfigFlags>(*command);
    auto options = std::make_shared<EstimateOptions>();
    command->add_flag("--presets", options->presets, "list the shapes that --model.preset knows");
    command->add_option("--schedule", options->schedule, "draw the pipeline schedule: as text, or into a file.svg")
        ->expected(0, 1)
        ->default_str("text")
        ->type_name("text|FILE.svg");
    command
        ->add_option("--cluster", options->cluster,
                     "predict a step on gpus=N,device=a100|h100|h200; per_node, tflops, memory (GB), hbm, nvlink, ib "
                     "(GB/s), "
                     "gemm and attention (shares of tflops) change the device")
        ->type_name("gpus=N,...");
    command->callback([flags, options] {
        if (options->presets) print_presets();
        else run_estimate(flags->read(), *options);
    });
}

}  // namespace keel
