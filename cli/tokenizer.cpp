// cli/tokenizer.cpp: `keel tokenizer train`: a byte-level BPE tokenizer from text files.

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/commands.h"
#include "cli/text_options.h"
#include "data/bpe_train.h"
#include "kernels/base/error.h"
#include "kernels/base/file.h"

namespace keel {
namespace {

namespace fs = std::filesystem;

struct TrainFlags {
    TextFlags text;
    std::string out, pattern = "gpt2";
    std::int64_t vocab = 0, min_count = 2;
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
    TextPiece piece;
    std::int64_t bytes = 0;
    for (bool in_tail = false; reader.next(piece, in_tail) && !in_tail;) {
        trainer.add(piece.text);
        bytes += static_cast<std::int64_t>(piece.text.size());
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
    if (tokenizer.vocab_size() < f.vocab)
        std::printf("The text has no more pairs that occur %lld times, so the vocabulary stays below --vocab %lld.\n",
                    static_cast<long long>(f.min_count), static_cast<long long>(f.vocab));
}

}  // namespace

void add_tokenizer(CLI::App& app) {
    CLI::App* command = app.add_subcommand("tokenizer", "make a tokenizer");
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
    train->callback([flags] { run_train(*flags); });
}

}  // namespace keel
