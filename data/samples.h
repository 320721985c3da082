// data/samples.h: a source of training data (one or several token files) cut into samples, each a list of pieces.
//
// A sample has at most seq_len + 1 tokens: those at 0…seq_len-1 are read by the model, those at 1…seq_len are
// predicted. Which samples there are is decided here; in which order they come, by data/dataset.h.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "data/token_file.h"

namespace keel {

// Consecutive tokens of one file. They may run over the borders of documents; a border of pieces always is one.
struct Piece {
    std::int64_t file, token, count;
};

// The files of a source, by their numbers in the data set, in order.
struct SourceFiles {
    std::vector<const TokenFile*> files;
    std::int64_t first = 0;  // number of files[0]
};


class Samples {
public:
    virtual ~Samples() = default;
    virtual std::int64_t count() const = 0;
    // Writes the pieces of sample i; returns how many. No allocation.
    virtual std::int64_t pieces(std::int64_t i, std::span<Piece> out) const = 0;
    virtual std::int64_t max_pieces() const = 0;
    // Tokens there are to read in all samples together, of count() * seq_len places; the rest is padding.
    virtual std::int64_t filled() const = 0;
};

// seq_len + 1 consecutive tokens, seq_len apart, whatever the documents; the last few tokens of a file that fill no
// sample are left out. Samples [first, last) of each file.
class StridedSamples : public Samples {
public:
    struct Range {
        std::int64_t first, last;
    };
    StridedSamples(SourceFiles source, std::vector<Range> ranges, std::int64_t seq_len);
    std::int64_t count() const override { return ends_.empty() ? 0 : ends_.back(); }
    std::int64_t pieces(std::int64_t i, std::span<Piece> out) const override;
    std::int64_t max_pieces() const override { return 1; }
    std::int64_t filled() const override { return count() * seq_len_; }

private:
    SourceFiles source_;
    std::vector<Range> ranges_;
    std::vector<std::int64_t> ends_;  // running sums
    std::int64_t seq_len_;
};

}  // namespace keel
