// data/tokenize.h: texts to token files, and texts parted into a body and a held-out tail.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/text.h"
#include "data/token_writer.h"
#include "data/tokenizer.h"

namespace keel {

// How much of the end of all texts together is held out; "200000" bytes or "5%".
struct Tail {
    std::int64_t bytes = 0;
    double percent = 0;

    bool none() const { return bytes == 0 && percent == 0; }
    static Tail parse(const std::string& text);
};

// Documents of several files, parted at one place: the tail begins at the first line break of a plain document, or the
// first document of a JSON file, behind all but the last `tail` bytes of text. Nothing is in both parts.
class PartedReader {
public:
    using Progress = std::function<void(std::int64_t done, std::int64_t total)>;  // bytes of files

    // With a tail, everything is read once beforehand, to learn its length.
    PartedReader(std::vector<std::filesystem::path> paths, const TextOptions& options, const Tail& tail, Progress progress = {});

    bool next(TextPiece& piece, bool& in_tail);  // pieces of the body end their last document at the border

    std::int64_t replaced() const { return reader_.replaced(); }
    std::int64_t bad_lines() const { return reader_.bad_lines(); }

private:
    void report(std::int64_t done) const;

    TextReader reader_;
    Progress progress_;
    std::int64_t border_ = -1;  // bytes of text before the tail; -1 without a tail
    std::int64_t read_ = 0;     // bytes of text so far
    std::int64_t passes_ = 1;
    bool in_tail_ = false, inside_ = false;
    std::optional<TextPiece> rest_;  // of a piece that the border parted
};

struct TokenizeOptions {
    std::vector<std::filesystem::path> inputs;
    TextOptions text;
    std::filesystem::path out;        // token file of the body
    Tail tail;
    std::filesystem::path tail_out;   // token file of the tail; needed with a tail
    std::filesystem::path tail_text;  // the tail as text; empty: not written
    bool append_eos = true, prepend_bos = false;
    SpecialText special = SpecialText::parse;
    int threads = 0;                  // 0: all; the files do not depend on it
    PartedReader::Progress progress;
};

struct TokenizeReport {
    TokenFileInfo body;
    std::optional<TokenFileInfo> tail;
    std::int64_t bad_lines = 0;
};

// Nothing appears under the names of `out` and `tail_out` unless everything went well.
TokenizeReport tokenize(const Tokenizer& tokenizer, const TokenizeOptions& options);

}  // namespace keel
