// data/megatron_order.h: the samples of Megatron's GPTDataset and its blends, index for index, for runs that must see
// the same data in the same order. keel's own order (data/order.h) needs none of this, and a longer run never reorders
// its past.
//
// Document order: the sequences of E epochs, shuffled together, or (if the last epoch would give less than 80 % of an
// epoch's samples) those of E - 1 epochs and then those of the last. Sample order: seq_len + 1 tokens each, one token
// shared with the next. Shuffle order: the samples, shuffled in the same two parts. One generator, NumPy's, goes
// through all of it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/samples.h"

namespace keel {

struct MegatronIndices {
    std::vector<std::int32_t> documents;          // numbers of sequences, epoch after epoch
    std::vector<std::int32_t> position,
        offset;  // of each sample's first token: in `documents`, and in that sequence; one more
    std::vector<std::uint32_t> shuffle;           // which sample comes n-th
    std::int64_t epochs = 1;
    bool separate_last_epoch = false;
};

// `lengths` of sequences first…first + size; `samples` is how many are wanted (0: one epoch). `shuffled` false keeps
// all order.
MegatronIndices megatron_indices(std::span<const std::int32_t> lengths, std::int64_t first, std::int64_t seq_len,
                                 std::int64_t samples, std::uint32_t seed, bool shuffled = true);

// Draw i goes to the source that is furthest behind weight * i; the first of equals. 12 bytes per draw.
struct MegatronBlend {
    std::vector<std::int32_t> source;
    std::vector<std::int64_t> index;
};
MegatronBlend megatron_blend(std::span<const double> weights, std::int64_t draws);
// Each source exactly size times; of those not used up, the one furthest behind.
MegatronBlend megatron_blend_exhausting(std::span<const std::int64_t> sizes);

// How many samples of a source Megatron asks for, for `draws` of all.
std::int64_t megatron_request(double weight, std::int64_t draws);

class MegatronSamples : public Samples {
public:
    // Sequences [first, last) of those of all files, counted together.
    MegatronSamples(SourceFiles source, std::int64_t first, std::int64_t last, std::int64_t seq_len,
                    std::int64_t samples, std::uint32_t seed, bool shuffled);
    std::int64_t count() const override { return static_cast<std::int64_t>(indices_.shuffle.size()); }
    std::int64_t pieces(std::int64_t i, std::span<Piece> out) const override;
    std::int64_t max_pieces() const override { return seq_len_ + 1; }
    std::int64_t filled() const override { return count() * seq_len_; }
    const MegatronIndices& indices() const { return indices_; }

private:
    SourceFiles source_;
    std::vector<std::int64_t> ends_;  // running sums of sequences
    std::int64_t seq_len_;
    MegatronIndices indices_;
};

}  // namespace keel
