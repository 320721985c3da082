// Attention over a row's keys part by part, and the parts put together, against the double reference of the whole;
// parts that some or all queries do not see; and the merge alone.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "attention_reference.h"
#include "golden.h"
#include "kernels/attention.h"
#include "kernels/attention_merge.h"
#include "kernels/base/error.h"

namespace keel {
namespace {

using attention_test::Mask;
using attention_test::nan_filled;
using attention_test::Outputs;
using attention_test::Problem;
using attention_test::Result;
using attention_test::Tensors;

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

// What one part of the keys leaves, NaN before.
template <class T>
struct Part {
    std::int64_t begin, end;  // keys
    Outputs<T> out;
    bool seen_by(const Problem& p, std::int64_t i) const {
        return std::max(p.low(i), begin) < std::min(p.query_offset + i + 1, end);
    }
};

template <class T>
Result<T> run_in_parts(Stream& stream, const Problem& p, const std::vector<std::int64_t>& cuts) {
    Result<T> whole{Tensors<T>(p), Outputs<T>(p)};
    Tensors<T>& in = whole.in;
    std::vector<float> sum = nan_filled<float>(p.tokens * in.q_width);
    const View<float> sums(sum.data(), {p.tokens, in.q_width}), lse(whole.out.lse.data(), {p.heads, p.tokens});
    std::vector<Part<T>> parts;
    for (std::size_t c = 0; c + 1 < cuts.size(); ++c) {
        Part<T>& part = parts.emplace_back(Part<T>{cuts[c], cuts[c + 1], Outputs<T>(p)});
        AttentionForward<T> args = in.forward(part.out);
        args.k = args.k.rows(part.begin, part.end - part.begin),
        args.v = args.v.rows(part.begin, part.end - part.begin);
        args.key_begin = part.begin;
        attention_forward<T>(stream, args);
        for (std::int64_t i = 0; i < p.tokens; ++i)
            for (std::int64_t d = 0; d < in.q_width && !part.seen_by(p, i); ++d) {
                EXPECT_EQ(static_cast<float>(args.y.row(i)[d]), 0.0f) << p.text() << ", query " << i;
                EXPECT_EQ(args.lse.row(d / p.head_dim)[i], minus_infinity) << p.text() << ", query " << i;
            }
        attention_merge<T>(stream,
                           {.sum = sums, .lse = lse, .part = args.y, .part_lse = args.lse, .accumulate = c > 0});
    }
    round_sum<T>(stream, {.y = whole.out.y_view(), .sum = sums});
    std::fill(sum.begin(), sum.end(), 0.0f);
    for (Part<T>& part : parts) {
        AttentionBackward<T> args = in.backward(whole.out);
        const std::int64_t keys = part.end - part.begin;
        args.k = args.k.rows(part.begin, keys), args.v = args.v.rows(part.begin, keys), args.key_begin = part.begin;
        args.dk = args.dk.rows(part.begin, keys), args.dv = args.dv.rows(part.begin, keys);
        args.dq = part.out.dq_view();
        args.k_rope = in.angles(part.begin, keys);
        attention_backward<T>(stream, args);
        for (std::int64_t i = 0; i < p.tokens; ++i)
            for (std::int64_t d = 0; d < in.q_width && !part.seen_by(p, i); ++d)
                EXPECT_EQ(static_cast<float>(args.dq.row(i)[d]), 0.0f) << p.text() << ", query " << i;
        add_part<T>(stream, {.sum = sums, .part = args.dq});
    }
    round_sum<T>(stream, {.y = whole.out.dq_view(), .sum = sums});
    return whole;
}

// heads, kv_heads, head_dim, tokens, query_offset, extra keys behind the last query, mask, share of the scale, turned
const Problem problems[] = {
    {1, 1, 16, 1, 9, 0, Mask::causal},       {2, 1, 32, 37, 0, 0, Mask::causal},
    {3, 3, 64, 129, 0, 0, Mask::causal},     {4, 2, 80, 65, 0, 3, Mask::documents},
    {8, 1, 96, 33, 0, 0, Mask::window},      {6, 2, 48, 50, 131, 0, Mask::window, 1, 48},
    {1, 1, 256, 47, 0, 0, Mask::documents},  {2, 2, 128, 97, 0, 0, Mask::singles, 1, 96},
    {4, 4, 16, 257, 0, 0, Mask::documents},  {7, 7, 24, 31, 5, 2, Mask::causal},
    {5, 1, 20, 140, 0, 70, Mask::documents}, {2, 2, 100, 200, 60, 9, Mask::wild},
};

template <class T>
void check_cuts() {
    Stream stream(2);
    const Random random(11, Purpose::test, "cuts");
    std::uint64_t draw = 0;
    for (const Problem& p : problems)
        for (const int parts : {2, 5}) {
            std::vector<std::int64_t> cuts{0, p.kv_tokens()};
            for (int c = 1; c < parts; ++c)  // parts without a key too
                cuts.push_back(static_cast<std::int64_t>(random.uniform(draw++) * static_cast<double>(p.kv_tokens())));
            std::sort(cuts.begin(), cuts.end());
            attention_test::expect_right(p, run_in_parts<T>(stream, p, cuts), parts);
            if (::testing::Test::HasFailure()) return;
        }
}

TEST(AttentionParts, KeysCutAnywhereMakeTheWholeInFloat) { check_cuts<float>(); }
TEST(AttentionParts, KeysCutAnywhereMakeTheWholeInBf16) { check_cuts<bf16>(); }

template <class T>
void check_offset() {
    Stream stream(2);
    const Problem p{4, 2, 48, 70, 40, 0, Mask::window};  // key 16 is the first that is seen
    const Result<T> whole = attention_test::run<T>(stream, p);
    Result<T> some{Tensors<T>(p), Outputs<T>(p)};
    AttentionForward<T> args = some.in.forward(some.out);
    // 64 keys less: blocks of keys stay where they were. Queries and their lo still count from the beginning.
    Tensors<T> shifted(Problem{4, 2, 48, 70, 104, 0, Mask::window});
    args.k = shifted.k_view(), args.v = shifted.v_view();
    for (std::int64_t key = 0; key < 110; ++key)
        for (std::int64_t d = 0; d < whole.in.kv_stride; ++d)
            shifted.kv[static_cast<std::size_t>((key + 64) * whole.in.kv_stride + d)] =
                whole.in.kv[static_cast<std::size_t>(key * whole.in.kv_stride + d)];
    for (auto& lo : some.in.lo) lo += 64;
    args.query_offset = 104, args.key_begin = 64;
    args.k = args.k.rows(64, 110), args.v = args.v.rows(64, 110);
    attention_forward<T>(stream, args);
    EXPECT_EQ(0, std::memcmp(whole.out.y.data(), some.out.y.data(), whole.out.y.size() * sizeof(T)));
    EXPECT_EQ(whole.out.lse, some.out.lse);
}

TEST(AttentionParts, OnlyTheDistanceFromTheFirstKeyCounts) {
    check_offset<float>();
    check_offset<bf16>();
}

template <class T>
void check_unseen_part(std::int64_t begin, std::int64_t end) {
    Stream stream(2);
    const Problem p{4, 2, 48, 40, 100, 60, Mask::window};  // queries 100 to 139 see keys from 76 on
    const auto nothing = [](const auto& view) {
        for (std::int64_t i = 0; i < view.dim(0); ++i)
            for (std::int64_t d = 0; d < view.dim(1); ++d)
                ASSERT_EQ(static_cast<float>(view.row(i)[d]), 0.0f) << i << ", " << d;
    };
    Tensors<T> in(p);
    Outputs<T> out(p);
    AttentionForward<T> forward = in.forward(out);
    forward.k = forward.k.rows(begin, end - begin), forward.v = forward.v.rows(begin, end - begin),
    forward.key_begin = begin;
    attention_forward<T>(stream, forward);
    nothing(forward.y);
    for (const float lse : out.lse) ASSERT_EQ(lse, minus_infinity);
    AttentionBackward<T> backward = in.backward(out);
    backward.k = forward.k, backward.v = forward.v, backward.key_begin = begin;
    backward.dk = backward.dk.rows(begin, end - begin), backward.dv = backward.dv.rows(begin, end - begin);
    attention_backward<T>(stream, backward);
    nothing(backward.dq), nothing(backward.dk), nothing(backward.dv);
}

TEST(AttentionParts, KeysThatNobodySeesLeaveZerosEverywhere) {
    for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, 76}, {140, 200}, {80, 80}}) {
        check_unseen_part<float>(begin, end);
        check_unseen_part<bf16>(begin, end);
    }
}

// The golden's keys cut in two, attended to in float and put together. Its bound is that of
// Attention.AgreesWithTheGolden, and a few more roundings of the merge.
TEST(AttentionParts, TwoPartsAgreeWithTheGolden) {
    const Golden golden("ops/attention");
    const auto size = [&](std::size_t i) { return static_cast<std::int64_t>(golden["sizes"][i]); };
    const std::int64_t tokens = size(0), kv_tokens = size(1), heads = size(2), width = heads * size(4),
                       kv_width = size(3) * size(4);
    const auto tensor = [&](const char* name) {
        std::vector<float> values;
        for (const double x : golden[name]) values.push_back(static_cast<float>(x));
        return values;
    };
    auto q = tensor("q"), k = tensor("k"), v = tensor("v"), y = q, part = q;
    std::vector<std::int32_t> lo;
    for (const double x : golden["lo"]) lo.push_back(static_cast<std::int32_t>(x));
    std::vector<float> lse(static_cast<std::size_t>(heads * tokens)), part_lse = lse;
    Stream stream(1);
    for (std::int64_t cut = 0; cut <= kv_tokens; ++cut) {
        for (const bool second : {false, true}) {
            const std::int64_t begin = second ? cut : 0, keys = second ? kv_tokens - cut : cut;
            attention_forward<float>(stream, {.y = View<float>(part.data(), {tokens, width}),
                                              .lse = View<float>(part_lse.data(), {heads, tokens}),
                                              .q = View<float>(q.data(), {tokens, width}),
                                              .k = View<float>(k.data(), {kv_tokens, kv_width}).rows(begin, keys),
                                              .v = View<float>(v.data(), {kv_tokens, kv_width}).rows(begin, keys),
                                              .lo = View<std::int32_t>(lo.data(), {tokens}),
                                              .head_dim = size(4),
                                              .query_offset = size(5),
                                              .key_begin = begin,
                                              .scale = static_cast<float>(golden.scalar("scale"))});
            attention_merge<float>(stream, {.sum = View<float>(y.data(), {tokens, width}),
                                            .lse = View<float>(lse.data(), {heads, tokens}),
                                            .part = View<float>(part.data(), {tokens, width}),
                                            .part_lse = View<float>(part_lse.data(), {heads, tokens}),
                                            .accumulate = second});
        }
        for (std::size_t i = 0; i < y.size(); ++i)
            EXPECT_NEAR(y[i], golden["y"][i], 12 * 80 * 0x1p-24) << "cut " << cut;
        for (std::size_t i = 0; i < lse.size(); ++i)
            EXPECT_NEAR(lse[i], golden["lse"][i], 12 * 80 * 0x1p-24) << "cut " << cut;
    }
}

// One head of one element: sum and part as given. Weights err by 6 u and what the difference of two lse errs by, u |l1
// - l2|; both are below 2^-18 here.
struct Merged {
    float sum, lse;
};
Merged merge(float sum, float lse, float part, float part_lse) {
    Stream stream(1);
    attention_merge<float>(stream, {.sum = View<float>(&sum, {1, 1}),
                                    .lse = View<float>(&lse, {1, 1}),
                                    .part = View<float>(&part, {1, 1}),
                                    .part_lse = View<float>(&part_lse, {1, 1})});
    return {sum, lse};
}

TEST(AttentionMerge, WeighsPartsByTheirSumsOfExponentials) {
    for (const double l1 : {-80.0, -3.0, 0.0, 0.7, 88.0, 1000.0})
        for (const double gap : {-30.0, -1.0, 0.0, 0.3, 4.0}) {
            const double l2 = l1 + gap, l = l2 + std::log1p(std::exp(-gap));
            const float a = static_cast<float>(l1), b = static_cast<float>(l2);
            const Merged got = merge(3, a, -5, b);
            const double w = 1 / (1 + std::exp(static_cast<double>(b) - static_cast<double>(a)));
            EXPECT_NEAR(got.sum, 3 * w - 5 * (1 - w), 8 * 0x1p-18) << l1 << " and " << l2;
            EXPECT_NEAR(got.lse, l, (2 + std::abs(l1) + std::abs(gap)) * 4 * 0x1p-24) << l1 << " and " << l2;
        }
}

TEST(AttentionMerge, APartThatSawNothingChangesNoBit) {
    const Merged seen = merge(3, 1.25f, 0, minus_infinity);
    EXPECT_EQ(seen.sum, 3);
    EXPECT_EQ(seen.lse, 1.25f);
    const Merged second = merge(0, minus_infinity, -5, 0.1f);
    EXPECT_EQ(second.sum, -5);
    EXPECT_EQ(second.lse, 0.1f);
    const Merged none = merge(0, minus_infinity, 0, minus_infinity);
    EXPECT_EQ(none.sum, 0);
    EXPECT_EQ(none.lse, minus_infinity);
}

TEST(AttentionMerge, ShapesThatDisagreeAreRefusedWithTheNumbers) {
    Stream stream(1);
    std::vector<float> x(64);
    const View<float> m(x.data(), {4, 8});
    try {
        attention_merge<float>(stream, {.sum = m, .lse = View<float>(x.data(), {3, 4}), .part = m, .part_lse = m});
        FAIL();
    } catch (const Error& e) {
        EXPECT_STREQ(e.what(),
                     "attention_merge: sum is [4, 8], but must be a matrix [tokens, heads * head_dim], with heads 3");
    }
}

}  // namespace
}  // namespace keel
