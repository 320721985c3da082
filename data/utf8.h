// data/utf8.h: UTF-8 and the three Unicode classes that split text into pieces: letters, numbers, white space.
//
// "Valid" is strict: no surrogates, nothing overlong, nothing past U+10FFFF. A bad sequence is the longest prefix of a
// character that cannot go on, or one byte; each becomes one U+FFFD (Unicode 15, section 3.9, "maximal subparts").
// Character data is utf8proc's, one fixed version for a build: unicode_version().
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace keel {

struct Utf8Char {
    std::uint32_t code = 0;
    std::uint32_t size = 0;  // bytes
};

// The character at `text[at]`; `text` must be valid and at < text.size().
inline Utf8Char utf8_at(std::string_view text, std::size_t at) {
    const auto byte = [&](std::size_t i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(text[at + i])); };
    const std::uint32_t b = byte(0);
    if (b < 0x80) return {b, 1};
    if (b < 0xe0) return {(b & 0x1fu) << 6 | (byte(1) & 0x3fu), 2};
    if (b < 0xf0) return {(b & 0x0fu) << 12 | (byte(1) & 0x3fu) << 6 | (byte(2) & 0x3fu), 3};
    return {(b & 0x07u) << 18 | (byte(1) & 0x3fu) << 12 | (byte(2) & 0x3fu) << 6 | (byte(3) & 0x3fu), 4};
}

// Number of leading bytes that are whole valid characters; text.size() if all of it is valid.
std::size_t utf8_valid_prefix(std::string_view text);
// Length of the bad sequence at the start of `text` (not valid there); `incomplete` tells that more bytes might complete it.
std::size_t utf8_bad_length(std::string_view text, bool& incomplete);

// Appends `text` with each bad sequence replaced by U+FFFD; returns how many were.
std::int64_t append_repaired(std::string_view text, std::string& out);
// The same, but stops before a sequence that more bytes might complete; `used` is how far it read.
std::int64_t append_repaired(std::string_view text, std::string& out, std::size_t& used);

void append_utf8(std::uint32_t code, std::string& out);

enum class CharClass : std::uint8_t { other, letter, number, space };
CharClass char_class_beyond_ascii(std::uint32_t code);
extern const CharClass ascii_classes[128];
inline CharClass char_class(std::uint32_t code) {
    return code < 128 ? ascii_classes[code] : char_class_beyond_ascii(code);
}

// Whether a regular expression's \w matches: letters, marks, digits, connectors and joiners.
bool is_word_char(std::uint32_t code);

const char* unicode_version();

}  // namespace keel
