#include "engine/parallel/buckets.h"

#include <algorithm>
#include <numeric>

#include "kernels/base/error.h"

namespace keel {
namespace {

constexpr std::int64_t param_alignment = 64;  // 128 bytes of bf16: a vector or a cache line never spans two parameters
constexpr std::int64_t bucket_alignment = 128;  // times what makes equal shards

std::int64_t round_up(std::int64_t n, std::int64_t step) { return (n + step - 1) / step * step; }

}  // namespace

std::int64_t default_bucket_size(std::int64_t ranks) {
    return std::max<std::int64_t>(40'000'000, 1'000'000 * ranks);
}

BucketLayout bucket_layout(std::span<const BucketParam> params, const BucketRule& rule) {
    if (rule.ranks < 1) fail("buckets: ", rule.ranks, " ranks share the gradients; there is at least 1");
    if (rule.bucket_size < 0) fail_usage("--parallel.bucket is ", rule.bucket_size, "; give elements, or 0 to choose");
    const std::int64_t pad = rule.sharded ? std::lcm(rule.ranks, bucket_alignment) : 1;
    const std::size_t n = params.size();
    BucketLayout out;
    out.ranks = rule.sharded ? rule.ranks : 1;
    out.offset.resize(n);
    out.numel.resize(n);
    out.bucket_of.resize(n);
    Bucket open{.begin = 0, .end = 0, .used = 0, .first_param = static_cast<int>(n) - 1, .params = 0};
    const auto close = [&] {
        open.end = round_up(open.begin + open.used, pad);
        out.buckets.push_back(open);
        open = {.begin = open.end, .end = 0, .used = 0, .first_param = open.first_param - open.params, .params = 0};
    };
    for (std::size_t i = n; i-- > 0;) {
        if (params[i].numel < 1) fail("buckets: parameter ", i, " has ", params[i].numel, " elements");
        if (params[i].shared && open.params > 0) close();
        const std::int64_t at =
            rule.sharded ? round_up(open.begin + open.used, param_alignment) : open.begin + open.used;
        out.offset[i] = at;
        out.numel[i] = params[i].numel;
        out.bucket_of[i] = static_cast<int>(out.buckets.size());
        open.used = at + params[i].numel - open.begin;
        ++open.params;
        if ((rule.bucket_size > 0 && open.used >= rule.bucket_size) || params[i].shared) close();
    }
    if (open.params > 0) close();
    out.size = open.begin;
    return out;
}

std::vector<ShardPiece> shard_pieces(const BucketLayout& layout, std::int64_t rank) {
    if (rank < 0 || rank >= layout.ranks)
        fail("shards: rank ", rank, " is not one of the ", layout.ranks, " that share the gradients");
    std::vector<ShardPiece> out;
    std::int64_t owned = 0;
    for (int b = 0; b < static_cast<int>(layout.buckets.size()); ++b) {
        const Bucket& bucket = layout.buckets[static_cast<std::size_t>(b)];
        const std::int64_t begin = layout.shard_begin(b, rank), end = begin + layout.shard_size(b);
        for (int p = bucket.first_param; p > bucket.first_param - bucket.params; --p) {
            const std::int64_t offset = layout.offset[static_cast<std::size_t>(p)];
            const std::int64_t from = std::max(begin, offset);
            const std::int64_t to = std::min(end, offset + layout.numel[static_cast<std::size_t>(p)]);
            if (from >= to) continue;
            out.push_back({.param = p,
                           .bucket = b,
                           .size = to - from,
                           .in_buffer = from,
                           .in_bucket = from - bucket.begin,
                           .in_shard = from - begin,
                           .in_owned = owned + from - begin,
                           .in_param = from - offset});
        }
        owned += end - begin;
    }
    return out;
}

}  // namespace keel
