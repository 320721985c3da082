// data/pretokenize.h: cuts text into the pieces inside which BPE may merge. Hand-written scanners for the three patterns in
// use, equal to the regular expressions they replace, but linear on any text and without recursion.
//
// A scanner is chosen by the exact text of the pattern in tokenizer.json, never by a model's name: the wrong one gives
// valid ids, some per cent more of them, and no error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace keel {

enum class Pattern : std::uint8_t {
    gpt2,    // ByteLevel with use_regex
    llama3,  // also OLMo-2; known elsewhere as cl100k
    qwen,    // Qwen2, 2.5 and 3: llama3 with numbers one digit at a time
};

enum class Digits : std::uint8_t { together, runs, individual };  // what is cut out before the pattern is applied

struct Pretokenizer {
    Pattern pattern = Pattern::gpt2;
    Digits digits = Digits::together;
};

const char* pattern_text(Pattern pattern);                    // the regular expression
const char* pattern_name(Pattern pattern);
std::optional<Pattern> pattern_of(std::string_view regex);  // exact match with one of the three

// End of the piece that begins at `begin` < text.size(). `text` must be valid UTF-8; its end counts as the end of text.
std::size_t piece_end(Pattern pattern, std::string_view text, std::size_t begin);

// Calls body(piece) for each piece in order; together they are the text.
template <class Body> void for_each_piece(const Pretokenizer& how, std::string_view text, Body&& body);

// End of the part that begins at `begin` and is given to the pattern as a text of its own.
std::size_t digits_end(Digits digits, std::string_view text, std::size_t begin);

template <class Body> void for_each_piece(const Pretokenizer& how, std::string_view text, Body&& body) {
    for (std::size_t part = 0; part < text.size();) {
        const std::size_t part_end = how.digits == Digits::together ? text.size() : digits_end(how.digits, text, part);
        const std::string_view whole = text.substr(0, part_end);
        for (std::size_t at = part; at < part_end;) {
            const std::size_t end = piece_end(how.pattern, whole, at);
            body(text.substr(at, end - at));
            at = end;
        }
        part = part_end;
    }
}

}  // namespace keel
