// data/bpe_train.h: learns a byte-level BPE vocabulary from text. Deterministic: the same pieces and counts, in any order and
// split in any way, on any number of threads, give the same file. (Once pieces are forgotten, data/piece_counts.h, the order
// of texts counts too.)
//
// Ids: special tokens from 0 in the order given, then the 256 bytes in the order of their spelling (byte_alphabet), then
// one id per merge. Each step joins the most frequent adjacent pair; of equally frequent ones the pair with the lower left
// id, then the lower right id. Counts are kept up to date incrementally, so a step costs what it changes.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/piece_counts.h"
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
    explicit BpeTrainer(const Pretokenizer& how = {}) : how_(how), counts_(how) {}
    BpeTrainer(const Pretokenizer& how, std::int64_t most_pieces) : how_(how), counts_(how, most_pieces) {}

    void add(std::string_view text) { counts_.add(text); }  // valid UTF-8; counts its pieces
    void add(std::span<const std::string> texts, Stream& stream) { counts_.add(texts, stream); }  // on all its threads
    const PieceCounts& counts() const { return counts_; }
    std::int64_t distinct_pieces() const { return counts_.distinct(); }

    // Throws Error if no vocabulary can be made so, whatever the text.
    static void check(const BpeTrainOptions& options);

    // May stop below vocab_size when no pair occurs min_count times. `progress` gets (merges so far, merges wanted).
    Tokenizer train(const BpeTrainOptions& options,
                    const std::function<void(std::int64_t, std::int64_t)>& progress = {}) const;

private:
    Pretokenizer how_;
    PieceCounts counts_;
};

}  // namespace keel
