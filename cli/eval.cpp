// cli/eval.cpp: `keel eval`: loss, perplexity and bits per byte of a model on token files.

#include <CLI/App.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/progress_bar.h"
#include "data/dataset.h"
#include "engine/data_spec.h"
#include "engine/evaluate.h"
#include "engine/observe/json_line.h"
#include "engine/observe/log_line.h"
#include "engine/open_model.h"
#include "kernels/base/stream.h"

namespace keel {
namespace {

struct EvalOptions {
    std::string model;
    std::vector<std::string> data;
    std::int64_t seq_len = 0, micro_batch = 8, samples = 0;
    int threads = 0;
    bool json = false;
};

void run_eval(const EvalOptions& o) {
    if (o.seq_len < 0) fail_usage("--seq-len is ", o.seq_len, "; give a positive number, or 0 for the model's own");
    const ModelSource source = open_model(o.model);
    Config config = source.config;
    if (o.seq_len > 0) config.data.seq_len = o.seq_len;
    if (config.data.seq_len <= 0) fail_usage("--seq-len is not given, and a model folder does not say with how many tokens to evaluate");
    if (o.micro_batch < 1) fail_usage("--micro-batch is ", o.micro_batch, "; give a positive number");
    if (o.samples < 0) fail_usage("--samples is ", o.samples, "; give a positive number, or 0 for all");
    DatasetSpec spec = dataset_spec(config, source.tokenizer, o.data, Part::train, false);
    spec.split = {1, 0, 0};
    spec.pack = spec.megatron_order = false;
    if (spec.declared.vocab_size == 0) spec.declared.vocab_size = config.model.vocab;  // of files that do not say
    const Dataset data(spec);
    if (source.tokenizer_hash != 0)
        data.check_tokenizer(source.tokenizer_hash, "the tokenizer of " + source.description);
    if (data.vocab_size() > config.model.vocab)
        fail(o.data.front() + " was written for a vocabulary of ", data.vocab_size(), ", but ", source.description, " has ",
             config.model.vocab, " rows; evaluate with token files of the model's own tokenizer");

    const std::int64_t all = data.samples_per_epoch(), samples = o.samples > 0 ? std::min(o.samples, all) : all;
    const std::int64_t micro_batch = std::min(o.micro_batch, samples), tokens = micro_batch * config.data.seq_len;
    Stream stream(o.threads);
    const auto model = make_model(config, stream, {.tokens = tokens, .positions = config.data.seq_len,
                                                   .head_chunk = head_chunk(0, tokens, config.model.vocab),
                                                   .training = false});
    load_params(source, *model);
    Loader loader(data, {.max_count = micro_batch, .window = config.model.window,
                         .reset_at_document = config.data.reset_at_document});
    std::vector<std::int32_t> bytes;
    if (source.tokenizer) bytes = token_bytes(*source.tokenizer, config.model.vocab);
    ProgressBar bar("evaluating", samples, "samples");
    const EvalResult r = evaluate_loss(*model, loader, samples, micro_batch, bytes, [&](std::int64_t done) { bar.update(done); });
    bar.finish();
    const double rate = static_cast<double>(samples * config.data.seq_len) / r.seconds;
    if (o.json) {
        JsonLine line("eval");
        line.text("model", source.path.string()).number("loss", r.loss.mean()).number("perplexity", r.perplexity());
        if (r.bytes > 0) line.number("bits_per_byte", r.bits_per_byte());
        line.count("targets", r.loss.count).count("bytes", r.bytes).number("tokens_per_second", rate);
        std::fputs(line.finish(), stdout);
        return;
    }
    std::printf("%s on %lld samples of %lld tokens\n", source.description.c_str(), static_cast<long long>(samples),
                static_cast<long long>(config.data.seq_len));
    std::printf("loss %s   perplexity %s", number_text("%.4f", r.loss.mean()).text, number_text("%.3f", r.perplexity()).text);
    if (r.bytes > 0) std::printf("   bits_per_byte %s", number_text("%.4f", r.bits_per_byte()).text);
    std::printf("   targets %lld   tokens/s %.0f\n", static_cast<long long>(r.loss.count), rate);
}

}  // namespace

void add_eval(CLI::App& app) {
    CLI::App* command = app.add_subcommand("eval", "loss, perplexity and bits per byte of a model on token files");
    auto o = std::make_shared<EvalOptions>();
    command->add_option("model", o->model, "a run (its newest checkpoint), a checkpoint, or a model folder")->required();
    command->add_option("--data", o->data, "token files to evaluate on, as keel tokenize writes them")->required();
    command->add_option("--seq-len", o->seq_len, "tokens of context; 0 takes what the model was trained with");
    command->add_option("--micro-batch", o->micro_batch, "samples at a time")->capture_default_str();
    command->add_option("--samples", o->samples, "how many samples; 0 takes all of the data");
    command->add_option("--threads", o->threads, "threads that compute; 0 takes every processor");
    command->add_flag("--json", o->json, "print one JSON object");
    command->callback([o] { run_eval(*o); });
}

}  // namespace keel
