#include "engine/parallel/slices.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace keel {

ContextSlices::ContextSlices(std::int64_t length, std::int64_t count) : seq_len(length), ranks(count) {
    if (ranks < 1) fail_usage("--parallel.cp is ", ranks, "; it must be at least 1");
    if (ranks > 1 && seq_len % (2 * ranks) != 0)
        fail_usage("--data.seq_len ", seq_len, " is not a multiple of ", 2 * ranks,
                   ", two chunks for each of --parallel.cp ", ranks, "; ",
                   std::max(seq_len / (2 * ranks), std::int64_t{1}) * 2 * ranks, " is");
}

std::int64_t ContextSlices::to_global(std::int64_t rank, std::int64_t local) const {
    const std::int64_t half = local / chunk_len();
    return range(rank, static_cast<int>(half)).begin + local - half * chunk_len();
}

ContextSlices::Place ContextSlices::to_local(std::int64_t global) const {
    const std::int64_t c = global / chunk_len(), rest = global - c * chunk_len();
    return c < ranks ? Place{c, rest} : Place{2 * ranks - 1 - c, chunk_len() + rest};
}

void cut_slice(const ContextSlices& s, std::int64_t rank, View<const std::int32_t> full, View<std::int32_t> slice) {
    const std::int64_t rows = full.size() / s.seq_len;
    if (full.size() != rows * s.seq_len || slice.size() != rows * s.local_len())
        fail("context slice: ", full.size(), " tokens of rows of ", s.seq_len, " do not make ", slice.size(),
             ", rows of ", s.local_len());
    std::int32_t* out = slice.data();
    for (std::int64_t row = 0; row < rows; ++row)
        for (int half = 0; half < s.halves(); ++half) {
            const TokenRange r = s.range(rank, half);
            out = std::copy(full.data() + row * s.seq_len + r.begin, full.data() + row * s.seq_len + r.end, out);
        }
}

std::int64_t visible_pairs(const ContextSlices& s, std::int64_t rank, View<const std::int32_t> lo) {
    if (lo.size() != s.seq_len) fail("context slice: lo has ", lo.size(), " tokens, a row has ", s.seq_len);
    std::int64_t pairs = 0;
    for (int half = 0; half < s.halves(); ++half)
        for (std::int64_t i = s.range(rank, half).begin; i < s.range(rank, half).end; ++i)
            pairs += i - lo.data()[i] + 1;
    return pairs;
}

std::vector<TokenRange> document_slices(const std::vector<std::int64_t>& begins, std::int64_t ranks,
                                        std::int64_t rank) {
    std::vector<TokenRange> out;
    for (std::size_t d = 0; d + 1 < begins.size(); ++d) {
        const std::int64_t length = begins[d + 1] - begins[d];
        if (length < 1 || (ranks > 1 && length % (2 * ranks) != 0))
            fail("context slice: document ", d, " has ", length, " tokens, not a multiple of ", 2 * ranks,
                 "; pad documents to that, or cut whole rows");
        const ContextSlices of_document(length, ranks);
        for (int half = 0; half < of_document.halves(); ++half) {
            const TokenRange r = of_document.range(rank, half);
            out.push_back({begins[d] + r.begin, begins[d] + r.end});
        }
    }
    return out;
}

std::int64_t context_ranks_for(std::int64_t length, std::int64_t most_per_rank) {
    if (most_per_rank < 1) fail("context slice: at most ", most_per_rank, " tokens per rank; give at least 1");
    std::int64_t ranks = 1;
    while (length > ranks * most_per_rank) ranks *= 2;
    return ranks;
}

}  // namespace keel
