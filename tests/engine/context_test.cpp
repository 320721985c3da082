// Attention whose keys lie with several ranks, gathered or going around a ring, against the double reference of whole
// rows; and what goes around: which ranges meet, how many bytes, in which order they are summed.
#include "engine/parallel/context.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "comm/threads.h"
#include "engine/model/model.h"
#include "kernels/attention.h"
#include "tests/engine/tiny.h"
#include "tests/kernels/attention_reference.h"

namespace keel {
namespace {

using attention_test::Mask;
using attention_test::nan_filled;
using attention_test::Outputs;
using attention_test::Problem;
using attention_test::Result;
using attention_test::Tensors;

// Rows of one length, each with a mask of its own.
struct Rows {
    std::int64_t heads, kv_heads, head_dim, seq_len;
    std::vector<Mask> masks;
    std::int64_t rows() const { return static_cast<std::int64_t>(masks.size()); }
    Problem row(std::int64_t r) const {
        return Problem{heads, kv_heads, head_dim, seq_len, 0, 0, masks[static_cast<std::size_t>(r)]}.turning(rotary);
    }
    std::int64_t rotary;
};
const Rows batches[] = {
    {2, 2, 32, 64, {Mask::causal}, 32},
    {4, 2, 20, 72, {Mask::documents, Mask::window}, 20},
    {3, 1, 48, 144, {Mask::singles, Mask::documents, Mask::causal}, 36},
    {2, 1, 16, 296, {Mask::wild, Mask::window}, 16},
};

template <class T>
std::vector<Result<T>> whole_rows(const Rows& batch) {
    std::vector<Result<T>> rows;
    for (std::int64_t r = 0; r < batch.rows(); ++r) {
        Tensors<T> in(batch.row(r));
        for (auto* x : {&in.q, &in.kv, &in.dy})  // no two rows are the same
            for (T& value : *x) value = T(static_cast<float>(value) * (1 - 0.125f * static_cast<float>(r)));
        rows.push_back({std::move(in), Outputs<T>(batch.row(r))});
    }
    return rows;
}

template <class T>
View<T> matrix(std::vector<T>& x, std::int64_t rows, std::int64_t columns) {
    return View<T>(x.data(), {rows, columns});
}

// Everything a rank has and is lent; what it must not read before it has written it is NaN.
template <class T>
struct Rank {
    std::int64_t n, q_width, kv_width, width;
    std::vector<T> qkv, dqkv, y, dy;
    std::vector<std::int32_t> lo, at;
    std::vector<float> lse;
    std::vector<std::byte> scratch;

    Rank(const Rows& b, const ContextSlices& slices)
        : n(b.rows() * slices.local_len()),
          q_width(b.heads * b.head_dim),
          kv_width(b.kv_heads * b.head_dim),
          width(q_width + 2 * kv_width),
          qkv(nan_filled<T>(n * width)),
          dqkv(qkv),
          y(nan_filled<T>(n * q_width)),
          dy(y),
          lo(static_cast<std::size_t>(n)),
          at(lo),
          lse(nan_filled<float>(b.heads * n)),
          scratch(static_cast<std::size_t>(
                      attention_scratch_bytes(slices.chunk_len(), b.heads, b.seq_len, b.kv_heads, b.head_dim)),
                  std::byte{0xff}) {}
    View<T> q(std::vector<T>& x) { return matrix(x, n, width).columns(0, q_width); }
    View<T> k(std::vector<T>& x) { return matrix(x, n, width).columns(q_width, kv_width); }
    View<T> v(std::vector<T>& x) { return matrix(x, n, width).columns(q_width + kv_width, kv_width); }
};

template <class T>
struct Lent {
    std::vector<std::vector<T>> elements;
    std::vector<std::vector<float>> floats;
    View<T> take(std::int64_t rows, std::int64_t columns) {
        return matrix(elements.emplace_back(nan_filled<T>(rows * columns)), rows, columns);
    }
    View<float> sums(std::int64_t rows, std::int64_t columns) {
        return matrix(floats.emplace_back(nan_filled<float>(rows * columns)), rows, columns);
    }

    ContextBuffers<T> buffers(bool ring, const Rows& b, const ContextSlices& slices) {
        const std::int64_t n = b.rows() * slices.local_len(), all = b.rows() * b.seq_len, q = b.heads * b.head_dim,
                           kv = b.kv_heads * b.head_dim;
        if (!ring) {
            const auto whole = [&] { return take(all, kv); };
            return GatherBuffers<T>{whole(), whole(), whole(), whole(), whole(), whole()};
        }
        const std::int64_t chunk = slices.chunk_len();
        RingBuffers<T> r{.slices = take(4 * n, kv),
                         .part = take(chunk, q),
                         .sum = {},
                         .part_lse = sums(b.heads, chunk),
                         .dslices = sums(6 * n, kv),
                         .part_dk = take(chunk, kv),
                         .part_dv = take(chunk, kv)};
        if (!std::is_same_v<T, float>) r.sum = sums(n, q);
        return r;
    }
};

// Calls part(row, first local token, first token of the row, count).
template <class Part>
void for_parts(const Rows& b, const ContextSlices& slices, std::int64_t rank, Part part) {
    for (std::int64_t row = 0; row < b.rows(); ++row)
        for (int half = 0; half < slices.halves(); ++half)
            part(row, row * slices.local_len() + half * slices.chunk_len(), slices.range(rank, half).begin,
                 slices.chunk_len());
}
template <class T>
void copy(View<T> to, std::int64_t at, View<T> from, std::int64_t first, std::int64_t rows) {
    for (std::int64_t i = 0; i < rows; ++i)
        std::memcpy(to.row(at + i), from.row(first + i), static_cast<std::size_t>(from.dim(1)) * sizeof(T));
}

// Forward and backward on `ranks` threads; results in whole rows, and what each rank sent. `changed`: a token of every row that
// has another query, key and value than usual.
template <class T>
std::vector<Result<T>> run(const Rows& b, int ranks, bool ring, int threads = 1,
                           std::vector<Traffic>* traffic = nullptr, std::int64_t changed = -1) {
    std::vector<Result<T>> whole = whole_rows<T>(b);
    for (Result<T>& row : whole)
        for (const View<T>& x : {row.in.q_view(), row.in.k_view(), row.in.v_view()})
            for (std::int64_t i = 0; changed >= 0 && i < x.dim(1); ++i)
                x.row(changed)[i] = T(0.5f - 2 * static_cast<float>(x.row(changed)[i]));
    if (traffic) traffic->resize(static_cast<std::size_t>(2 * ranks));
    const ContextSlices slices(b.seq_len, ranks);
    run_threads(ranks, {.deadline_s = 60}, [&](World& world) {
        std::vector<int> members;
        for (int r = 0; r < ranks; ++r) members.push_back(r);
        const auto group = world.group("cp", members);
        Stream stream(threads);
        Rank<T> rank(b, slices);
        Lent<T> lent;
        for_parts(b, slices, world.rank(),
                  [&](std::int64_t row, std::int64_t at, std::int64_t first, std::int64_t count) {
                      Tensors<T>& in = whole[static_cast<std::size_t>(row)].in;
                      copy(rank.q(rank.qkv), at, in.q_view(), first, count),
                          copy(rank.k(rank.qkv), at, in.k_view(), first, count);
                      copy(rank.v(rank.qkv), at, in.v_view(), first, count);
                      copy(matrix(rank.dy, rank.n, rank.q_width), at, in.dy_view(), first, count);
                      std::copy_n(in.lo.data() + first, count, rank.lo.data() + at);
                      std::copy_n(in.at.data() + first, count, rank.at.data() + at);
                  });
        const ContextParallel cp{*group, slices, b.rows()};
        const View<T> y = matrix(rank.y, rank.n, rank.q_width);
        const View<const std::int32_t> lo(rank.lo.data(), {rank.n});
        const View<float> lse(rank.lse.data(), {b.heads, rank.n});
        context_forward<T>(stream, cp, lent.buffers(ring, b, slices),
                           {.y = y,
                            .lse = lse,
                            .q = rank.q(rank.qkv),
                            .k = rank.k(rank.qkv),
                            .v = rank.v(rank.qkv),
                            .lo = lo,
                            .head_dim = b.head_dim,
                            .scale = b.row(0).scale()});
        if (traffic) (*traffic)[static_cast<std::size_t>(2 * world.rank())] = group->traffic();
        context_backward<T>(
            stream, cp, lent.buffers(ring, b, slices),
            {.dq = rank.q(rank.dqkv),
             .dk = rank.k(rank.dqkv),
             .dv = rank.v(rank.dqkv),
             .scratch = View<std::byte>(rank.scratch.data(), {static_cast<std::int64_t>(rank.scratch.size())}),
             .dy = matrix(rank.dy, rank.n, rank.q_width),
             .y = y,
             .lse = lse,
             .q = rank.q(rank.qkv),
             .k = rank.k(rank.qkv),
             .v = rank.v(rank.qkv),
             .lo = lo,
             .rope = {whole[0].in.table_view(), View<const std::int32_t>(rank.at.data(), {rank.n})},
             .head_dim = b.head_dim,
             .scale = b.row(0).scale()});
        if (traffic) (*traffic)[static_cast<std::size_t>(2 * world.rank() + 1)] = group->traffic();
        for_parts(
            b, slices, world.rank(), [&](std::int64_t row, std::int64_t at, std::int64_t first, std::int64_t count) {
                Outputs<T>& out = whole[static_cast<std::size_t>(row)].out;  // every rank has rows of its own in it
                copy(out.y_view(), first, y, at, count), copy(out.dq_view(), first, rank.q(rank.dqkv), at, count);
                copy(out.dk_view(), first, rank.k(rank.dqkv), at, count),
                    copy(out.dv_view(), first, rank.v(rank.dqkv), at, count);
                const View<float> part(rank.lse.data() + b.heads * at, {b.heads, count});
                for (std::int64_t h = 0; h < b.heads; ++h)
                    std::copy_n(part.row(h), count, out.lse.data() + h * b.seq_len + first);
            });
    });
    return whole;
}

// Keys come in at most 2 * ranks parts, and a key's gradient is the sum of at most as many; gathered, it is rounded once more
// when it turns back.
template <class T>
void check(bool ring) {
    for (const Rows& batch : batches)
        for (const int ranks : {2, 4}) {
            const auto rows = run<T>(batch, ranks, ring);
            for (std::int64_t r = 0; r < batch.rows(); ++r) {
                attention_test::expect_right(batch.row(r), rows[static_cast<std::size_t>(r)], 2 * ranks, !ring);
                if (::testing::Test::HasFailure()) FAIL() << "row " << r << " on " << ranks << " ranks";
            }
        }
}

TEST(Context, GatheredKeysGiveTheAttentionOfWholeRowsInFloat) { check<float>(false); }
TEST(Context, GatheredKeysGiveTheAttentionOfWholeRowsInBf16) { check<bf16>(false); }
TEST(Context, KeysThatGoAroundGiveTheAttentionOfWholeRowsInFloat) { check<float>(true); }
TEST(Context, KeysThatGoAroundGiveTheAttentionOfWholeRowsInBf16) { check<bf16>(true); }

TEST(Context, EveryRunAndEveryNumberOfThreadsGivesTheSameBits) {
    for (const bool ring : {false, true}) {
        const auto first = run<bf16>(batches[1], 4, ring), again = run<bf16>(batches[1], 4, ring),
                   threads = run<bf16>(batches[1], 4, ring, 2);
        for (std::size_t r = 0; r < first.size(); ++r)
            EXPECT_TRUE(first[r].same_bits(again[r]) && first[r].same_bits(threads[r]))
                << "ring " << ring << ", row " << r;
    }
}

// What a query does not see does not reach it, on whichever rank it lies: earlier queries and other documents keep their bits,
// also where the document is cut between ranks.
TEST(Context, AQueryFeelsNoLaterTokenAndNoOtherDocument) {
    for (const bool ring : {false, true})
        for (const int ranks : {2, 4})
            for (const std::int64_t changed : {std::int64_t{3}, std::int64_t{36}, std::int64_t{70}}) {
                const Rows& batch = batches[1];
                const auto before = run<bf16>(batch, ranks, ring), after = run<bf16>(batch, ranks, ring, 1, nullptr, changed);
                for (std::size_t r = 0; r < before.size(); ++r)
                    for (std::int64_t i = 0; i < batch.seq_len; ++i) {
                        Outputs<bf16> was = before[r].out, is = after[r].out;
                        const auto bytes = static_cast<std::size_t>(batch.heads * batch.head_dim) * sizeof(bf16);
                        const bool same = std::memcmp(was.y_view().row(i), is.y_view().row(i), bytes) == 0;
                        const bool seen = before[r].in.lo[static_cast<std::size_t>(i)] <= changed && changed <= i;
                        if (!seen) {
                            EXPECT_TRUE(same) << "query " << i << " felt token " << changed << ", ring " << ring << ", ranks " << ranks;
                        } else if (i == changed) {
                            EXPECT_FALSE(same);
                        }
                    }
            }
}

// Keys and values n - 1 times in each pass; gradients as often, in the ring as float.
template <class T>
void check_traffic() {
    const Rows& batch = batches[1];
    for (const int ranks : {2, 4})
        for (const bool ring : {false, true}) {
            std::vector<Traffic> sent;
            run<T>(batch, ranks, ring, 1, &sent);
            const std::int64_t elements =
                2 * (ranks - 1) * batch.rows() * batch.seq_len / ranks * batch.kv_heads * batch.head_dim;
            const std::int64_t keys = elements * static_cast<std::int64_t>(sizeof(T)),
                               sums = ring ? 4 * elements : keys;
            for (int r = 0; r < ranks; ++r) {
                const Traffic &forward = sent[static_cast<std::size_t>(2 * r)],
                              &both = sent[static_cast<std::size_t>(2 * r + 1)];
                EXPECT_EQ(forward.total(), keys) << "rank " << r << " of " << ranks << ", ring " << ring;
                EXPECT_EQ(both.total(), 2 * keys + sums) << "rank " << r << " of " << ranks << ", ring " << ring;
                EXPECT_EQ(ring ? both.send : both.all_gather + both.reduce_scatter, both.total());
            }
        }
}

TEST(Context, RanksSendWhatTheHeaderSays) {
    check_traffic<float>();
    check_traffic<bf16>();
}

// An earlier rank's slice: all queries see its first half. A later one's: the second half of the queries sees all of
// it. So every step but the own, two diagonals and one whole, costs two whole ranges.
TEST(Context, ARangeMeetsOnlyTheKeysItCanSee) {
    const ContextSlices slices(64, 4);
    for (std::int64_t rank = 0; rank < 4; ++rank)
        for (std::int64_t owner = 0; owner < 4; ++owner)
            for (const int query : {0, 1})
                for (const int key : {0, 1}) {
                    const bool want = owner < rank ? key == 0 : owner > rank ? query == 1 : query >= key;
                    EXPECT_EQ(ring_sees(slices, rank, query, owner, key, 0), want)
                        << rank << " " << query << ", " << owner << " " << key;
                }
    // Range 0 of rank 1 is keys 8 to 15; its range 1, keys 48 to 55, sees it if its windows reach there.
    EXPECT_TRUE(ring_sees(slices, 1, 1, 1, 0, 15));
    EXPECT_FALSE(ring_sees(slices, 1, 1, 1, 0, 16));
}

// Twice for forward, which backward may do again, and once for backward; by the dims of the buffers of context.h.
TEST(Context, ThePlanHoldsTheBuffersOfItsKindAndNoOthers) {
    for (const std::string dtype : {"f32", "bf16"})
        for (const std::string kind : {"gather", "ring", "gather again", "ring again"}) {
            // Attention that is recomputed needs its keys once more.
            const bool again = kind.ends_with(" again"), ring = kind.starts_with("ring");
            Config c = test::tiny_config(dtype);
            c.memory.recompute = again ? "attention" : "norms";
            c.data.seq_len = 48, c.parallel.cp = 4, c.parallel.dp = 1, c.parallel.context = ring ? "ring" : "gather";
            std::int64_t bytes = 0;
            const MemoryPlan plan = plan_model(c, training_use(c));
            for (const MemoryPlan::Item& item : plan.items())
                if (item.use == Use::communication && item.name.starts_with("block0/")) bytes += item.bytes;
            const std::int64_t ranks = 4, chunk = 48 / (2 * ranks), tokens = c.train.micro_batch * 48 / ranks;
            const std::int64_t q = c.model.heads * c.model.head_dim, kv = c.model.kv_heads * c.model.head_dim;
            const std::int64_t e = dtype == "f32" ? 4 : 2, sum = dtype == "f32" ? 0 : 4 * tokens * q;
            const std::int64_t forward = e * (4 * tokens * kv + chunk * q) + sum + 4 * c.model.heads * chunk,
                               backward =
                                   e * (4 * tokens * kv + chunk * q + 2 * chunk * kv) + sum + 4 * 6 * tokens * kv;
            EXPECT_EQ(bytes, ring ? (again ? 2 : 1) * forward + backward : e * (again ? 3 + 3 + 6 : 3 + 6) * ranks * tokens * kv)
                << dtype << ", " << kind;
        }
}

}  // namespace
}  // namespace keel
