// cli/tokenize.cpp: `keel tokenize`: text files to a token file, with a held-out tail on request.

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/text_options.h"
#include "data/tokenize.h"
#include "kernels/base/error.h"

namespace keel {
namespace {

struct TokenizeFlags {
    TextFlags text;
    std::string tokenizer, out, valid_out, valid_text, special_text = "parse";
    bool append_eos = true, prepend_bos = false;
    int threads = 0;
};

void print_summary(const std::string& path, const TokenFileInfo& info) {
    std::printf("%s: %lld documents, %lld tokens, %lld bytes, %.3f bytes per token", path.c_str(),
                static_cast<long long>(info.documents), static_cast<long long>(info.tokens),
                static_cast<long long>(info.source_bytes),
                info.tokens > 0 ? static_cast<double>(info.source_bytes) / static_cast<double>(info.tokens) : 0.0);
    if (info.replaced > 0) std::printf(", %lld bad UTF-8 sequences replaced by U+FFFD", static_cast<long long>(info.replaced));
    std::printf("\n");
}

void run_tokenize(const TokenizeFlags& f) {
    const Tokenizer tokenizer = Tokenizer::load(f.tokenizer);
    TokenizeOptions o;
    o.inputs = expand_inputs(f.text.inputs);
    o.text = f.text.options();
    o.out = f.out;
    o.tail = f.text.parsed_tail();
    if (o.tail.none() && (!f.valid_out.empty() || !f.valid_text.empty()))
        fail_usage("--valid-out and --valid-text name files for the held-out tail, but --valid-tail does not say how much of"
                   " the text that is");
    if (!o.tail.none()) {
        o.tail_out = f.valid_out.empty() ? std::filesystem::path(f.out).replace_extension(".valid.tok")
                                         : std::filesystem::path(f.valid_out);
        if (o.tail_out == o.out) fail_usage("--out and --valid-out are both ", f.out);
        o.tail_text = f.valid_text;
    }
    for (const auto& written : {o.out, o.tail_out, o.tail_text})
        for (const auto& read : o.inputs)
            if (std::error_code none; !written.empty() && std::filesystem::equivalent(written, read, none))
                fail_usage(written.string(), " is one of the inputs, and would be overwritten; name another file");
    o.append_eos = f.append_eos;
    o.prepend_bos = f.prepend_bos;
    o.special = f.special_text == "plain" ? SpecialText::plain : SpecialText::parse;
    if (f.threads < 0) fail_usage("--threads is ", f.threads, "; give a positive number, or 0 for all processors");
    o.threads = f.threads;
    LateBar bar("tokenizing", "B");
    o.progress = [&](std::int64_t done, std::int64_t total) { bar.update(done, total); };
    const auto began = std::chrono::steady_clock::now();
    const TokenizeReport report = tokenize(tokenizer, o);
    bar.finish();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();

    print_summary(f.out, report.body);
    if (report.tail) print_summary(o.tail_out.string(), *report.tail);
    if (report.bad_lines > 0) std::printf("%lld bad JSON lines skipped\n", static_cast<long long>(report.bad_lines));
    const std::int64_t bytes = report.body.source_bytes + (report.tail ? report.tail->source_bytes : 0);
    std::printf("%.1f MB of text in %.2f s: %.1f MB/s\n", static_cast<double>(bytes) / 1e6, seconds,
                static_cast<double>(bytes) / 1e6 / seconds);
}

}  // namespace

void add_tokenize(CLI::App& app) {
    const auto flags = std::make_shared<TokenizeFlags>();
    CLI::App* command = app.add_subcommand("tokenize", "turn text files into a token file");
    flags->text.add_to(*command);
    command->add_option("--tokenizer", flags->tokenizer, "tokenizer.json or the folder that holds it")->required();
    command->add_option("--out", flags->out, "token file to write; it appears when it is complete")->required();
    command->add_option("--append-eos", flags->append_eos, "true: end each document with the tokenizer's end-of-text token")
        ->default_str("true");
    command->add_option("--prepend-bos", flags->prepend_bos, "true: begin each document with the tokenizer's first token")
        ->default_str("false");
    command->add_option("--special-text", flags->special_text,
                        "what a special token written out in the text is: parse makes it that token, plain keeps it text")
        ->check(CLI::IsMember({"parse", "plain"}))->capture_default_str();
    command->add_option("--valid-tail", flags->text.tail,
                        "hold out the end of the text for validation: bytes, or a percentage as in 5%");
    command->add_option("--valid-out", flags->valid_out, "token file of the held-out tail; default: --out with .valid.tok");
    command->add_option("--valid-text", flags->valid_text, "also write the held-out tail as text to this file");
    command->add_option("--threads", flags->threads, "threads that encode; 0 takes all; the result does not depend on it")
        ->capture_default_str();
    command->callback([flags] { run_tokenize(*flags); });
}

}  // namespace keel
