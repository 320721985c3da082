// data/parted.h: texts parted into a body and a held-out tail.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/text.h"

namespace keel {

// How much of the end of all texts together is held out; "200000" bytes or "5%".
struct Tail {
    std::int64_t bytes = 0;
    double percent = 0;

    bool none() const { return bytes == 0 && percent == 0; }
    static Tail parse(const std::string& text);
};

// Documents of several files, parted at one place: the tail begins at the first line break of a plain document, or the
// first document of a file of lines, behind all but the last `tail` bytes of text. Nothing is in both parts.
class PartedReader {
public:
    using Progress = std::function<void(std::int64_t done, std::int64_t total)>;  // bytes of files

    // Where reading stands, in the body; border: bytes of text before the tail, -1 without a tail.
    struct Position {
        TextReader::Position at;
        std::int64_t border = -1, read = 0;
        bool inside = false;  // a document goes on
    };

    // With a tail, everything is read once beforehand, to learn its length; unless `position` knows it from a run
    // before.
    PartedReader(std::vector<std::filesystem::path> paths, const TextOptions& options, const Tail& tail,
                 Progress progress = {}, const std::optional<Position>& position = std::nullopt);

    bool next(TextPiece& piece, bool& in_tail);  // pieces of the body end their last document at the border
    Position position() const { return {reader_.position(), border_, read_, inside_}; }

    std::int64_t replaced() const { return reader_.replaced(); }
    std::int64_t bad_lines() const { return reader_.bad_lines().count; }
    TextReader& reader() { return reader_; }

private:
    void report(std::int64_t done) const;

    TextReader reader_;
    Progress progress_;
    std::int64_t border_ = -1;
    std::int64_t read_ = 0;     // bytes of text so far
    std::int64_t passes_ = 1;
    bool in_tail_ = false, inside_ = false;
    std::optional<TextPiece> rest_;  // of a piece that the border parted
};

}  // namespace keel
