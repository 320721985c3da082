// Packed samples: nothing is lost, nothing is cut that fits, little is padding, and padding is invisible.
#include "data/pack.h"

#include <gtest/gtest.h>

#include <map>

#include "data/dataset.h"
#include "data/loader.h"
#include "tests/data/helpers.h"

namespace keel {
namespace {

using Ids = std::vector<std::int32_t>;

TEST(Pack, EachLengthGoesWhereItLeavesTheLeastRoom) {
    // Longest first: 7 | 6 | 5 into a new row; 4 beside the 6 (room 4, not the 5's room 5); 3 beside the 7; 2 beside
    // the 5.
    const Packing p = best_fit({2, 7, 4, 5, 6, 3}, 10);
    EXPECT_EQ(p.rows, 3);
    EXPECT_EQ(p.row, (Ids{2, 0, 1, 2, 1, 0}));
    EXPECT_EQ(best_fit({}, 10).rows, 0);
    EXPECT_EQ(best_fit({10, 10}, 10).rows, 2);
}

TEST(Pack, IsNearTheLeastPossibleNumberOfRows) {
    std::vector<std::int32_t> lengths;
    std::int64_t sum = 0;
    const Random random(1, Purpose::test, "pack");
    for (std::uint64_t i = 0; i < 20000; ++i) {
        lengths.push_back(1 + static_cast<std::int32_t>(random.bits64(i) % (i % 3 == 0 ? 100 : 1000)));
        sum += lengths.back();
    }
    const Packing p = best_fit(lengths, 1001);
    std::vector<std::int64_t> used(static_cast<std::size_t>(p.rows), 0);
    for (std::size_t i = 0; i < lengths.size(); ++i) used[static_cast<std::size_t>(p.row[i])] += lengths[i];
    for (const std::int64_t u : used) EXPECT_LE(u, 1001);
    EXPECT_LE(p.rows, (sum + 1000) / 1001 * 11 / 9 + 1);  // what the heuristic guarantees
    EXPECT_LE(p.rows, (sum + 1000) / 1001 * 101 / 100);   // with so many short ones it does much better
}

DatasetSpec packed(const std::string& path, std::int64_t seq_len) {
    DatasetSpec spec;
    spec.paths = {path};
    spec.seq_len = seq_len;
    spec.pack = true;
    return spec;
}

TEST(Pack, EveryDocumentIsThereOnceAndOnlyLongOnesAreCut) {
    const TempFolder temp;
    std::vector<std::int64_t> lengths;
    const Random random(2, Purpose::test, "pack documents");
    for (std::uint64_t i = 0; i < 300; ++i) lengths.push_back(1 + static_cast<std::int64_t>(random.bits64(i) % 70));
    const Dataset data(packed(make_tokens(temp / "a.tok", lengths), 32));
    const TokenFile& file = data.file(0);
    std::map<std::int64_t, std::int64_t> seen;  // first token → tokens
    std::vector<Piece> pieces(static_cast<std::size_t>(data.max_pieces()));
    for (std::int64_t n = 0; n < data.samples_per_epoch(); ++n) {
        std::int64_t total = 0;
        const std::int64_t count = data.pieces(n, pieces);
        for (std::int64_t p = 0; p < count; ++p) {
            const Piece& piece = pieces[static_cast<std::size_t>(p)];
            EXPECT_TRUE(seen.emplace(piece.token, piece.count).second);
            total += piece.count;
        }
        EXPECT_LE(total, 33);
    }
    for (std::int64_t d = 0; d < file.documents(); ++d) {
        std::int64_t at = file.document_begin(d);
        const std::int64_t end = file.document_begin(d + 1);
        if (end - at <= 33) {
            EXPECT_EQ(seen[at], end - at) << d;
            continue;
        }
        while (seen[at] == 33 && at + 33 != end) at += 32;  // one token is shared, so that it is predicted
        EXPECT_EQ(at + seen[at], end) << d;
    }
    EXPECT_LT(data.padding(), 0.05);
    EXPECT_GE(data.padding(), 0);
}

TEST(Pack, PaddingPredictsNothingIsSeenByNobodyAndCountsNowhere) {
    const TempFolder temp;
    // Rows of 9 tokens: a document of 6 leaves room for that of 2, then one place is padding; and one of 9 fills its
    // row.
    DatasetSpec spec = packed(make_tokens(temp / "a.tok", {6, 9, 2}), 8);
    spec.shuffle = false;
    const Dataset data(spec);
    ASSERT_EQ(data.samples_per_epoch(), 2);
    Loader loader(data, {.max_count = 2});
    const Batch& b = loader.next(0, 2);
    const auto all = [](View<const std::int32_t> v) { return Ids(v.data(), v.data() + v.size()); };
    EXPECT_EQ(all(b.ids), (Ids{6, 7, 8, 9, 10, 11, 12, 13, 0, 1, 2, 3, 4, 5, 15, 16}));
    EXPECT_EQ(all(b.labels), (Ids{7, 8, 9, 10, 11, 12, 13, 14, 1, 2, 3, 4, 5, -1, 16, -1}));
    EXPECT_EQ(b.loss_tokens, 14);
    EXPECT_EQ(b.sum_len, 16);
    EXPECT_EQ(data.padding(), 0);
    spec.seq_len = 9;
    const Dataset loose(spec);
    Loader other(loose, {.max_count = 2, .window = 3});
    const Batch& c = other.next(0, 2);
    EXPECT_EQ(all(c.ids), (Ids{6, 7, 8, 9, 10, 11, 12, 13, 14, 0, 1, 2, 3, 4, 5, 15, 16, 0}));
    EXPECT_EQ(all(c.labels), (Ids{7, 8, 9, 10, 11, 12, 13, 14, -1, 1, 2, 3, 4, 5, -1, 16, -1, -1}));
    EXPECT_EQ(all(c.positions), (Ids{0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 2, 3, 4, 5, 0, 1, 0}));
    EXPECT_EQ(all(c.lo), (Ids{0, 0, 0, 1, 2, 3, 4, 5, 6, 9, 9, 9, 10, 11, 12, 15, 15, 17}));
    EXPECT_EQ(c.sum_len, 17);
    EXPECT_EQ(c.sum_len_sq, 81 + 36 + 4);
    EXPECT_DOUBLE_EQ(loose.padding(), 1.0 / 18);
}

TEST(Pack, SplitsArePartsOfTheDocumentsAndEpochsHoldEachRowOnce) {
    const TempFolder temp;
    DatasetSpec spec = packed(make_tokens(temp / "a.tok", std::vector<std::int64_t>(100, 10)), 19);
    spec.split = {9, 1};
    EXPECT_EQ(Dataset(spec).samples_per_epoch(), 45);
    spec.part = Part::valid;
    const Dataset valid(spec);
    ASSERT_EQ(valid.samples_per_epoch(), 5);
    std::map<std::int64_t, int> seen;
    std::vector<Piece> pieces(2);
    for (std::int64_t n = 0; n < 15; ++n)
        for (std::int64_t p = valid.pieces(n, pieces); p-- > 0;) ++seen[pieces[static_cast<std::size_t>(p)].token];
    EXPECT_EQ(seen.size(), 10u);
    for (const auto& [token, times] : seen) EXPECT_EQ(times, 3) << token;
    EXPECT_EQ(seen.begin()->first, 900);
}

}  // namespace
}  // namespace keel
