// data/sentencepiece_normalizer.h: what SentencePiece does to text before it looks for pieces: a compiled map of characters,
// extra white space, a space in front, and U+2581 for every space. The compiled map is a double-array trie from the file;
// every step through it is checked, for the file may say anything.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/trie.h"

namespace keel {

class SentencePieceNormalizer {
public:
    struct Rules {
        std::string charsmap;              // as in the file; empty: characters stay as they are
        bool add_dummy_prefix = true;
        bool remove_extra_whitespaces = true;
        bool escape_whitespaces = true;
        std::vector<std::string> user_defined;  // symbols that the map leaves alone
    };

    // Throws Error that begins with `where` if the map is damaged.
    SentencePieceNormalizer(Rules rules, const std::string& where);

    std::string normalize(std::string_view text) const;  // valid UTF-8 in and out
    const Rules& rules() const { return rules_; }
    std::string canonical() const;

private:
    // What the first characters of `text` become, and how many bytes they are.
    std::string_view prefix(std::string_view text, std::size_t& used) const;

    Rules rules_;
    std::string where_;
    std::vector<std::uint32_t> units_;   // of the double array
    std::string_view replacements_;      // texts that each end with a zero byte; lies in rules_.charsmap
    Trie user_defined_;
};

}  // namespace keel
