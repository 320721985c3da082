// cli/estimate.cpp: `keel estimate`: what a configuration needs and costs, without allocating any of it. The memory plan is
// made by the code that a run uses, so the two agree to the byte.

#include <CLI/App.hpp>
#include <cstdio>
#include <memory>

#include "cli/commands.h"
#include "cli/config_flags.h"
#include "data/tokenizer.h"
#include "engine/config_check.h"
#include "engine/model/model.h"
#include "engine/model_shape.h"
#include "engine/observe/flops.h"
#include "engine/observe/log_line.h"
#include "engine/presets.h"

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
    std::printf("%-16s %14s %7s %7s %6s %8s %4s %6s  %s\n", "preset", "parameters", "vocab", "hidden", "layers", "heads/kv",
                "dim", "ffn", "about");
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

// What an estimate does not need may be left out.
Config estimated(Config config) {
    if (config.model.vocab == 0 && !config.data.tokenizer.empty())
        config.model.vocab = Tokenizer::load(config.data.tokenizer).vocab_size();
    resolve_model(config.model);
    if (config.model.vocab == 0)
        fail_usage("--model.vocab is missing: give it, a --data.tokenizer to take it from, or a --model.preset");
    if (config.data.train.empty()) config.data.train = {"any.tok"};
    if (config.run.dir.empty()) config.run.dir = "any";
    if (config.train.global_batch == 0 && config.train.micro_batch == 0) config.train.micro_batch = 1;
    resolve_batch(config.train);
    if (config.train.steps == 0 && config.train.samples == 0) config.train.samples = config.train.global_batch;
    resolve_and_validate(config);
    return config;
}

void run_estimate(Config asked) {
    const bool has_length = asked.train.steps > 0 || asked.train.samples > 0;
    const Config config = estimated(std::move(asked));
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
    std::printf("\nFLOPs per token, forward and backward: %.4g (%s, causal attention over %lld tokens is %.1f %%)\n", token,
                "no recompute", static_cast<long long>(seq_len), 100 * attention / token);
    const double step_tokens = static_cast<double>(config.train.global_batch) * static_cast<double>(seq_len);
    std::printf("FLOPs per step: %.4g (%lld samples of %lld tokens)\n", token * step_tokens,
                static_cast<long long>(config.train.global_batch), static_cast<long long>(seq_len));
    if (has_length) {
        const double tokens = static_cast<double>(config.train.samples) * static_cast<double>(seq_len);
        std::printf("the run: %lld steps, %.4g tokens, %.4g FLOPs, %s at 1 TFLOP/s\n",
                    static_cast<long long>(config.train.steps), tokens, token * tokens,
                    duration_text(token * tokens / 1e12).text);
    }
    std::printf("\n%s", plan_model(config, training_use(config)).table().c_str());
}

}  // namespace

void add_estimate(CLI::App& app) {
    CLI::App* command = app.add_subcommand("estimate", "show parameters, FLOPs and memory plan of a run, allocating nothing");
    auto flags = std::make_shared<ConfigFlags>(*command);
    auto list = std::make_shared<bool>(false);
    command->add_flag("--presets", *list, "list the shapes that --model.preset knows");
    command->callback([flags, list] {
        if (*list) print_presets();
        else run_estimate(flags->read());
    });
}

}  // namespace keel
