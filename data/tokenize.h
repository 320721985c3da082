// data/tokenize.h: texts to token files, on all threads, in one deterministic order, resumable.
//
// The text is read piece by piece, encoded by all threads and written in the order it was read, so files do not depend
// on the number of threads. Memory is bounded by the pieces in flight. Of long texts, finished parts are kept in a
// hidden folder beside `out` (data/tokenize_parts.h); a run that was killed goes on after the last of them, and the
// file it makes is the same. Nothing appears under the names of `out`, `tail_out` and `tail_text` before all of it is
// on the disk; then they are renamed one after the other, `out` last (kernels/base/file.h, commit_together).
#pragma once

#include "data/chat.h"
#include "data/parted.h"
#include "data/token_writer.h"
#include "data/tokenizer.h"

namespace keel {

struct TokenizeOptions {
    std::vector<std::filesystem::path> inputs;
    TextOptions text;
    std::filesystem::path out;        // token file of the body
    TokenFormat to = TokenFormat::keel;
    Tail tail;
    std::filesystem::path tail_out;   // token file of the tail; needed with a tail
    std::filesystem::path tail_text;  // the tail as text; empty: not written
    bool append_eos = true, prepend_bos = false;
    SpecialText special = SpecialText::parse;
    std::optional<ChatFormat> chat;   // lines are conversations; the token files get a mask
    bool duplicates = true;           // look for documents of the body that are copies of earlier ones
    int threads = 0;                  // 0: all; the files do not depend on it
    std::int64_t part_bytes = 64 << 20;  // of text in each part, if the inputs are longer
    bool resume = true;
    PartedReader::Progress progress;
};

struct TokenizeReport {
    TokenFileInfo body;
    std::optional<TokenFileInfo> tail;
    BadLines bad_lines;
    std::optional<Duplicates> duplicates;
    std::int64_t resumed_bytes = 0;  // of text that a run before had done
};

TokenizeReport tokenize(const Tokenizer& tokenizer, const TokenizeOptions& options);

}  // namespace keel
