// cli/generate.cpp: `keel generate`: a trained model continues a prompt.

#include <CLI/App.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>

#include "ckpt/generation_config.h"
#include "cli/commands.h"
#include "engine/generate.h"
#include "engine/open_model.h"
#include "kernels/base/stream.h"

namespace keel {
namespace {

struct GenerateOptions {
    std::string model, prompt;
    Sampling sampling;
    std::int64_t context = 0;
    int threads = 0;
};

void run_generate(const GenerateOptions& o) {
    check_sampling(o.sampling);
    if (o.context < 0) fail_usage("--context is ", o.context, "; give a positive number, or 0 for the model's own");
    const ModelSource source = open_model(o.model);
    if (!source.tokenizer)
        fail(source.description + " has no tokenizer; put its files beside the weights, so that text can be read and written");
    if (source.tokenizer->vocab_size() > source.config.model.vocab)
        fail(source.description + " has ", source.config.model.vocab, " rows, but its tokenizer has ids up to ",
             source.tokenizer->vocab_size() - 1, "; they do not belong together");
    Sampling sampling = o.sampling;
    sampling.ending_ids = ending_ids(source.path, source.config.model.vocab);
    const std::int64_t own = source.config.data.seq_len > 0 ? source.config.data.seq_len : 2048;
    const std::int64_t context = o.context > 0 ? o.context : own;
    Stream stream(o.threads);
    const auto model = make_model(source.config, stream, {.tokens = 1, .positions = 1, .head_chunk = 1, .training = false});
    load_params(source, *model);
    const auto decoder = make_decoder(source.config, stream, *model, context);
    std::fputs(o.prompt.c_str(), stdout);
    std::fflush(stdout);
    generate(*decoder, *source.tokenizer, o.prompt, sampling, [](const std::string& piece) {
        std::fputs(piece.c_str(), stdout);
        std::fflush(stdout);
    });
    std::fputc('\n', stdout);
}

}  // namespace

void add_generate(CLI::App& app) {
    CLI::App* command = app.add_subcommand("generate", "let a trained model continue a prompt");
    auto o = std::make_shared<GenerateOptions>();
    command->add_option("model", o->model, "a run (its newest checkpoint), a checkpoint, or a model folder")->required();
    command->add_option("--prompt", o->prompt, "text to continue; empty begins a new document");
    command->add_option("--temperature", o->sampling.temperature, "spread of the choices; 0 always takes the likeliest token")->capture_default_str();
    command->add_option("--top-k", o->sampling.top_k, "choose among the k likeliest tokens only; 0 is all")->capture_default_str();
    command->add_option("--top-p", o->sampling.top_p, "choose among the fewest likeliest tokens that together reach this probability")->capture_default_str();
    command->add_option("--seed", o->sampling.seed, "fixes every choice: same seed, same text")->capture_default_str();
    command->add_option("--max-tokens", o->sampling.max_tokens, "stop after this many tokens")->capture_default_str();
    command->add_option("--context", o->context, "tokens of context to hold; 0 takes what the model was trained with");
    command->add_option("--threads", o->threads, "threads that compute; 0 takes every processor");
    command->callback([o] { run_generate(*o); });
}

}  // namespace keel
