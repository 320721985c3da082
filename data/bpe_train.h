// data/bpe_train.h: learns a byte-level BPE vocabulary from text. Deterministic: the same pieces and counts, in any order and
// split in any way, give the same file.
//
// Ids: special tokens from 0 in the order given, then the 256 bytes in the order of their spelling (byte_alphabet), then
// one id per merge. Each step joins the most frequent adjacent pair; of equally frequent ones the pair with the lower left
// id, then the lower right id. Counts are kept up to date incrementally, so a step costs what it changes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/tokenizer.h"
#include "data/tokenizer_model.h"

namespace keel {

struct BpeTrainOptions {
    std::int64_t vocab_size = 0;                          // special tokens and bytes included
    std::vector<std::string> special = {"<|endoftext|>"};  // printable ASCII
    std::int64_t min_count = 2;                           // a pair seen less often is not joined
};

class BpeTrainer {
public:
    explicit BpeTrainer(const Pretokenizer& how = {}) : how_(how) {}

    void add(std::string_view text);  // valid UTF-8; counts its pieces
    std::int64_t distinct_pieces() const { return static_cast<std::int64_t>(counts_.size()); }

    // Throws Error if no vocabulary can be made so, whatever the text.
    static void check(const BpeTrainOptions& options);

    // May stop below vocab_size when no pair occurs min_count times. `progress` gets (merges so far, merges wanted).
    Tokenizer train(const BpeTrainOptions& options,
                    const std::function<void(std::int64_t, std::int64_t)>& progress = {}) const;

private:
    struct Hash {
        using is_transparent = void;
        std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
    };
    Pretokenizer how_;
    std::unordered_map<std::string, std::int64_t, Hash, std::equal_to<>> counts_;
};

}  // namespace keel
