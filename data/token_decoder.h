// data/token_decoder.h: ids to text, one id at a time. What it hands out is never part of a character, and all of it
// together is the text of all ids: decode and streamed decode are the same thing.
#pragma once

#include <cstdint>
#include <string>

namespace keel {

struct TokenizerModel;

struct DecodeRules {
    enum class Kind : std::uint8_t {
        bytes,          // tokens are bytes: joined, then read as UTF-8
        text,           // tokens are text, but <0x41> is a byte: a run of those is read as UTF-8 as a whole or not at all
        sentencepiece,  // the same, but a run is read character by character
    };
    Kind kind = Kind::bytes;
    std::string lead = " ";        // text: what is dropped from the beginning,
    std::int64_t lead_count = 0;   // and how often
    bool drop_marker = false;      // sentencepiece: the first piece loses the marker it begins with
    bool drop_all_markers = false;  // and so do more, until there is text
};

class TokenDecoder {
public:
    explicit TokenDecoder(const TokenizerModel& model, bool skip_special);  // the model must outlive it

    void push(std::int32_t id, std::string& out);  // appends what this id completes; throws on an id that is none
    void finish(std::string& out);                 // appends what was held back, bad bytes as U+FFFD; ready for a new text

private:
    void emit(std::string_view text, std::string& out);
    void end_run(std::string& out);
    void drain(bool all, std::string& out);

    const TokenizerModel* model_;
    bool skip_special_;
    std::string held_;              // bytes that are no whole character yet, or a run of byte tokens
    std::int64_t lead_left_ = 0;
    bool at_start_ = true, marker_dropped_ = false, any_ = false;
};

}  // namespace keel
