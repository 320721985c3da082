// The indices of Megatron's data sets, number for number, and what samples of them hold.
#include "data/megatron_order.h"

#include <gtest/gtest.h>

#include <numeric>

#include "data/dataset.h"
#include "data/loader.h"
#include "data/numpy_random.h"
#include "tests/data/helpers.h"

namespace keel {
namespace {

using Ids = std::vector<std::int32_t>;
using Numbers = std::vector<std::uint32_t>;

TEST(MegatronOrder, NumbersAndShufflesAreThoseOfNumPy) {
    NumpyRandom a(1234), b(42);
    for (const std::uint32_t word : {822569775u, 2137449171u, 2671936806u, 3512589365u, 1880026316u})
        EXPECT_EQ(a.bits(), word);
    for (const std::uint32_t word : {1608637542u, 3421126067u, 4083286876u}) EXPECT_EQ(b.bits(), word);
    const auto shuffled = [](std::uint32_t n, std::uint32_t seed) {
        Numbers all(n);
        std::iota(all.begin(), all.end(), 0u);
        NumpyRandom(seed).shuffle(std::span(all));
        return all;
    };
    EXPECT_EQ(shuffled(10, 0), (Numbers{2, 8, 4, 9, 1, 6, 7, 3, 0, 5}));
    EXPECT_EQ(shuffled(8, 1234), (Numbers{2, 1, 6, 0, 4, 5, 3, 7}));
}

std::string samples_of(const MegatronIndices& r) {
    std::string text;
    for (std::size_t i = 0; i < r.position.size(); ++i) text += concat("(", r.position[i], ",", r.offset[i], ")");
    return text;
}

TEST(MegatronOrder, IndicesAreEqualWithAndWithoutASeparateLastEpoch) {
    const std::vector<std::int32_t> lengths{5, 3, 7, 4};
    const auto make = [&](std::int64_t samples, std::uint32_t seed) {
        return megatron_indices(lengths, 0, 4, samples, seed);
    };
    const MegatronIndices four = make(4, 42), six = make(6, 42), nine = make(9, 42);
    EXPECT_EQ(four.epochs, 1);
    EXPECT_EQ(four.documents, (Ids{1, 3, 0, 2}));
    EXPECT_EQ(samples_of(four), "(0,0)(1,1)(2,1)(3,0)(3,4)");
    EXPECT_EQ(four.shuffle, (Numbers{1, 3, 0, 2}));
    EXPECT_EQ(six.epochs, 2);
    EXPECT_TRUE(six.separate_last_epoch);
    EXPECT_EQ(six.documents, (Ids{1, 3, 0, 2, 1, 3, 0, 2}));
    EXPECT_EQ(samples_of(six), "(0,0)(1,1)(2,1)(3,0)(3,4)(4,1)(5,2)(6,2)(7,1)(7,5)");
    EXPECT_EQ(six.shuffle, (Numbers{3, 0, 1, 2, 7, 5, 4, 8, 6}));
    EXPECT_EQ(nine.epochs, 2);
    EXPECT_FALSE(nine.separate_last_epoch);
    EXPECT_EQ(nine.documents, (Ids{1, 1, 0, 3, 2, 0, 3, 2}));
    EXPECT_EQ(samples_of(nine), "(0,0)(1,1)(2,2)(3,1)(4,1)(4,5)(5,2)(6,1)(7,1)(7,5)");
    EXPECT_EQ(nine.shuffle, (Numbers{4, 7, 0, 3, 5, 8, 2, 1, 6}));

    EXPECT_EQ(make(4, 1234).documents, (Ids{0, 1, 2, 3}));
    EXPECT_EQ(samples_of(make(4, 1234)), "(0,0)(0,4)(2,0)(2,4)(3,1)");
    EXPECT_EQ(make(4, 1234).shuffle, (Numbers{1, 2, 3, 0}));
    EXPECT_EQ(make(9, 1234).documents, (Ids{2, 1, 2, 0, 0, 1, 3, 3}));
    EXPECT_EQ(make(9, 1234).shuffle, (Numbers{6, 4, 0, 5, 3, 2, 8, 7, 1}));
    EXPECT_EQ(make(12, 1234).epochs, 3);
    EXPECT_FALSE(make(12, 1234).separate_last_epoch);
    EXPECT_EQ(make(12, 1234).shuffle, (Numbers{7, 11, 2, 3, 1, 9, 5, 4, 0, 8, 6, 10, 13, 12}));
}

// Token o of document d is 100 d + o.
std::string numbered(const TempFolder& temp, const std::string& name) {
    TokenFileInfo info;
    info.vocab_size = 1000;
    TokenFileWriter writer(temp / name, info);
    const std::vector<std::int32_t> lengths{5, 3, 7, 4};
    for (std::size_t d = 0; d < lengths.size(); ++d) {
        Ids ids(static_cast<std::size_t>(lengths[d]));
        std::iota(ids.begin(), ids.end(), static_cast<std::int32_t>(100 * d));
        writer.append(ids);
        writer.end_document();
    }
    writer.finish();
    return temp / name;
}

DatasetSpec megatron_spec(const std::string& path, std::int64_t samples) {
    DatasetSpec spec;
    spec.paths = {path};
    spec.seq_len = 4;
    spec.seed = 42;
    spec.megatron_order = true;
    spec.order_samples = samples;
    return spec;
}

Ids ids_of(const Dataset& data, std::int64_t sample) {
    std::vector<Piece> pieces(static_cast<std::size_t>(data.max_pieces()));
    const std::int64_t count = data.pieces(sample, pieces);
    Ids all;
    for (std::int64_t p = 0; p < count; ++p) {
        const Piece& piece = pieces[static_cast<std::size_t>(p)];
        Ids ids(static_cast<std::size_t>(piece.count));
        data.file(piece.file).read(piece.token, ids);
        all.insert(all.end(), ids.begin(), ids.end());
    }
    return all;
}

TEST(MegatronOrder, SamplesHoldTheTokensOfTheirPiecesAndEndWithTheOrder) {
    const TempFolder temp;
    const Dataset data(megatron_spec(numbered(temp, "a.tok"), 4));
    // The table lists samples by number; the shuffle order 1 3 0 2 says which comes when.
    const std::vector<Ids> table{
        {301, 302, 303, 0, 1}, {200, 201, 202, 203, 204}, {100, 101, 102, 300, 301}, {1, 2, 3, 4, 200}};
    for (std::int64_t n = 0; n < 4; ++n) EXPECT_EQ(ids_of(data, n), table[static_cast<std::size_t>(n)]) << n;
    EXPECT_SAYS(message_of([&] { ids_of(data, 4); }), "ends at sample 4");
    DatasetSpec in_order = megatron_spec(temp / "a.tok", 0);
    in_order.shuffle = false;
    EXPECT_EQ(ids_of(Dataset(in_order), 0), (Ids{0, 1, 2, 3, 4}));
}

TEST(MegatronOrder, PositionsAndMaskRestartWhereAPieceBegins) {
    const TempFolder temp;
    const Dataset data(megatron_spec(numbered(temp, "a.tok"), 4));
    Loader loader(data, {.max_count = 4});
    const Batch& b = loader.next(0, 4);
    const auto row = [&](View<const std::int32_t> v, std::int64_t r) {
        return Ids(v.data() + 4 * r, v.data() + 4 * r + 4);
    };
    EXPECT_EQ(row(b.ids, 0), (Ids{301, 302, 303, 0}));
    EXPECT_EQ(row(b.positions, 0), (Ids{0, 1, 2, 0}));
    EXPECT_EQ(row(b.labels, 0), (Ids{302, 303, -1, 1}));
    EXPECT_EQ(row(b.lo, 0), (Ids{0, 0, 0, 3}));
    EXPECT_EQ(row(b.positions, 3), (Ids{0, 1, 2, 3}));
    EXPECT_EQ(row(b.labels, 3), (Ids{2, 3, 4, -1}));  // the next token, 200, is of another document
}

TEST(MegatronOrder, BlendsTakeTheSourceFurthestBehind) {
    const auto draws = [](std::vector<double> weights, std::int64_t n) { return megatron_blend(weights, n); };
    EXPECT_EQ(draws({.5, .3, .2}, 12).source, (Ids{0, 1, 2, 0, 1, 0, 2, 0, 1, 0, 0, 1}));
    EXPECT_EQ(draws({.5, .3, .2}, 12).index, (std::vector<std::int64_t>{0, 0, 0, 1, 1, 2, 1, 3, 2, 4, 5, 3}));
    EXPECT_EQ(draws({.7, .3}, 12).source, (Ids{0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 0, 1}));
    EXPECT_EQ(draws({.001, .999}, 10).source, (Ids{1, 0, 1, 1, 1, 1, 1, 1, 1, 1}));
    EXPECT_EQ(megatron_blend_exhausting(std::vector<std::int64_t>{3, 1, 2}).source, (Ids{0, 2, 1, 0, 2, 0}));
    EXPECT_EQ(megatron_request(0.3, 1000), 302);  // ceil(300 * 1.005)
}

TEST(MegatronOrder, ABlendOfDataSetsGivesEachItsOwnOrder) {
    const TempFolder temp;
    DatasetSpec spec = megatron_spec(numbered(temp, "a.tok"), 8);
    spec.paths.push_back(numbered(temp, "b.tok"));
    spec.weights = {3, 1};
    const Dataset blend(spec);
    const Dataset a(megatron_spec(temp / "a.tok", megatron_request(0.75, 8))),
        b(megatron_spec(temp / "b.tok", megatron_request(0.25, 8)));
    const MegatronBlend draws = megatron_blend(std::vector<double>{.75, .25}, 8);
    for (std::size_t n = 0; n < 8; ++n)
        EXPECT_EQ(ids_of(blend, static_cast<std::int64_t>(n)), ids_of(draws.source[n] == 0 ? a : b, draws.index[n]))
            << n;
    EXPECT_EQ(blend.use(0, 8).samples, 6);
    EXPECT_DOUBLE_EQ(blend.weight(1), 0.25);
    spec.weights.clear();  // an epoch of each, mixed by size
    const Dataset mixed(spec);
    const Dataset one(megatron_spec(temp / "a.tok", 0));
    const MegatronBlend both = megatron_blend_exhausting(std::vector<std::int64_t>{4, 4});
    ASSERT_EQ(mixed.samples_per_epoch(), 8);
    for (std::size_t n = 0; n < 8; ++n)
        EXPECT_EQ(ids_of(mixed, static_cast<std::int64_t>(n)), ids_of(one, both.index[n])) << n;
    spec.order_samples = 9;
    EXPECT_SAYS(message_of([&] { Dataset data(spec); }), "one epoch of each source, 8 samples in all");
}

TEST(MegatronOrder, SplitsArePartsOfTheSequences) {
    const TempFolder temp;
    DatasetSpec spec = megatron_spec(numbered(temp, "a.tok"), 2);
    spec.split = {1, 1};  // two sequences of 5 and 3 tokens, then two of 7 and 4
    EXPECT_EQ(Dataset(spec).samples_per_epoch(), 3);  // 2 epochs of 8 tokens: (16 - 1) / 4
    spec.part = Part::valid, spec.shuffle = false;
    const Dataset valid(spec);
    EXPECT_EQ(valid.samples_per_epoch(), 2);
    EXPECT_EQ(ids_of(valid, 0), (Ids{200, 201, 202, 203, 204}));
    EXPECT_EQ(ids_of(valid, 1), (Ids{204, 205, 206, 300, 301}));
}

}  // namespace
}  // namespace keel
