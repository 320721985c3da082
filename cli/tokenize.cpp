// cli/tokenize.cpp: `keel tokenize`: text files to a token file, with a held-out tail on request.

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/commands.h"
#include "cli/text_options.h"
#include "data/tokenize.h"
#include "kernels/base/error.h"
#include "kernels/base/file.h"

namespace keel {
namespace {

struct TokenizeFlags {
    TextFlags text;
    std::string tokenizer, out, to = "keel", chat, valid_out, valid_text, special_text = "parse", report;
    bool append_eos = true, prepend_bos = false, resume = true, duplicates = true;
    int threads = 0;
};

TokenFormat format_of(const std::string& to) {
    return to == "megatron" ? TokenFormat::megatron : to == "llmc" ? TokenFormat::llmc : TokenFormat::keel;
}

// Every file that will be there afterwards; a Megatron corpus is two.
std::vector<std::filesystem::path> written_files(const TokenizeOptions& o, const std::string& report) {
    std::vector<std::filesystem::path> files;
    for (std::filesystem::path out : {o.out, o.tail_out}) {
        if (out.empty()) continue;
        if (o.to != TokenFormat::megatron) {
            files.push_back(out);
            continue;
        }
        if (const auto ending = out.extension(); ending == ".bin" || ending == ".idx") out.replace_extension();
        files.push_back(out.string() + ".bin"), files.push_back(out.string() + ".idx");
    }
    if (!o.tail_text.empty()) files.push_back(o.tail_text);
    if (!report.empty()) files.emplace_back(report);
    return files;
}

TokenizeOptions options_of(const TokenizeFlags& f) {
    TokenizeOptions o;
    o.inputs = expand_inputs(f.text.inputs);
    o.text = f.text.options();
    o.out = f.out;
    o.to = format_of(f.to);
    o.tail = f.text.parsed_tail();
    if (o.tail.none() && (!f.valid_out.empty() || !f.valid_text.empty()))
        fail_usage(
            "--valid-out and --valid-text name files for the held-out tail, but --valid-tail does not say how much of"
            " the text that is");
    if (!o.tail.none()) {
        const std::filesystem::path out(f.out);
        const std::string ending = o.to == TokenFormat::keel ? ".tok" : out.extension().string();
        o.tail_out = f.valid_out.empty() ? std::filesystem::path(f.out).replace_extension(".valid" + ending)
                                         : std::filesystem::path(f.valid_out);
        o.tail_text = f.valid_text;
    }
    const auto written = written_files(o, f.report);
    for (std::size_t i = 0; i < written.size(); ++i) {
        for (const auto& read : o.inputs)
            if (std::error_code none; std::filesystem::equivalent(written[i], read, none))
                fail_usage(written[i].string(), " is one of the inputs, and would be overwritten; name another file");
        for (std::size_t j = 0; j < i; ++j)
            if (std::filesystem::weakly_canonical(written[i]) == std::filesystem::weakly_canonical(written[j]))
                fail_usage(written[i].string(), " would be written twice; --out, --valid-out, --valid-text and --report"
                                                " must differ");
    }
    if (!f.chat.empty()) o.chat = ChatFormat::named(f.chat);
    o.append_eos = f.append_eos;
    o.prepend_bos = f.prepend_bos;
    o.special = f.special_text == "plain" ? SpecialText::plain : SpecialText::parse;
    if (f.threads < 0) fail_usage("--threads is ", f.threads, "; give a positive number, or 0 for all processors");
    o.threads = f.threads;
    o.resume = f.resume;
    o.duplicates = f.duplicates;
    return o;
}

void print_summary(const std::string& path, const TokenFileInfo& info) {
    std::printf("%s: %lld documents, %lld tokens", path.c_str(), static_cast<long long>(info.documents),
                static_cast<long long>(info.tokens));
    if (info.source_bytes > 0)
        std::printf(", %lld bytes, %.3f bytes per token", static_cast<long long>(info.source_bytes),
                    info.tokens > 0 ? static_cast<double>(info.source_bytes) / static_cast<double>(info.tokens) : 0.0);
    if (info.replaced > 0)
        std::printf(", %lld bad UTF-8 sequences replaced by U+FFFD", static_cast<long long>(info.replaced));
    std::printf("\n");
}

void print_bad_lines(const BadLines& bad) {
    if (bad.count == 0) return;
    std::printf("%lld bad lines skipped; the first of them:\n", static_cast<long long>(bad.count));
    for (std::size_t i = 0; i < bad.first.size() && i < 5; ++i) std::printf("  %s\n", text_of(bad.first[i]).c_str());
}

void print_duplicates(const Duplicates& d) {
    if (d.documents == 0) return;
    std::printf("%lld documents (%lld tokens) are exact copies of an earlier one:", static_cast<long long>(d.documents),
                static_cast<long long>(d.tokens));
    for (const auto& pair : d.first)
        std::printf(" %lld of %lld,", static_cast<long long>(pair.document), static_cast<long long>(pair.earlier));
    std::printf(" counted from 0\n");
}

// What was read, in which order, and what became of it: for the record of a run.
std::string report_text(const TokenizeOptions& o, const TokenizeReport& report) {
    using Json = nlohmann::ordered_json;
    const auto counts = [](const TokenFileInfo& i) {
        return Json{{"documents", i.documents},
                    {"tokens", i.tokens},
                    {"bytes_of_text", i.source_bytes},
                    {"repaired_byte_sequences", i.replaced}};
    };
    Json all{{"inputs", Json::array()}, {"body", counts(report.body)}};
    for (const auto& input : o.inputs)
        all["inputs"].push_back({{"path", input.string()}, {"bytes", std::filesystem::file_size(input)}});
    if (report.tail) all["tail"] = counts(*report.tail);
    all["bad_lines"] = {{"count", report.bad_lines.count}, {"first", Json::array()}};
    for (const BadLine& bad : report.bad_lines.first)
        all["bad_lines"]["first"].push_back(
            {{"file", bad.file}, {"line", bad.line}, {"byte", bad.byte}, {"problem", bad.problem}});
    if (const auto& d = report.duplicates) {
        all["duplicates"] = {{"documents", d->documents}, {"tokens", d->tokens}, {"first", Json::array()}};
        for (const auto& pair : d->first) all["duplicates"]["first"].push_back({pair.document, pair.earlier});
    }
    return all.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

void run_tokenize(const TokenizeFlags& f) {
    const Tokenizer tokenizer = Tokenizer::load(f.tokenizer);
    TokenizeOptions o = options_of(f);
    LateBar bar("tokenizing", "B");
    o.progress = [&](std::int64_t done, std::int64_t total) { bar.update(done, total); };
    const auto began = std::chrono::steady_clock::now();
    const TokenizeReport report = tokenize(tokenizer, o);
    bar.finish();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();

    if (o.inputs.size() > 1)
        std::printf("%zu files, from %s to %s\n", o.inputs.size(), o.inputs.front().c_str(), o.inputs.back().c_str());
    print_summary(f.out, report.body);
    if (report.tail) print_summary(o.tail_out.string(), *report.tail);
    print_bad_lines(report.bad_lines);
    if (report.duplicates) print_duplicates(*report.duplicates);
    if (!f.report.empty()) write_file_atomically(f.report, report_text(o, report));
    if (report.resumed_bytes > 0)
        std::printf("went on after %.1f MB of text that a run before had done\n",
                    static_cast<double>(report.resumed_bytes) / 1e6);
    const std::int64_t bytes =
        report.body.source_bytes + (report.tail ? report.tail->source_bytes : 0) - (o.chat ? 0 : report.resumed_bytes);
    if (!o.chat)
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
    command->add_option("--to", flags->to, "whose token file: keel, megatron (a pair of .bin and .idx) or llmc")
        ->check(CLI::IsMember({"keel", "megatron", "llmc"}))->capture_default_str();
    command
        ->add_option("--append-eos", flags->append_eos,
                     "true: end each document with the tokenizer's end-of-text token")
        ->default_str("true");
    command
        ->add_option("--prepend-bos", flags->prepend_bos, "true: begin each document with the tokenizer's first token")
        ->default_str("false");
    command
        ->add_option("--special-text", flags->special_text,
                     "what a special token written out in the text is: parse makes it that token, plain keeps it text")
        ->check(CLI::IsMember({"parse", "plain"}))
        ->capture_default_str();
    command->add_option(
        "--chat", flags->chat,
        "JSON lines are conversations (messages) or prompt and completion, of which only answers are learned: chatml,"
        " llama3, zephyr, mistral, prompt, or a .json with a format of your own");
    command->add_option("--valid-tail", flags->text.tail,
                        "hold out the end of the text for validation: bytes, or a percentage as in 5%");
    command->add_option("--valid-out", flags->valid_out,
                        "token file of the held-out tail; default: --out with .valid.tok");
    command->add_option("--valid-text", flags->valid_text, "also write the held-out tail as text to this file");
    command->add_option("--resume", flags->resume, "true: go on where a killed run was; false: begin anew")
        ->default_str("true");
    command
        ->add_option("--duplicates", flags->duplicates, "true: count documents that are exact copies of an earlier one")
        ->default_str("true");
    command->add_option("--report", flags->report,
                        "write what was read, in which order, and what was found to this JSON file");
    command
        ->add_option("--threads", flags->threads, "threads that encode; 0 takes all; the result does not depend on it")
        ->capture_default_str();
    command->callback([flags] { run_tokenize(*flags); });
}

}  // namespace keel
