// data/unigram.h: the segmentation of a piece whose tokens have the greatest sum of log-probabilities (Kudo 2018,
// arXiv:1804.10959), by Viterbi's algorithm over the bytes.
//
// Sums are rounded as in the two programs such vocabularies come from, because ties and near ties decide ids: double for a
// tokenizer.json, float between the steps for a SentencePiece model. For the same reason a piece is never cut here.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/trie.h"

namespace keel {

class Unigram {
public:
    struct Rules {
        std::array<std::int32_t, 256> byte_tokens;  // -1: none
        std::optional<std::int32_t> unknown;
        bool fuse_unknown = true;
        bool float_sums = false;                    // SentencePiece
        Rules() { byte_tokens.fill(-1); }
    };
    struct Token {
        std::string text;
        std::int32_t id;
        double score;
        bool findable = true;      // a control or byte token is not
        bool user_defined = false;  // always wins
    };
    // Working memory of one thread: one node per byte of the piece.
    struct Scratch {
        struct Node {
            double score = 0;
            std::uint32_t begin = 0;
            std::int32_t id = none;
        };
        static constexpr std::int32_t none = -2, unknown = -1;
        std::vector<Node> nodes;
        std::vector<std::int32_t> ids;
    };

    Unigram() = default;
    Unigram(Rules rules, const std::vector<Token>& tokens);

    void encode(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& ids, const std::string& name) const;

private:
    Rules rules_;
    Trie trie_;                   // to indices of findable tokens
    struct Found {
        std::int32_t id;
        double score;
        bool user_defined;
    };
    std::vector<Found> tokens_;
    double unknown_score_ = 0, max_score_ = 0;
};

}  // namespace keel
