// Context slices: which tokens of a row each rank works on, and that cutting loses and changes nothing.
#include "engine/parallel/slices.h"

#include <gtest/gtest.h>

#include <set>

#include "kernels/base/error.h"

using namespace keel;

namespace {

std::vector<std::int64_t> positions(std::int64_t seq_len, std::int64_t ranks, std::int64_t rank) {
    const ContextSlices slices(seq_len, ranks);
    std::vector<std::int64_t> out;
    for (std::int64_t i = 0; i < slices.local_len(); ++i) out.push_back(slices.to_global(rank, i));
    return out;
}

std::vector<std::int64_t> tokens(const std::vector<TokenRange>& ranges) {
    std::vector<std::int64_t> out;
    for (const TokenRange& r : ranges)
        for (std::int64_t i = r.begin; i < r.end; ++i) out.push_back(i);
    return out;
}

using Tokens = std::vector<std::int64_t>;

}  // namespace

TEST(ContextSlices, TakeOneEarlyAndOneLateChunk) {
    EXPECT_EQ(positions(8, 2, 0), (Tokens{0, 1, 6, 7}));
    EXPECT_EQ(positions(8, 2, 1), (Tokens{2, 3, 4, 5}));
    EXPECT_EQ(positions(16, 4, 0), (Tokens{0, 1, 14, 15}));
    EXPECT_EQ(positions(16, 4, 1), (Tokens{2, 3, 12, 13}));
    EXPECT_EQ(positions(16, 4, 2), (Tokens{4, 5, 10, 11}));
    EXPECT_EQ(positions(16, 4, 3), (Tokens{6, 7, 8, 9}));
    EXPECT_EQ(positions(5, 1, 0), (Tokens{0, 1, 2, 3, 4}));
    const ContextSlices slices(16, 4);
    EXPECT_EQ(slices.range(1, 0), (TokenRange{2, 4}));
    EXPECT_EQ(slices.range(1, 1), (TokenRange{12, 14}));
}

TEST(ContextSlices, AreBalancedUnderACausalMask) {
    const std::vector<std::int32_t> from_start(8, 0);
    const View<const std::int32_t> lo(from_start.data(), {8});
    EXPECT_EQ(visible_pairs({8, 2}, 0, lo), 18);
    EXPECT_EQ(visible_pairs({8, 2}, 1, lo), 18);
    const std::vector<std::int32_t> two_documents = {0, 0, 0, 0, 0, 5, 5, 5};  // 5 tokens and 3
    EXPECT_EQ(visible_pairs({8, 2}, 0, View<const std::int32_t>(two_documents.data(), {8})), 1 + 2 + 2 + 3);
    EXPECT_EQ(visible_pairs({8, 2}, 1, View<const std::int32_t>(two_documents.data(), {8})), 3 + 4 + 5 + 1);
}

TEST(ContextSlices, MapBackAndForth) {
    for (const std::int64_t ranks : {1, 2, 3, 4, 8}) {
        const ContextSlices slices(48, ranks);
        std::set<std::int64_t> seen;
        for (std::int64_t rank = 0; rank < ranks; ++rank)
            for (std::int64_t i = 0; i < slices.local_len(); ++i) {
                const std::int64_t global = slices.to_global(rank, i);
                seen.insert(global);
                EXPECT_EQ(slices.to_local(global), (ContextSlices::Place{rank, i}));
            }
        EXPECT_EQ(seen.size(), 48u);
        EXPECT_EQ(*seen.rbegin(), 47);
    }
}

TEST(ContextSlices, AreCutUnchangedFromEveryRow) {
    // Two rows of 8; documents of 5 and 3 tokens, then one of 8. The cut at token 4 goes through a document: its
    // positions go on, its lo stays where it begins, and the label of token 3 (the end of a chunk) is still token 4.
    const std::vector<std::int32_t> ids = {10, 11, 12, 13, 14, 15, 16, 17, 20, 21, 22, 23, 24, 25, 26, 27};
    const std::vector<std::int32_t> labels = {11, 12, 13, 14, -1, 16, 17, -1, 21, 22, 23, 24, 25, 26, 27, -1};
    const std::vector<std::int32_t> where = {0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 3, 4, 5, 6, 7};
    const std::vector<std::int32_t> lo = {0, 0, 0, 0, 0, 5, 5, 5, 8, 8, 8, 8, 8, 8, 8, 8};
    const auto cut = [](const std::vector<std::int32_t>& full, std::int64_t rank) {
        std::vector<std::int32_t> out(8);
        cut_slice({8, 2}, rank, View<const std::int32_t>(full.data(), {16}), View<std::int32_t>(out.data(), {8}));
        return out;
    };
    using Ints = std::vector<std::int32_t>;
    EXPECT_EQ(cut(ids, 0), (Ints{10, 11, 16, 17, 20, 21, 26, 27}));
    EXPECT_EQ(cut(ids, 1), (Ints{12, 13, 14, 15, 22, 23, 24, 25}));
    EXPECT_EQ(cut(labels, 0), (Ints{11, 12, 17, -1, 21, 22, 27, -1}));
    EXPECT_EQ(cut(labels, 1), (Ints{13, 14, -1, 16, 23, 24, 25, 26}));
    EXPECT_EQ(cut(where, 0), (Ints{0, 1, 1, 2, 0, 1, 6, 7}));
    EXPECT_EQ(cut(where, 1), (Ints{2, 3, 4, 0, 2, 3, 4, 5}));
    EXPECT_EQ(cut(lo, 0), (Ints{0, 0, 5, 5, 8, 8, 8, 8}));
    EXPECT_EQ(cut(lo, 1), (Ints{0, 0, 0, 5, 8, 8, 8, 8}));
}

TEST(ContextSlices, RefuseRowsThatDoNotDivide) {
    try {
        ContextSlices(12, 4);
        FAIL() << "accepted";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::usage);
        EXPECT_EQ(std::string(error.what()),
                  "--data.seq_len 12 is not a multiple of 8, two chunks for each of --parallel.cp 4; 8 is");
    }
    EXPECT_THROW(ContextSlices(8, 0), Error);
    std::vector<std::int32_t> data(16);
    EXPECT_THROW(
        cut_slice({8, 2}, 0, View<const std::int32_t>(data.data(), {12}), View<std::int32_t>(data.data(), {6})), Error);
}

TEST(DocumentSlices, CutEachDocumentOnItsOwn) {
    const std::vector<std::int64_t> begins = {0, 8, 12};
    EXPECT_EQ(tokens(document_slices(begins, 2, 0)), (Tokens{0, 1, 6, 7, 8, 11}));
    EXPECT_EQ(tokens(document_slices(begins, 2, 1)), (Tokens{2, 3, 4, 5, 9, 10}));
    EXPECT_THROW(document_slices({0, 8, 14}, 2, 0), Error);  // 6 tokens are not a multiple of 4
    EXPECT_EQ(tokens(document_slices({0, 3}, 1, 0)), (Tokens{0, 1, 2}));
}

TEST(DocumentSlices, GiveLongSequencesMoreRanks) {
    EXPECT_EQ(context_ranks_for(3000, 4096), 1);
    EXPECT_EQ(context_ranks_for(5000, 4096), 2);
    EXPECT_EQ(context_ranks_for(9000, 4096), 4);
    EXPECT_EQ(context_ranks_for(33000, 4096), 16);
}
