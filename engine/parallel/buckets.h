// engine/parallel/buckets.h: where parameters lie in a gradient buffer that data-parallel ranks reduce bucket by
// bucket, and which part of each bucket a rank owns.
//
// Parameters are laid out in reverse order of registration, so that those whose gradients are ready first in backward
// (the last layers) fill the first bucket, which can then be reduced while backward goes on. A bucket is a contiguous
// range, cut into `ranks` equal contiguous shards: after a reduce-scatter rank r holds the sums of shard r of every
// bucket, keeps optimizer state for it alone, and its updated parameters are gathered back. Everything is counted in
// elements; the index map is the same for gradients and parameters. The worked example is in docs/parallelism.md.
//
// Padding elements belong to no parameter. They are reduced with the rest and must be kept at zero.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace keel {

struct BucketParam {
    std::int64_t numel;
    bool shared = false;  // an embedding whose gradient another stage also has a part of: a bucket of its own
};

struct BucketRule {
    std::int64_t ranks = 1;        // that share the gradients: dp * cp
    std::int64_t bucket_size = 0;  // a bucket is closed once it holds this many elements; 0 makes a single bucket
    bool sharded = true;           // buckets are cut into shards: parameters and buckets are aligned
};

// The size for --parallel.bucket 0: large enough to use the wires well when shards get small with many ranks.
std::int64_t default_bucket_size(std::int64_t ranks);  // max(40 M, 1 M * ranks)

struct Bucket {
    std::int64_t begin, end;         // elements of the buffer, padding included
    std::int64_t used;               // elements from begin to the end of its last parameter
    int first_param, params;         // parameters first_param, first_param - 1, ... : `params` of them
    std::int64_t size() const { return end - begin; }
    bool operator==(const Bucket&) const = default;
};

struct BucketLayout {
    std::int64_t ranks = 1, size = 0;       // size: elements of the whole buffer
    std::vector<std::int64_t> offset;       // of each parameter, in order of registration
    std::vector<std::int64_t> numel;        // of each parameter
    std::vector<int> bucket_of;             // of each parameter
    std::vector<Bucket> buckets;            // in the order of the buffer, which is the order they become ready in

    std::int64_t shard_size(int bucket) const { return buckets[static_cast<std::size_t>(bucket)].size() / ranks; }
    std::int64_t shard_begin(int bucket, std::int64_t rank) const {
        return buckets[static_cast<std::size_t>(bucket)].begin + rank * shard_size(bucket);
    }
    std::int64_t owned() const { return size / ranks; }  // elements a rank owns: all its shards, padding included
};

// `params` in order of registration. Offsets are multiples of 64 elements and buckets of lcm(ranks, 128) if sharded.
BucketLayout bucket_layout(std::span<const BucketParam> params, const BucketRule& rule);

// A range of one parameter that a rank owns. All ranges of a rank, in the order of the buffer, cover its shards but for
// padding; those of all ranks cover every parameter exactly once.
struct ShardPiece {
    int param, bucket;
    std::int64_t size;
    std::int64_t in_buffer;  // where it begins in the whole buffer,
    std::int64_t in_bucket;  // in its bucket,
    std::int64_t in_shard;   // in the rank's shard of that bucket,
    std::int64_t in_owned;   // in the rank's shards of all buckets, one after the other: the optimizer's own buffers,
    std::int64_t in_param;   // and in the flattened parameter
    bool operator==(const ShardPiece&) const = default;
};
std::vector<ShardPiece> shard_pieces(const BucketLayout& layout, std::int64_t rank);

}  // namespace keel
