// data/tokenizer_model.h: what a tokenizer's files say, checked, with the tables encoding needs. Made once, then constant.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/bpe.h"
#include "data/byte_symbols.h"
#include "data/char_bpe.h"
#include "data/cut_table.h"
#include "data/normalizer.h"
#include "data/pretokenize.h"
#include "data/split.h"
#include "data/token_decoder.h"
#include "data/tokenizer.h"
#include "data/trie.h"
#include "data/unigram.h"
#include "data/utf8.h"
#include "data/whole_pieces.h"

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
    std::vector<AddedToken> tokens_;
    Trie trie_;                 // to indices of tokens_
    int only_first_byte_ = -1;  // if all begin with the same byte
};

struct TokenizerModel {
    enum class Kind : std::uint8_t { byte_bpe, char_bpe, unigram };
    enum class Cutting : std::uint8_t { scanner, steps };  // by `pretokenizer` or by `steps`; no steps: text is one piece

    struct Token {
        std::string bytes = {};   // what it decodes to within a text
        std::string text = {};    // its name in the file, if the model is no byte-level one
        double score = 0;         // unigram
        bool exists = false;      // ids may have holes
        bool in_vocab = false;    // of the model, not only an added token
        bool spelt = false;       // `bytes` spelt in the byte alphabet is the name in the file
        bool special = false;
        bool is_byte = false;     // <0x41>
        bool silent = false;      // decodes to nothing (SentencePiece's control symbols)
    };

    std::string name;
    std::string format = "tokenizer.json";  // what it was read from, for people
    Kind kind = Kind::byte_bpe;
    Cutting cutting = Cutting::scanner;
    Pretokenizer pretokenizer;
    std::vector<SplitStep> steps;
    bool spelled_pieces = false;  // byte_bpe: the steps spell bytes before they end
    std::vector<NormalizerStep> normalizer;
    bool ignore_merges = false;
    std::vector<Token> tokens;    // by id
    std::vector<Merge> merges;    // by rank; empty where tokens are ranked themselves
    std::vector<AddedToken> added;
    std::optional<std::int32_t> bos, eos;
    std::optional<std::int32_t> unknown;
    bool byte_fallback = false, fuse_unknown = false;
    DecodeRules decode;
    // The file to hand on, where tokenizer_json() cannot say it all; "" where it can.
    std::string source_name, source;

    // Tables. byte_symbols and what follows are made by finish(), what stands before by the reader.
    CharBpe char_bpe;
    Unigram unigram;
    MergeTable merge_table;
    bool ranked = false;          // merge_table and cuts were made by the reader: merges_of_tokens
    CutTable cuts;
    ByteSymbols byte_symbols;     // only of byte_bpe
    WholePieces whole_pieces;     // with ignore_merges, what merging would not give anyway; the texts lie in `tokens`
    AddedTokenFinder raw_added, normalized_added;
    bool cuttable = true;         // text may be cut between a letter or digit and a space, and ids stay the same
    std::uint64_t hash = 0;

    TokenizerModel() = default;
    TokenizerModel(TokenizerModel&&) = default;
    TokenizerModel(const TokenizerModel&) = delete;

    void finish();
};

// data/tokenizer_json.cpp, data/tokenizer_json_write.cpp
TokenizerModel parse_tokenizer_json(std::string_view json, const std::string& name);
std::string tokenizer_json(const TokenizerModel& model);
// data/sentencepiece.cpp: a tokenizer.model
TokenizerModel parse_sentencepiece(std::string_view file, const std::string& name);
// data/tiktoken.cpp: lines of base64, a space and a rank
TokenizerModel parse_tiktoken(std::string_view file, const std::string& name);
bool looks_like_tiktoken(std::string_view file);
void set_tiktoken_pattern(TokenizerModel& model, const std::string& pattern);
// Adds a special token that text may spell out, or makes one of a token that is there. `id` may be new, or the token's own.
void add_special_token(TokenizerModel& model, const std::string& content, std::int32_t id, bool special = true);
// data/tokenizer_folder.cpp: the file or the files of a folder, and the names of special tokens beside them
TokenizerModel read_tokenizer(const std::filesystem::path& path);

}  // namespace keel
