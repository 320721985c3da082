// data/char_bpe.h: byte-pair merging of characters, for tokenizers that are not byte-level: those of a tokenizer.json that
// began as SentencePiece models, and those models themselves. A character without a token becomes the tokens of its bytes
// (<0x41>) where there are some, else the unknown token.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/bpe.h"
#include "data/cut_table.h"
#include "data/trie.h"

namespace keel {

class CharBpe {
public:
    struct Rules {
        std::array<std::int32_t, 256> byte_tokens;  // -1: none
        std::optional<std::int32_t> unknown;
        bool fuse_unknown = false;       // a run of unknown characters is one token
        bool bytes_before_merging = true;  // the tokens of bytes may be merged; in SentencePiece they come after
        std::vector<std::pair<std::string, std::int32_t>> whole;  // symbols that are found first and never merged
        Rules() { byte_tokens.fill(-1); }
    };

    CharBpe() = default;
    // `characters` are the tokens of one character.
    CharBpe(Rules rules, const std::unordered_map<std::uint32_t, std::int32_t>& characters);

    // Stands for a character that is no token, in merges.
    static std::int32_t bare(std::uint32_t code) { return -2 - static_cast<std::int32_t>(code); }

    // Appends the ids. Throws Error if a character has neither token, bytes nor an unknown token.
    void encode(std::string_view piece, const MergeTable& merges, BpeScratch& scratch, std::vector<std::int32_t>& ids,
                const std::string& name) const;

    // Whether parts of a piece may be encoded on their own: a run of unknown characters must stay together.
    bool may_cut() const { return !rules_.unknown || !rules_.fuse_unknown || all_bytes_; }

private:
    std::int32_t symbol(std::uint32_t code) const {
        if (code < ascii_.size()) return ascii_[code];
        const auto found = beyond_.find(code);
        return found == beyond_.end() ? bare(code) : found->second;
    }
    void append_unknown(std::uint32_t code, std::vector<std::int32_t>& ids, bool& after_unknown, const std::string& name) const;

    Rules rules_;
    std::array<std::int32_t, 128> ascii_{};
    std::unordered_map<std::uint32_t, std::int32_t> beyond_;
    Trie whole_;
    bool all_bytes_ = false;
};

// All ways to make each token of two others, ranked by `rank` (equal ranks stay equal): what "join the pair whose joined
// text is the best token" means, for SentencePiece and tiktoken. `bytes` tells that symbols are bytes, not characters.
struct RankedToken {
    std::string_view text;
    std::int32_t id;
    std::uint32_t rank;  // the lowest is joined first
};
MergeTable merges_of_tokens(const std::vector<RankedToken>& tokens, bool bytes, CutTable& cuts, const std::string& name);

}  // namespace keel
