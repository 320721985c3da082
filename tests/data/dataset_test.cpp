#include "data/dataset.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/data/helpers.h"

namespace keel {
namespace {

// Where a sample of consecutive tokens begins.
Piece place(const Dataset& data, std::int64_t sample) {
    std::vector<Piece> pieces(static_cast<std::size_t>(data.max_pieces()));
    EXPECT_EQ(data.pieces(sample, pieces), 1);
    EXPECT_EQ(pieces[0].count, data.seq_len() + 1);
    return pieces[0];
}

std::set<std::pair<std::int64_t, std::int64_t>> places(const Dataset& data, std::int64_t first, std::int64_t count) {
    std::set<std::pair<std::int64_t, std::int64_t>> out;
    for (std::int64_t n = first; n < first + count; ++n) {
        const Piece at = place(data, n);
        out.emplace(at.file, at.token);
    }
    return out;
}

TEST(Dataset, EveryEpochVisitsEverySampleOfEveryFileOnce) {
    const TempFolder temp;
    DatasetSpec spec;
    spec.paths = {make_tokens(temp / "a.tok", {101}), make_tokens(temp / "b.tok", {33, 40}),
                  make_tokens(temp / "c.tok", {5})};
    spec.seq_len = 10;
    for (const bool shuffle : {false, true}) {
        spec.shuffle = shuffle;
        const Dataset data(spec);
        EXPECT_EQ(data.samples_per_epoch(), 10 + 7 + 0);
        EXPECT_EQ(data.samples(2), 0);
        const auto all = places(data, 0, 17);
        EXPECT_EQ(all.size(), 17u);
        EXPECT_EQ(places(data, 17, 17), all);
        EXPECT_EQ(places(data, 17 * 1000, 17), all);
        bool same = true;
        for (std::int64_t n = 0; n < 17; ++n) same = same && place(data, n).token == place(data, n + 17).token;
        EXPECT_EQ(same, !shuffle);
    }
}

TEST(Dataset, PartsOfASplitAreDisjointContiguousAndComplete) {
    const TempFolder temp;
    const std::string path = make_tokens(temp / "a.tok", {1001});
    std::set<std::pair<std::int64_t, std::int64_t>> all;
    std::vector<std::int64_t> sizes;
    for (const Part part : {Part::train, Part::valid, Part::test}) {
        DatasetSpec spec{.paths = {path},
                         .weights = {},
                         .split = {8, 1.5, 0.5},
                         .part = part,
                         .seq_len = 10,
                         .shuffle = true,
                         .seed = 3};
        const Dataset data(spec);
        const auto part_places = places(data, 0, data.samples_per_epoch());
        sizes.push_back(data.samples_per_epoch());
        EXPECT_EQ(part_places.rbegin()->second - part_places.begin()->second, (data.samples_per_epoch() - 1) * 10);
        for (const auto& p : part_places) EXPECT_TRUE(all.insert(p).second);
    }
    EXPECT_EQ(sizes, (std::vector<std::int64_t>{80, 15, 5}));
    EXPECT_EQ(all.size(), 100u);
}

TEST(Dataset, SplitBordersAreRoundedHalfToEvenAndAnEmptyPartIsAnError) {
    const TempFolder temp;
    const auto size = [&](std::int64_t samples, std::vector<double> split, Part part) {
        const std::string path = make_tokens(temp / concat(samples, ".tok"), {samples * 4 + 1});
        return Dataset({.paths = {path},
                        .weights = {},
                        .split = split,
                        .part = part,
                        .seq_len = 4,
                        .shuffle = false,
                        .seed = 0})
            .samples_per_epoch();
    };
    EXPECT_EQ(size(1000, {969, 30, 1}, Part::train), 969);
    EXPECT_EQ(size(1000, {969, 30, 1}, Part::valid), 30);
    EXPECT_EQ(size(1000, {969, 30, 1}, Part::test), 1);
    EXPECT_EQ(size(10, {969, 30, 1}, Part::train), 10);
    EXPECT_EQ(size(5, {1, 1}, Part::train), 2);
    EXPECT_EQ(size(5, {1, 1}, Part::valid), 3);
    EXPECT_SAYS(message_of([&] { size(10, {969, 30, 1}, Part::valid); }), "validation part");
    EXPECT_SAYS(message_of([&] { size(10, {1, 0, 0}, Part::valid); }), "validation part");
    EXPECT_SAYS(message_of([&] { size(10, {-1, 2}, Part::train); }), "-1");
    EXPECT_SAYS(message_of([&] { size(10, {0, 0}, Part::train); }), "all 0");
    EXPECT_SAYS(message_of([&] { size(10, {1, 1, 1, 1}, Part::train); }), "4 numbers");
}

TEST(Dataset, ABlendKeepsItsWeightsAtEveryPrefixAndEachFileItsEpochs) {
    const TempFolder temp;
    DatasetSpec spec;
    spec.paths = {make_tokens(temp / "a.tok", {701}), make_tokens(temp / "b.tok", {51})};
    spec.weights = {0.7, 0.3};
    spec.seq_len = 10;
    const Dataset data(spec);
    std::map<std::int64_t, std::vector<std::int64_t>> drawn;
    for (std::int64_t n = 0; n < 1000; ++n) {
        const Piece at = place(data, n);
        drawn[at.file].push_back(at.token);
        EXPECT_LT(std::abs(static_cast<double>(drawn[0].size()) - 0.7 * static_cast<double>(n + 1)), 1);
    }
    for (std::size_t epoch = 0; epoch + 1 < 300 / 5; ++epoch) {
        const auto begin = drawn[1].begin() + static_cast<std::ptrdiff_t>(epoch) * 5;
        EXPECT_EQ(std::set<std::int64_t>(begin, begin + 5).size(), 5u) << epoch;
    }
}

TEST(Dataset, FilesOfABlendAreShuffledIndependently) {
    const TempFolder temp;
    DatasetSpec spec;
    spec.paths = {make_tokens(temp / "a.tok", {1001}), make_tokens(temp / "b.tok", {1001})};
    spec.weights = {1, 1};
    spec.seq_len = 10;
    const Dataset data(spec);
    std::vector<std::int64_t> drawn[2];
    for (std::int64_t n = 0; n < 200; ++n) drawn[place(data, n).file].push_back(place(data, n).token);
    EXPECT_EQ(drawn[0].size(), 100u);
    EXPECT_NE(drawn[0], drawn[1]);
}

TEST(Dataset, FilesOfTwoTokenizersAreNotMixedAndBothAreNamed) {
    const TempFolder temp;
    DatasetSpec spec;
    spec.seq_len = 4;
    spec.paths = {make_tokens(temp / "a.tok", {50}, 1000, 1), make_tokens(temp / "b.tok", {50}, 1000, 2)};
    const std::string message = message_of([&] { Dataset data(spec); });
    EXPECT_SAYS(message, "a.tok has tokenizer 0000000000000001");
    EXPECT_SAYS(message, "b.tok has 0000000000000002");
    spec.paths = {temp / "a.tok", make_tokens(temp / "c.tok", {50}, 1001, 1)};
    EXPECT_SAYS(message_of([&] { Dataset data(spec); }), "1001");
    spec.paths = {temp / "a.tok"};
    const Dataset data(spec);
    data.check_tokenizer(1, "one.json");
    const std::string wrong = message_of([&] { data.check_tokenizer(0xabc, "other.json"); });
    EXPECT_SAYS(wrong, "a.tok");
    EXPECT_SAYS(wrong, "other.json is 0000000000000abc");
}

TEST(Dataset, RefusesWhatCannotMakeASample) {
    const TempFolder temp;
    DatasetSpec spec;
    spec.paths = {make_tokens(temp / "a.tok", {10})};
    spec.seq_len = 10;
    EXPECT_SAYS(message_of([&] { Dataset data(spec); }), "10 tokens make 0 samples");
    spec.seq_len = 0;
    EXPECT_SAYS(message_of([&] { Dataset data(spec); }), "data.seq_len is 0");
    spec.seq_len = 9;
    EXPECT_EQ(Dataset(spec).samples_per_epoch(), 1);
    EXPECT_SAYS(message_of([&] { place(Dataset(spec), -1); }), "sample -1");
    spec.paths.clear();
    EXPECT_SAYS(message_of([&] { Dataset data(spec); }), "no token files");
}

TEST(Dataset, SourcesAreReadWithAndWithoutWeights) {
    DatasetSpec spec;
    parse_sources({"0.7", "books.tok", "3e-1", "code.tok"}, spec);
    EXPECT_EQ(spec.paths, (std::vector<std::string>{"books.tok", "code.tok"}));
    EXPECT_EQ(spec.weights, (std::vector<double>{0.7, 0.3}));
    parse_sources({"books.tok", "code.tok"}, spec);
    EXPECT_TRUE(spec.weights.empty());
    EXPECT_SAYS(message_of([&] { parse_sources({"0.7", "a", "b"}, spec); }), "2 token files but 1 weights");
    EXPECT_SAYS(message_of([&] { parse_sources({"0.7", "0.3", "b"}, spec); }), "two weights in a row");
    EXPECT_SAYS(message_of([&] { parse_sources({"a", "0.3"}, spec); }), "no file follows");
}

TEST(Dataset, AFileThatIsNamedTwiceIsRefused) {
    const TempFolder temp;
    DatasetSpec spec;
    const std::string path = make_tokens(temp / "a.tok", {101}), link = temp / "b.tok";
    std::filesystem::create_symlink(path, link);
    spec.seq_len = 10;
    for (const std::string& again : {path, link}) {
        spec.paths = {path, again};
        EXPECT_SAYS(message_of([&] { Dataset{spec}; }), "is named twice");
    }
}

}  // namespace
}  // namespace keel
