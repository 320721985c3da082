// Gradient buckets and shards: where parameters lie and who owns what, against examples worked out by hand.
#include "engine/parallel/buckets.h"

#include <gtest/gtest.h>

#include "kernels/base/error.h"

using namespace keel;

namespace {

// a, b, c, d in order of registration.
const std::vector<BucketParam> four = {{10000}, {300}, {50000}, {128}};

std::vector<BucketParam> many_params() {
    std::vector<BucketParam> out;
    std::uint64_t x = 1;
    for (int i = 0; i < 60; ++i) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        out.push_back({static_cast<std::int64_t>(1 + (x >> 33) % 5000), i % 29 == 0});
    }
    return out;
}

}  // namespace

TEST(Buckets, LieInReverseOrderOfRegistrationAlignedAndPadded) {
    const BucketLayout layout = bucket_layout(four, {.ranks = 2, .bucket_size = 20000});
    EXPECT_EQ(layout.offset, (std::vector<std::int64_t>{50496, 50176, 128, 0}));
    EXPECT_EQ(layout.bucket_of, (std::vector{1, 1, 0, 0}));
    EXPECT_EQ(layout.buckets, (std::vector<Bucket>{{0, 50176, 50128, 3, 2}, {50176, 60544, 10320, 1, 2}}));
    EXPECT_EQ(layout.size, 60544);
    EXPECT_EQ(layout.owned(), 30272);
}

TEST(Buckets, WithoutShardsNothingIsPadded) {
    const BucketLayout layout = bucket_layout(four, {.ranks = 2, .bucket_size = 20000, .sharded = false});
    EXPECT_EQ(layout.offset, (std::vector<std::int64_t>{50428, 50128, 128, 0}));
    EXPECT_EQ(layout.buckets, (std::vector<Bucket>{{0, 50128, 50128, 3, 2}, {50128, 60428, 10300, 1, 2}}));
    EXPECT_EQ(layout.ranks, 1);
}

TEST(Buckets, WithoutASizeThereIsOne) {
    const BucketLayout layout = bucket_layout(four, {.ranks = 4});
    EXPECT_EQ(layout.buckets, (std::vector<Bucket>{{0, 60544, 60496, 3, 4}}));
}

TEST(Buckets, ASharedEmbeddingIsAlone) {
    const std::vector<BucketParam> params = {{1000, true}, {100}, {70}};
    const BucketLayout layout = bucket_layout(params, {.ranks = 2, .bucket_size = 1'000'000'000});
    EXPECT_EQ(layout.offset, (std::vector<std::int64_t>{256, 128, 0}));
    EXPECT_EQ(layout.buckets, (std::vector<Bucket>{{0, 256, 228, 2, 2}, {256, 1280, 1000, 0, 1}}));
}

TEST(Buckets, TheDefaultSizeGrowsWithTheRanks) {
    EXPECT_EQ(default_bucket_size(8), 40'000'000);
    EXPECT_EQ(default_bucket_size(40), 40'000'000);
    EXPECT_EQ(default_bucket_size(64), 64'000'000);
    EXPECT_EQ(default_bucket_size(512), 512'000'000);
}

TEST(Shards, MapEveryRangeOfTheExample) {
    const BucketLayout layout = bucket_layout(four, {.ranks = 2, .bucket_size = 20000});
    // param, bucket, size, in_buffer, in_bucket, in_shard, in_owned, in_param
    EXPECT_EQ(shard_pieces(layout, 0), (std::vector<ShardPiece>{{3, 0, 128, 0, 0, 0, 0, 0},
                                                                {2, 0, 24960, 128, 128, 128, 128, 0},
                                                                {1, 1, 300, 50176, 0, 0, 25088, 0},
                                                                {0, 1, 4864, 50496, 320, 320, 25408, 0}}));
    EXPECT_EQ(shard_pieces(layout, 1), (std::vector<ShardPiece>{{2, 0, 25040, 25088, 25088, 0, 0, 24960},
                                                                {0, 1, 5136, 55360, 5184, 0, 25088, 4864}}));
    EXPECT_EQ(layout.shard_begin(0, 1), 25088);
    EXPECT_EQ(layout.shard_begin(1, 1), 55360);
    EXPECT_EQ(layout.shard_size(1), 5184);
}

TEST(Shards, OfAllRanksCoverEveryParameterOnceForEveryLayout) {
    const std::vector<BucketParam> params = many_params();
    for (const std::int64_t ranks : {1, 2, 3, 5, 8, 48})
        for (const std::int64_t bucket_size : {0, 1, 4000, 20000}) {
            const BucketLayout layout = bucket_layout(params, {.ranks = ranks, .bucket_size = bucket_size});
            std::int64_t at = 0;
            for (const Bucket& b : layout.buckets) {
                ASSERT_EQ(b.begin, at);
                ASSERT_EQ(b.size() % ranks, 0);
                ASSERT_EQ(b.begin % 128, 0);
                at = b.end;
            }
            ASSERT_EQ(at, layout.size);
            std::vector<std::vector<int>> seen;
            for (const BucketParam& p : params) seen.emplace_back(static_cast<std::size_t>(p.numel), 0);
            for (std::int64_t rank = 0; rank < ranks; ++rank) {
                std::int64_t owned = -1;
                for (const ShardPiece& s : shard_pieces(layout, rank)) {
                    const auto p = static_cast<std::size_t>(s.param);
                    ASSERT_EQ(layout.offset[p] + s.in_param, s.in_buffer);
                    ASSERT_EQ(layout.offset[p] % 64, 0);
                    ASSERT_EQ(layout.bucket_of[p], s.bucket);
                    ASSERT_EQ(layout.buckets[static_cast<std::size_t>(s.bucket)].begin + s.in_bucket, s.in_buffer);
                    ASSERT_EQ(layout.shard_begin(s.bucket, rank) + s.in_shard, s.in_buffer);
                    ASSERT_LE(s.in_shard + s.size, layout.shard_size(s.bucket));
                    ASSERT_GT(s.in_owned, owned);
                    owned = s.in_owned + s.size - 1;
                    ASSERT_LT(owned, layout.owned());
                    for (std::int64_t i = 0; i < s.size; ++i) ++seen[p][static_cast<std::size_t>(s.in_param + i)];
                }
            }
            for (const auto& counts : seen)
                for (const int n : counts) ASSERT_EQ(n, 1);
        }
}

TEST(Buckets, RefuseWhatCannotBe) {
    EXPECT_THROW(bucket_layout(four, {.ranks = 0}), Error);
    EXPECT_THROW(bucket_layout(std::vector<BucketParam>{{0}}, {.ranks = 1}), Error);
    EXPECT_THROW(shard_pieces(bucket_layout(four, {.ranks = 2}), 2), Error);
    try {
        bucket_layout(four, {.ranks = 2, .bucket_size = -5});
        FAIL() << "accepted";
    } catch (const Error& error) {
        EXPECT_EQ(std::string(error.what()), "--parallel.bucket is -5; give elements, or 0 to choose");
    }
}
