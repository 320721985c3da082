// engine/parallel/slices.h: which tokens of a row each context-parallel rank works on.
//
// A row of seq_len tokens is cut into 2 * ranks equal chunks, and rank r works on chunks r and 2 * ranks - 1 - r: its
// two halves. Under a causal mask a token costs as much as it sees, so one early and one late chunk make all ranks
// equal. Each half is a contiguous range of queries, as kernels/attention.h wants them: query_offset is where the half
// begins.
//
// Every rank loads the whole row and cuts ids, labels, positions and lo out of it, unchanged. That is all that packed
// documents need: a label is the next token of the full row, also at the end of a slice; positions count from the
// document's first token, also where that lies on another rank; and lo names keys of the full row, which is how keys
// are gathered (natural order). Nothing is computed again from a slice.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "kernels/base/view.h"

namespace keel {

struct TokenRange {
    std::int64_t begin, end;  // tokens of a row
    std::int64_t size() const { return end - begin; }
    bool operator==(const TokenRange&) const = default;
};

struct ContextSlices {
    std::int64_t seq_len, ranks;

    // Refuses a seq_len that is not a multiple of 2 * ranks, by a message that names --data.seq_len and --parallel.cp.
    ContextSlices(std::int64_t seq_len, std::int64_t ranks);

    std::int64_t chunk_len() const { return ranks == 1 ? seq_len : seq_len / (2 * ranks); }
    std::int64_t local_len() const { return seq_len / ranks; }  // tokens per row and rank
    int halves() const { return ranks == 1 ? 1 : 2; }           // one rank has the whole row in one piece

    // Which chunk of the row `half` of `rank` is.
    std::int64_t chunk(std::int64_t rank, int half) const { return half == 0 ? rank : 2 * ranks - 1 - rank; }
    TokenRange range(std::int64_t rank, int half) const {
        return {chunk(rank, half) * chunk_len(), (chunk(rank, half) + 1) * chunk_len()};
    }
    // Where a rank's tokens are in the row, and back: for putting gathered slices into natural order.
    std::int64_t to_global(std::int64_t rank, std::int64_t local) const;
    struct Place {
        std::int64_t rank, local;
        bool operator==(const Place&) const = default;
    };
    Place to_local(std::int64_t global) const;
};

// The slice of `rank` of every row: full is [rows * seq_len], slice is [rows * local_len()], written. For ids, labels,
// positions and lo alike. Allocates nothing.
void cut_slice(const ContextSlices& slices, std::int64_t rank, View<const std::int32_t> full, View<std::int32_t> slice);

// (query, key) pairs that the mask lo[i] <= k <= i leaves to a rank: what its attention costs. `lo` of one full row.
std::int64_t visible_pairs(const ContextSlices& slices, std::int64_t rank, View<const std::int32_t> lo);

// --- The other ways to cut

// Document by document: each is cut zig-zag on its own, so that ranks are balanced whatever is packed. `begins` are the
// documents' first tokens, ascending from 0, with the row's length last; each is a multiple of 2 * ranks long.
std::vector<TokenRange> document_slices(const std::vector<std::int64_t>& begins, std::int64_t ranks, std::int64_t rank);

// The fewest ranks, a power of two, that leave at most `most_per_rank` tokens of a sequence to each.
std::int64_t context_ranks_for(std::int64_t length, std::int64_t most_per_rank);

}  // namespace keel
