// data/pack.h: whole documents packed into samples by best fit, so that few are cut and little is padding.
//
// A document of at most seq_len + 1 tokens is never cut. A longer one is cut into pieces of seq_len + 1 tokens, each
// sharing one token with the next, so that every token but the first is predicted once. Pieces are placed from the
// longest to the shortest, each where it leaves the least room (best fit decreasing: Johnson 1974; for language models
// Ding et al. 2024, "Fewer Truncations Improve Language Modeling"). The same files and seq_len give the same samples.
// Memory: 16 bytes per piece and 8 per row; while packing, three times that.
#pragma once

#include <cstdint>
#include <vector>

#include "data/samples.h"

namespace keel {

// Which row each length goes to; rows count from 0 in the order they are begun. Lengths are 1…capacity.
struct Packing {
    std::vector<std::int32_t> row;  // of each length
    std::int32_t rows = 0;
};
Packing best_fit(const std::vector<std::int32_t>& lengths, std::int32_t capacity);

class PackedSamples : public Samples {
public:
    // Documents [first, last) of those of all files, counted together.
    PackedSamples(SourceFiles source, std::int64_t first, std::int64_t last, std::int64_t seq_len);
    std::int64_t count() const override { return static_cast<std::int64_t>(begin_.size()) - 1; }
    std::int64_t pieces(std::int64_t i, std::span<Piece> out) const override;
    std::int64_t max_pieces() const override { return max_pieces_; }
    std::int64_t filled() const override { return filled_; }

private:
    struct Stored {
        std::int64_t token;
        std::int32_t count, file;
    };
    std::vector<Stored> pieces_;      // row after row
    std::vector<std::int64_t> begin_; // of each row, and the end
    std::int64_t max_pieces_ = 0, filled_ = 0;
};

}  // namespace keel
