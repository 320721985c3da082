// data/text.h: text files as a stream of documents: plain text or JSON lines, as they are or compressed with zstd or
// gzip.
//
// Compression is recognised by content, not by name; concatenated frames are one stream, windows of up to 2 GiB are
// read, and a stream that ends early is an error. Plain text is one document per file or per line, or is split at blank
// lines; JSON lines are one document per line. A byte-order mark is skipped, invalid UTF-8 becomes U+FFFD and is
// counted, an empty text is no document. Memory is bounded: long documents come in pieces, only a line is held whole,
// up to 1 GiB.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "data/inputs.h"

namespace keel {

enum class TextFormat : std::uint8_t {
    by_name,  // .jsonl and .ndjson (before .zst or .gz) are JSON lines, anything else is plain
    plain,
    jsonl,
    lines,       // of plain text: each is a document
    json_whole,  // JSON lines as they stand, for data/chat.h
};

// A line that is no document, by its place: byte of the decompressed file, lines from 1.
struct BadLine {
    std::string file;
    std::int64_t line = 0, byte = 0;
    std::string problem;
};
std::string text_of(const BadLine& bad);  // "a.jsonl, line 3 (byte 41): not a JSON object"

// The first of them, and how many there were.
struct BadLines {
    static constexpr std::size_t kept = 20;
    std::int64_t count = 0;
    std::vector<BadLine> first;
    void add(BadLine bad);
};

struct TextOptions {
    TextFormat format = TextFormat::by_name;
    std::string field = "text";         // of a JSON line
    bool split_at_blank_lines = false;  // plain text only
    bool skip_bad_lines = false;        // JSON lines that are no object with that field: count and go on
    std::int64_t piece_bytes = 1 << 20;
    bool cut_documents = true;          // false: a piece is a whole document, whatever its length
};

// A piece of a document. Long plain documents are cut only between an ASCII letter or digit and a white-space
// character, where no tokenizer with the patterns of data/pretokenize.h can join across (Tokenizer::model().cuttable).
struct TextPiece {
    std::string text;               // valid UTF-8; empty only if it is the end of a document cut before
    bool ends_document = false;
    bool may_cut = false;           // plain text: a document of lines, which may be divided at any line break
    std::int64_t line = 0, byte = 0;  // of formats of lines: where it stands in its file
};

// The bytes of a file, decompressed.
class ByteReader {
public:
    explicit ByteReader(const std::filesystem::path& path);
    ~ByteReader();
    ByteReader(ByteReader&&) noexcept;

    // Appends about `bytes` more to `out`; false at the end of the file. Throws Error on a damaged or cut stream.
    bool read(std::int64_t bytes, std::string& out);
    std::int64_t file_bytes_read() const;  // of the file as it is, for a progress bar
    std::int64_t file_bytes() const;
    bool compressed() const;

private:
    struct State;
    std::unique_ptr<State> state_;
};

// All documents of several files, in order.
class TextReader {
public:
    TextReader(std::vector<std::filesystem::path> paths, TextOptions options);
    ~TextReader();

    bool next(TextPiece& piece);  // false when all is read

    std::int64_t replaced() const;          // bad UTF-8 sequences so far
    const BadLines& bad_lines() const;      // that were skipped
    void skip_bad_line(BadLine bad);        // or refuses it, as the options say

    // Where it stands: `pieces` pieces of file `file` have been handed out. Reading goes on there after seek(), with
    // the same files and options; what is skipped is read again and not looked at.
    struct Position {
        std::size_t file = 0;
        std::int64_t pieces = 0;
    };
    Position position() const;
    void seek(Position position);
    std::int64_t file_bytes_read() const;   // of file_bytes()
    std::int64_t file_bytes() const;
    std::int64_t text_bytes_guess() const;  // file_bytes(), or eight times that where files are compressed

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace keel
