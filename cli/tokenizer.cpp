// cli/tokenizer.cpp: `keel tokenizer train`: a byte-level BPE tokenizer from text files; `keel tokenizer check`: what a
// tokenizer is, and whether its vocabulary survives the way to text and back.

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/commands.h"
#include "cli/report_table.h"
#include "cli/shown_text.h"
#include "cli/text_options.h"
#include "data/bpe_train.h"
#include "data/tokenizer_check.h"
#include "data/tokenizer_model.h"
#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/hex.h"

namespace keel {
namespace {

namespace fs = std::filesystem;

struct TrainFlags {
    TextFlags text;
    std::string out, pattern = "gpt2";
    std::int64_t vocab = 0, min_count = 2;
    int threads = 0;
    std::vector<std::string> special = {"<|endoftext|>"};
};

void run_train(const TrainFlags& f) {
    const fs::path out = f.out;
    const bool file = out.extension() == ".json";
    const Pattern pattern = f.pattern == "gpt2" ? Pattern::gpt2 : f.pattern == "llama3" ? Pattern::llama3 : Pattern::qwen;
    const BpeTrainOptions options{.vocab_size = f.vocab, .special = f.special, .min_count = f.min_count};
    BpeTrainer::check(options);
    if (std::error_code error; !file && (fs::create_directories(out, error), error))
        fail("cannot make folder ", out.string(), ": ", error.message(), "; --out is a folder, or a name that ends in .json");
    BpeTrainer trainer({.pattern = pattern});
    const auto began = std::chrono::steady_clock::now();
    LateBar reading("reading", "B");
    PartedReader reader(expand_inputs(f.text.inputs), f.text.options(), f.text.parsed_tail(),
                        [&](std::int64_t done, std::int64_t total) { reading.update(done, total); });
    // Rounds of a fixed size: what is forgotten when memory is full must not depend on the number of threads.
    constexpr std::size_t round_bytes = 16 << 20;
    Stream stream(f.threads, 0);
    std::int64_t bytes = 0;
    for (bool more = true; more;) {
        std::vector<std::string> round;
        TextPiece piece;
        for (std::size_t size = 0; size < round_bytes;) {
            bool in_tail = false;
            if (!(more = reader.next(piece, in_tail) && !in_tail)) break;
            size += piece.text.size();
            round.push_back(std::move(piece.text));
        }
        for (const std::string& text : round) bytes += static_cast<std::int64_t>(text.size());
        trainer.add(round, stream);
    }
    reading.finish();
    LateBar merging("merging", "merges");
    const Tokenizer tokenizer = trainer.train(
        options, [&](std::int64_t done, std::int64_t total) { merging.update(done, total); });
    merging.finish();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();

    const fs::path target = file ? out : out / "tokenizer.json";
    // tokenizer.json last: it is what makes the folder a tokenizer, and a full disk must not leave one that ends no document.
    if (!file) {  // what other programs ask for beside it
        nlohmann::ordered_json config{{"tokenizer_class", "PreTrainedTokenizerFast"}};
        if (tokenizer.eos_id()) config["eos_token"] = tokenizer.bytes(*tokenizer.eos_id());
        config["clean_up_tokenization_spaces"] = false;
        write_file_atomically(out / "tokenizer_config.json", config.dump(1) + "\n");
    }
    write_file_atomically(target, tokenizer.to_json());
    std::printf("%s: %lld ids (%zu special from 0, 256 bytes, %zu merges) from %.1f MB of text, %lld distinct pieces, in %.2f s\n",
                target.string().c_str(), static_cast<long long>(tokenizer.vocab_size()), f.special.size(),
                tokenizer.model().merges.size(), static_cast<double>(bytes) / 1e6,
                static_cast<long long>(trainer.distinct_pieces()), seconds);
    if (const std::int64_t forgotten = trainer.counts().forgotten(); forgotten > 0)
        std::printf("%lld rare pieces were forgotten on the way, to keep memory bounded.\n", static_cast<long long>(forgotten));
    if (tokenizer.vocab_size() < f.vocab)
        std::printf("The text has no more pairs that occur %lld times, so the vocabulary stays below --vocab %lld.\n",
                    static_cast<long long>(f.min_count), static_cast<long long>(f.vocab));
}

std::string token_line(const Tokenizer& tokenizer, std::int32_t id) { return concat(id, "  ", shown_text(tokenizer.bytes(id))); }

void run_check(const std::string& path) {
    const Tokenizer tokenizer = Tokenizer::load(path);
    const TokenizerModel& model = tokenizer.model();
    const TokenizerCheck c = check_tokenizer(tokenizer);
    Report r = {{"tokenizer", tokenizer.description()}, {"path", tokenizer.name()}};
    r["hash"] = hex(tokenizer.hash());
    r["vocabulary"] = tokenizer.vocab_size();
    r["tokens"] = c.ids;
    if (c.holes > 0) r["ids_without_token"] = c.holes;
    if (!model.merges.empty()) r["merges"] = model.merges.size();
    if (model.ignore_merges) r["ignore_merges"] = "a piece that is a token is that token, whatever the merges say";
    r["cut_by"] = cutting_in_words(tokenizer);
    const bool by_regex = std::any_of(model.steps.begin(), model.steps.end(), [](const SplitStep& s) { return s.regex != nullptr; });
    r["characters"] = concat("Unicode ", by_regex ? regex_unicode_version() : unicode_version());
    const auto name = [&](std::optional<std::int32_t> id) { return id ? token_line(tokenizer, *id) : std::string("none is named"); };
    r["beginning_of_text"] = name(tokenizer.bos_id());
    r["end_of_text"] = name(tokenizer.eos_id());
    if (model.unknown) r["unknown"] = concat(*model.unknown, "  ", shown_text(model.tokens[static_cast<std::size_t>(*model.unknown)].text));
    Report special = Report::array();
    std::int64_t count = 0;
    for (std::int32_t id = 0; id < tokenizer.vocab_size(); ++id)
        if (tokenizer.is_special(id) && ++count <= 20) special.push_back(token_line(tokenizer, id));
    r["special_tokens"] = count;
    if (count > 0) r[count > 20 ? "the_first_special_tokens" : "they_are"] = special;
    r["come_back_as_themselves"] = c.round_trips;
    r["parts_of_characters"] = c.part_of_character;
    r["never_made_by_encoding"] = c.several;
    if (!c.unreachable.empty()) {
        r["of_those"] = Report::array();
        for (const std::int32_t id : c.unreachable) r["of_those"].push_back(token_line(tokenizer, id));
    }
    r["come_back_as_another_text"] = c.lost_count;
    if (!c.lost.empty()) {
        r["of_these"] = Report::array();
        for (const auto& lost : c.lost) r["of_these"].push_back(concat(lost.id, "  ", shown_text(lost.text), "  ->  ", shown_text(lost.back)));
    }
    print_report(r);
}

}  // namespace

void add_tokenizer(CLI::App& app) {
    CLI::App* command = app.add_subcommand("tokenizer", "make a tokenizer, or look at one");
    command->require_subcommand(1);
    const auto flags = std::make_shared<TrainFlags>();
    CLI::App* train = command->add_subcommand("train", "learn a byte-level BPE tokenizer from text files");
    flags->text.add_to(*train);
    train->add_option("--vocab", flags->vocab, "size of the vocabulary, the 256 bytes and the special tokens included")->required();
    train->add_option("--out", flags->out, "folder for tokenizer.json and tokenizer_config.json, or a name that ends in .json")
        ->required();
    train->add_option("--special", flags->special, "special tokens, which get the ids from 0 on; <|endoftext|> ends documents")
        ->capture_default_str();
    train->add_option("--min-count", flags->min_count, "pairs that occur less often are not merged")->capture_default_str();
    train->add_option("--pattern", flags->pattern, "how text is cut into pieces before merging: gpt2, llama3 or qwen")
        ->check(CLI::IsMember({"gpt2", "llama3", "qwen"}))->capture_default_str();
    train->add_option("--skip-tail", flags->text.tail,
                      "leave out the end of the text, as `keel tokenize --valid-tail` does: bytes, or a percentage as in 5%");
    train->add_option("--threads", flags->threads, "threads that count pieces; 0: all processors. The result does not depend on it")
        ->capture_default_str();
    train->callback([flags] { run_train(*flags); });

    const auto path = std::make_shared<std::string>();
    CLI::App* check = command->add_subcommand("check", "tell what a tokenizer is, and turn its whole vocabulary into text and back");
    check->add_option("tokenizer", *path, "a model folder, a tokenizer.json, a tokenizer.model or a tiktoken file")->required();
    check->callback([path] { run_check(*path); });
}

}  // namespace keel
