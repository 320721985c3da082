// cli/data.cpp: `keel data show`: samples as the model will see them. It takes the settings of a run (--config
// RUN/config.toml, or the same flags), so what it prints is what that run reads.

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "cli/commands.h"
#include "cli/config_flags.h"
#include "cli/data_sample.h"
#include "cli/shown_text.h"
#include "engine/data_spec.h"
#include "kernels/base/error.h"
#include "kernels/base/file.h"

namespace keel {
namespace {

struct ShowOptions {
    std::int64_t first = 0, count = 2;
    std::string part = "train", color = "auto", html;
    bool table = false;
};

std::string percent(double share) {
    char text[32];
    std::snprintf(text, sizeof text, "%.2f %%", 100 * share);
    return text;
}

// The sources, and what a run takes of each.
std::string sources_text(const Dataset& data, std::int64_t samples) {
    std::string out =
        concat(data.samples_per_epoch(), " samples of ", data.seq_len(), " tokens per epoch of all sources, ",
               percent(data.padding()), " of their places are padding\n");
    for (std::int64_t i = 0; i < data.sources(); ++i) {
        const Dataset::Use use = data.use(i, samples);
        char epochs[32];
        std::snprintf(epochs, sizeof epochs, "%.3f", use.epochs);
        out += concat("  ", use.name, ": ", data.samples(i), " samples, weight ", percent(data.weight(i)), "; ",
                      samples, " samples of the run take ", use.samples, " of it, ", epochs, " epochs\n");
    }
    return out;
}

// Without colours ⟨ ⟩ enclose what is read and not predicted.
void print_run(const ShownRun& run, bool color) {
    static constexpr int background[] = {24, 94, 22, 53, 58, 23};
    const std::string text = shown_text(run.text, "\n\t");
    if (!color) {
        std::printf(run.predicted ? "%s" : "⟨%s⟩", text.c_str());
        return;
    }
    const std::string on = concat("\033[48;5;", background[run.document % 6], run.predicted ? "m" : "m\033[2m");
    std::string lines = on;  // a colour that runs over the end of a line would fill the rest of the screen
    for (const char c : text) lines += c == '\n' ? concat("\033[0m\n", on) : std::string(1, c);
    std::printf("%s\033[0m", lines.c_str());
}

void print_table(const ShownSample& s, const std::optional<Tokenizer>& tokenizer) {
    std::printf("  place      id   label  position  sees from  text\n");
    for (std::size_t t = 0; t < s.tokens.size(); ++t) {
        const ShownToken& token = s.tokens[t];
        std::string text = tokenizer ? tokenizer->decode(std::span(&token.id, 1)) : "";
        for (std::size_t at = 0; (at = text.find('\n', at)) != std::string::npos; at += 2) text.replace(at, 1, "\\n");
        std::printf("%7zu %7d %7d %9d %10lld  %s\n", t, token.id, token.label, token.position,
                    static_cast<long long>(token.sees_from), shown_text(text).c_str());
    }
}

void print_sample(const ShownSample& s, const ShowOptions& o, bool color, const std::optional<Tokenizer>& tokenizer) {
    const auto filled = static_cast<std::int64_t>(s.tokens.size());
    std::printf("\nsample %lld: %lld tokens, %lld predicted, %zu documents, %lld places of padding\n",
                static_cast<long long>(s.number), static_cast<long long>(filled), static_cast<long long>(s.predicted),
                s.origins.size(), static_cast<long long>(s.places - filled));
    if (o.table) return print_table(s, tokenizer);
    int document = -1;
    for (const ShownRun& run : s.runs) {
        if (run.document != document) {
            if (document >= 0) std::printf("\n");
            document = run.document;
            std::printf("── %s\n", s.origins[static_cast<std::size_t>(document)].c_str());
        }
        print_run(run, color);
    }
    std::printf("\n");
}

void show(const Config& config, const ShowOptions& o) {
    if (o.first < 0 || o.count < 1)
        fail_usage("--first ", o.first, " --count ", o.count, ": samples count from 0, and at least one is shown");
    const DataSection& d = config.data;
    if (d.train.empty())
        fail_usage("--data.train is missing: name the token files, or a run's settings with --config RUN/config.toml");
    if (d.seq_len < 1) fail_usage("--data.seq_len is missing: give the tokens per sample, for example 1024");
    check_samples(d);
    const std::optional<Tokenizer> tokenizer =
        d.tokenizer.empty() ? std::nullopt : std::optional(Tokenizer::load(d.tokenizer));
    const bool valid = o.part == "valid";
    const auto spec = valid ? valid_spec(config, tokenizer)
                            : dataset_spec(config, tokenizer, d.train, Part::train, d.shuffle);
    if (!spec) fail_usage("there is nothing to evaluate on: give --data.valid, or a second part of --data.split");
    const Dataset data(*spec);
    if (tokenizer) data.check_tokenizer(tokenizer->hash(), tokenizer->name());
    Loader loader(
        data, {.max_count = 1, .window = config.model.window, .reset_at_document = d.reset_at_document, .prefetch = 0});

    const std::int64_t samples =
        config.train.samples > 0 ? config.train.samples : config.train.steps * config.train.global_batch;
    const std::string sources = sources_text(data, valid || samples == 0 ? data.samples_per_epoch() : samples);
    std::printf("%s", sources.c_str());
    const bool color = o.color == "always" || (o.color == "auto" && isatty(STDOUT_FILENO) == 1);
    std::vector<ShownSample> shown;
    for (std::int64_t n = o.first; n < o.first + o.count; ++n) {
        shown.push_back(show_sample(data, loader, n, tokenizer));
        if (o.html.empty()) print_sample(shown.back(), o, color, tokenizer), shown.clear();
    }
    if (o.html.empty()) return;
    write_file_atomically(o.html, samples_html(shown, sources, tokenizer));
    std::printf("%lld samples in %s\n", static_cast<long long>(o.count), o.html.c_str());
}

}  // namespace

void add_data(CLI::App& app) {
    CLI::App* data = app.add_subcommand("data", "look at training data");
    data->require_subcommand(1);
    CLI::App* command =
        data->add_subcommand("show", "print samples as the model will see them: text, documents, what is predicted");
    auto flags = std::make_shared<ConfigFlags>(*command);
    auto o = std::make_shared<ShowOptions>();
    command->add_option("--first", o->first, "number of the first sample to show")->capture_default_str();
    command->add_option("--count", o->count, "how many to show")->capture_default_str();
    command->add_option("--part", o->part, "train, or valid: what the run evaluates on")
        ->check(CLI::IsMember({"train", "valid"}))
        ->capture_default_str();
    command->add_flag("--table", o->table, "one line per token: place, id, label, position, first place it sees, text");
    command->add_option("--color", o->color, "auto colours documents on a terminal; always or never")
        ->check(CLI::IsMember({"auto", "always", "never"}))->capture_default_str();
    command->add_option("--html", o->html, "write a self-contained page of these samples instead, as a packed batch");
    command->callback([flags, o] { show(flags->read(), *o); });
}

}  // namespace keel
