// data/tokenizer_model.h: what a tokenizer.json says, checked, with the tables encoding needs. Made once, then constant.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/bpe.h"
#include "data/pretokenize.h"
#include "data/utf8.h"

namespace keel {

struct AddedToken {
    std::string content;
    std::int32_t id = 0;
    bool special = false, single_word = false, lstrip = false, rstrip = false, normalized = false;
};

// Finds added tokens in text: leftmost, the longest at the same start.
class AddedTokenFinder {
public:
    struct Match {
        std::size_t begin = 0, end = 0;
        std::int32_t id = -1;  // -1: none, and begin and end are the end of the text
    };

    AddedTokenFinder() = default;
    explicit AddedTokenFinder(std::vector<AddedToken> tokens);
    // The first match at or after `from`, white space swallowed by lstrip and rstrip included (but none before `from`).
    Match find(std::string_view text, std::size_t from, bool special_too) const;

private:
    std::vector<AddedToken> tokens_;  // by first byte, then longest first
    std::array<std::uint32_t, 257> begin_{};  // tokens_ whose first byte is b: [begin_[b], begin_[b + 1])
    int only_first_byte_ = -1;
};

struct TokenizerModel {
    struct Token {
        std::string bytes;        // what it decodes to
        bool exists = false;      // ids may have holes
        bool in_vocab = false;    // of the BPE model, not only an added token
        bool spelt = false;       // `bytes` spelt in the byte alphabet is the name in the file; else the name is `bytes`
        bool special = false;
    };

    std::string name;
    Pretokenizer pretokenizer;
    Normalization normalization = Normalization::none;
    bool ignore_merges = false;
    std::vector<Token> tokens;    // by id
    std::vector<Merge> merges;    // by rank
    std::vector<AddedToken> added;
    std::optional<std::int32_t> bos, eos;

    // Tables, made by finish().
    std::array<std::int32_t, 256> byte_ids{};  // -1 where the vocabulary lacks a byte
    MergeTable merge_table;
    std::unordered_map<std::string_view, std::int32_t> whole_pieces;  // only with ignore_merges; keys lie in `tokens`
    AddedTokenFinder raw_added, normalized_added;
    bool cuttable = true;         // text may be cut between a letter or digit and a space, and ids stay the same
    std::uint64_t hash = 0;

    TokenizerModel() = default;
    TokenizerModel(TokenizerModel&&) = default;
    TokenizerModel(const TokenizerModel&) = delete;

    void finish();
};

// data/tokenizer_json.cpp
TokenizerModel parse_tokenizer_json(std::string_view json, const std::string& name);
std::string tokenizer_json(const TokenizerModel& model);

}  // namespace keel
