// What a model reads: labels, positions and mask at documents and rows; the same bits however they were asked for; and
// no allocation once the loader stands.
#include "data/loader.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/count_allocations.h"
#include "tests/data/helpers.h"

namespace keel {
namespace {

using Ids = std::vector<std::int32_t>;
Ids copy(View<const std::int32_t> v) { return {v.data(), v.data() + v.size()}; }

// Everything in a batch, for comparison.
struct Copy {
    Ids ids, labels, positions, lo;
    std::int64_t loss_tokens, sum_len, sum_len_sq;
    explicit Copy(const Batch& b)
        : ids(copy(b.ids)),
          labels(copy(b.labels)),
          positions(copy(b.positions)),
          lo(copy(b.lo)),
          loss_tokens(b.loss_tokens),
          sum_len(b.sum_len),
          sum_len_sq(b.sum_len_sq) {}
    bool operator==(const Copy&) const = default;
};

DatasetSpec ordered(const std::string& path, std::int64_t seq_len) {
    return {.paths = {path},
            .weights = {},
            .split = {1, 0, 0},
            .part = Part::train,
            .seq_len = seq_len,
            .shuffle = false,
            .seed = 0};
}

TEST(Loader, DocumentsStandAlone) {
    const TempFolder temp;
    // Tokens 0…12, documents [0,3) [3,4) [4,13); rows [0,6) and [6,12).
    const Dataset data(ordered(make_tokens(temp / "a.tok", {3, 1, 9}), 6));
    Loader loader(data, {.max_count = 2});
    const Batch& b = loader.next(0, 2);
    EXPECT_EQ(copy(b.ids), (Ids{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
    EXPECT_EQ(copy(b.labels), (Ids{1, 2, -1, -1, 5, 6, 7, 8, 9, 10, 11, 12}));
    EXPECT_EQ(copy(b.positions), (Ids{0, 1, 2, 0, 0, 1, 0, 1, 2, 3, 4, 5}));
    EXPECT_EQ(copy(b.lo), (Ids{0, 0, 0, 3, 4, 4, 6, 6, 6, 6, 6, 6}));
    EXPECT_EQ(b.loss_tokens, 10);
    EXPECT_EQ(b.sum_len, 12);
    EXPECT_EQ(b.sum_len_sq, 9 + 1 + 4 + 36);
    EXPECT_EQ(b.first_sample, 0);
    EXPECT_EQ(b.count, 2);
}

TEST(Loader, ADocumentThatEndsWithItsRowPredictsNothingThere) {
    const TempFolder temp;
    const Dataset data(ordered(make_tokens(temp / "a.tok", {4, 5}), 4));
    Loader loader(data, {.max_count = 1});
    EXPECT_EQ(copy(loader.next(0, 1).labels), (Ids{1, 2, 3, -1}));
    EXPECT_EQ(copy(loader.next(1, 1).labels), (Ids{5, 6, 7, 8}));
}

TEST(Loader, WithoutResetARowIsOneText) {
    const TempFolder temp;
    const Dataset data(ordered(make_tokens(temp / "a.tok", {3, 1, 9}), 6));
    Loader loader(data, {.max_count = 2, .window = 0, .reset_at_document = false});
    const Batch& b = loader.next(0, 2);
    EXPECT_EQ(copy(b.labels), (Ids{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}));
    EXPECT_EQ(copy(b.positions), (Ids{0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5}));
    EXPECT_EQ(copy(b.lo), (Ids{0, 0, 0, 0, 0, 0, 6, 6, 6, 6, 6, 6}));
    EXPECT_EQ(b.loss_tokens, 12);
    EXPECT_EQ(b.sum_len_sq, 72);
}

TEST(Loader, AWindowNarrowsTheMaskInsideDocumentsAndRows) {
    const TempFolder temp;
    const Dataset data(ordered(make_tokens(temp / "a.tok", {3, 1, 9}), 6));
    Loader loader(data, {.max_count = 2, .window = 2});
    EXPECT_EQ(copy(loader.next(0, 2).lo), (Ids{0, 0, 1, 3, 4, 4, 6, 6, 7, 8, 9, 10}));
}

TEST(Loader, PackedLengthsCountAsPackedWorkDoes) {
    // A row of documents of 2048, 1024 and 1024 tokens costs 37.5 % of a full row of 4096.
    const TempFolder temp;
    const Dataset data(ordered(make_tokens(temp / "a.tok", {2048, 1024, 1024, 1}), 4096));
    Loader loader(data, {.max_count = 1});
    const Batch& b = loader.next(0, 1);
    EXPECT_EQ(b.sum_len, 4096);
    EXPECT_EQ(static_cast<double>(b.sum_len_sq) / (4096.0 * 4096.0), 0.375);
}

struct Scene {
    TempFolder temp;
    DatasetSpec spec;
    Scene() {
        std::vector<std::int64_t> lengths;
        const Random random(4, Purpose::test, "loader");
        for (std::uint64_t i = 0; i < 60; ++i) lengths.push_back(1 + static_cast<std::int64_t>(random.bits64(i) % 40));
        spec.paths = {make_tokens(temp / "a.tok", lengths), make_tokens(temp / "b.tok", {500})};
        spec.weights = {0.7, 0.3};
        spec.seq_len = 16;
        spec.seed = 5;
    }
};

TEST(Loader, GivesTheSameBitsWithAndWithoutPrefetchAndFromAnySample) {
    const Scene scene;
    const Dataset data(scene.spec);
    Loader plain(data, {.max_count = 4, .window = 5, .reset_at_document = true, .prefetch = 0});
    std::vector<Copy> want;
    for (std::int64_t n = 0; n < 400; n += 4) want.emplace_back(plain.next(n, 4));
    for (const std::int64_t prefetch : {1, 2, 5}) {
        Loader ahead(data, {.max_count = 4, .window = 5, .reset_at_document = true, .prefetch = prefetch});
        for (std::int64_t n = 0; n < 400; n += 4) {
            const Copy got(ahead.next(n, 4));
            for (std::int64_t k = 1; k <= prefetch; ++k) ahead.hint(n + 4 * k, 4);
            ASSERT_EQ(got, want[static_cast<std::size_t>(n / 4)]) << n;
        }
    }
    // Started at sample 200, as after a resume; and asked in other pieces, as with another micro-batch.
    Loader resumed(data, {.max_count = 4, .window = 5});
    for (std::int64_t n = 200; n < 400; n += 4)
        ASSERT_EQ(Copy(resumed.next(n, 4)), want[static_cast<std::size_t>(n / 4)]);
    for (std::int64_t n = 0; n < 400; ++n) {
        const Ids& ids = want[static_cast<std::size_t>(n / 4)].ids;
        const auto row = ids.begin() + n % 4 * 16;
        ASSERT_EQ(copy(resumed.next(n, 1).ids), Ids(row, row + 16));
    }
}

TEST(Loader, WrongHintsCostTimeOnly) {
    const Scene scene;
    const Dataset data(scene.spec);
    Loader plain(data, {.max_count = 4, .window = 0, .reset_at_document = true, .prefetch = 0}),
        misled(data, {.max_count = 4});
    const Random random(6, Purpose::test, "hints");
    for (std::uint64_t i = 0; i < 2000; ++i) {
        const auto x = random.bits(i);
        const std::int64_t first = x[0] % 50, count = 1 + x[1] % 4;
        for (std::uint32_t k = 0; k < x[2] % 4; ++k)
            misled.hint(static_cast<std::int64_t>((x[3] >> (8 * k)) % 50), 1 + k);
        ASSERT_EQ(Copy(misled.next(first, count)), Copy(plain.next(first, count)));
    }
}

TEST(Loader, TwoEpochsHoldEverySampleTwiceWhateverTheRestarts) {
    const TempFolder temp;
    DatasetSpec spec = ordered(make_tokens(temp / "a.tok", {16 * 37 + 1}), 16);
    spec.shuffle = true;
    const Dataset data(spec);
    std::vector<int> seen(37, 0);
    std::int64_t n = 0;
    for (const std::int64_t stop : {11, 36, 38, 74}) {  // a new loader after each stop; 37 is the border of the epochs
        Loader loader(data, {.max_count = 3});
        while (n < stop) {
            const std::int64_t count = std::min<std::int64_t>(3, stop - n);
            const Batch& b = loader.next(n, count);
            for (std::int64_t row = 0; row < count; ++row) ++seen[static_cast<std::size_t>(b.ids[row * 16] / 16)];
            n += count;
        }
    }
    EXPECT_EQ(seen, std::vector<int>(37, 2));
}

TEST(Loader, AllocatesNothingOnceItStands) {
    const Scene scene;
    const Dataset data(scene.spec);
    Loader loader(data, {.max_count = 4, .window = 8});
    loader.next(0, 4);
    const long before = allocations();
    for (std::int64_t n = 0; n < 4000; n += 4) {
        loader.next(n, 4);
        loader.hint(n + 4, 4);
        loader.hint(n + 8, 3);
    }
    EXPECT_EQ(allocations() - before, 0);
}

TEST(Loader, AnErrorMetWhilePrefetchingIsThrownByTheNextThatAsksForIt) {
    const TempFolder temp;
    std::string bytes = read_file(make_tokens(temp / "a.tok", {100000}, 60000));
    bytes[256 + 2 * 33333] ^= 1;  // in the block of tokens 32768…65535
    DatasetSpec spec = ordered(temp.write("a.tok", bytes), 10);
    const Dataset data(spec);
    Loader loader(data, {.max_count = 1});
    for (int again = 0; again < 2; ++again) {
        loader.hint(4000, 1);
        loader.hint(19, 1);
        EXPECT_EQ(loader.next(19, 1).ids[0], 190);
        EXPECT_SAYS(message_of([&] { loader.next(4000, 1); }), "tokens 32768…65536");
        EXPECT_EQ(loader.next(7000, 1).ids[0], 10000);
    }
}

TEST(Loader, RefusesMoreThanItWasBuiltFor) {
    const TempFolder temp;
    const Dataset data(ordered(make_tokens(temp / "a.tok", {100}), 10));
    Loader loader(data, {.max_count = 2});
    EXPECT_SAYS(message_of([&] { loader.next(0, 3); }), "at most 2");
    EXPECT_SAYS(message_of([&] { loader.next(-1, 1); }), "from 0 on");
    EXPECT_SAYS(message_of([&] { loader.hint(0, 0); }), "at most 2");
    EXPECT_SAYS(message_of([&] { Loader(data, {.max_count = 1 << 30}); }), "micro_batch");
}

}  // namespace
}  // namespace keel
