// Attention forward and backward against a double reference with a derived bound for every element, over packed
// documents, windows, caches and grouped heads, with poison in everything that must not be read.
#include "kernels/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <string>

#include "attention_reference.h"
#include "golden.h"
#include "kernels/attention_tile.h"
#include "kernels/base/error.h"

namespace keel {
namespace {

using attention_test::Mask;
using attention_test::Problem;
using attention_test::Result;

// heads, kv_heads, head_dim, tokens, query_offset, extra keys behind the last query, mask
const Problem problems[] = {
    {1, 1, 16, 1, 0, 0, Mask::causal},     {2, 2, 64, 1, 300, 40, Mask::causal},
    {2, 1, 32, 37, 0, 0, Mask::causal},    {3, 3, 64, 129, 0, 0, Mask::causal},
    {4, 2, 80, 65, 0, 3, Mask::documents}, {8, 1, 96, 33, 0, 0, Mask::window},
    {6, 2, 48, 50, 131, 0, Mask::window},  {1, 1, 256, 47, 0, 0, Mask::documents},
    {2, 2, 128, 97, 0, 0, Mask::singles},  {4, 4, 16, 257, 0, 0, Mask::documents},
    {7, 7, 24, 31, 5, 2, Mask::causal},    {5, 1, 20, 40, 0, 0, Mask::documents},
    {8, 2, 64, 2, 200, 0, Mask::window},   {2, 2, 100, 200, 60, 9, Mask::wild},
    {8, 8, 16, 530, 0, 0, Mask::causal},        // tasks of as many keys as there can be
    {2, 2, 64, 330, 0, 0, Mask::causal, 8.0f},  // scores that outgrow those before by far
};

// The same of q and k that had been turned: whole heads, parts of them, pairs that lie anywhere.
const Problem turned[] = {
    Problem{1, 1, 16, 1, 0, 0, Mask::causal}.turning(16),     Problem{2, 1, 64, 70, 33, 5, Mask::documents}.turning(64),
    Problem{4, 2, 128, 65, 0, 3, Mask::causal}.turning(128),  Problem{6, 2, 48, 50, 131, 0, Mask::window}.turning(36),
    Problem{5, 1, 20, 40, 0, 2, Mask::documents}.turning(20), Problem{2, 2, 100, 300, 60, 9, Mask::wild}.turning(100),
    Problem{1, 1, 256, 47, 0, 0, Mask::singles}.turning(256), Problem{7, 7, 24, 31, 5, 2, Mask::causal}.turning(2),
};

// Softmax's 2^x, of which the first lane is looked at.
template <bool coarse = false>
double power_of_2(float x) {
    float out[attention::lanes];
    simd::store(out, attention::exp2<coarse>(simd::set(x)));
    return out[0];
}
TEST(Attention, ItsPowersOf2AreRightAndVanishBelowTheLeastNormalNumber) {
    for (float x = -126; x <= 8; x += 0x1.03p-9f) {
        const double want = std::exp2(static_cast<double>(x));
        ASSERT_NEAR(power_of_2(x), want, 1.5 * std::ldexp(1.0, std::ilogb(want) - 23)) << x;
        ASSERT_NEAR(power_of_2<true>(x), want, std::exp2(-18.3) * want) << x;
    }
    for (const float x : {-126.25f, -126.5f, -126.99f}) EXPECT_LT(std::abs(power_of_2(x)), 0x1p-126) << x;
    for (const float x : {-127.0f, -128.0f, -1000.0f, -1e30f, -std::numeric_limits<float>::infinity()})
        EXPECT_EQ(power_of_2(x), 0) << x;
    EXPECT_TRUE(std::isnan(power_of_2(std::numeric_limits<float>::quiet_NaN())));
}

template <class T>
void check_all(std::span<const Problem> all) {
    Stream stream(2);
    for (const Problem& problem : all) {
        const Result<T> got = attention_test::run<T>(stream, problem);
        attention_test::expect_right(problem, got);
        if (::testing::Test::HasFatalFailure()) return;
    }
}

TEST(Attention, ForwardAndBackwardAreRightInFloat) { check_all<float>(problems); }
TEST(Attention, ForwardAndBackwardAreRightInBf16) { check_all<bf16>(problems); }
TEST(Attention, ForwardAndBackwardAreRightInF16) { check_all<f16>(problems); }
TEST(Attention, GradientsOfTurnedQAndKTurnBackInFloat) { check_all<float>(turned); }
TEST(Attention, GradientsOfTurnedQAndKTurnBackInBf16) { check_all<bf16>(turned); }
TEST(Attention, GradientsOfTurnedQAndKTurnBackInF16) { check_all<f16>(turned); }

// The terms of a sum here have a total size of at most 12 (dk's; computed with the golden's inputs). As float, some 30
// roundings of u = 2^-24 meet in each, doubled for P in both of its roles; as bf16, those of y, P or ds, and the
// result, of 2^-8.
template <class T>
void check_golden() {
    const Golden golden("ops/attention");
    const auto size = [&](std::size_t i) { return static_cast<std::int64_t>(golden["sizes"][i]); };
    const std::int64_t tokens = size(0), kv_tokens = size(1), heads = size(2), kv_heads = size(3), head_dim = size(4);
    const auto tensor = [&](const char* name) {
        std::vector<T> values;
        for (const double x : golden[name]) values.push_back(T(static_cast<float>(x)));
        return values;
    };
    auto q = tensor("q"), k = tensor("k"), v = tensor("v"), dy = tensor("dy"), y = q, dq = q, dk = k, dv = k;
    std::vector<std::int32_t> lo;
    for (const double x : golden["lo"]) lo.push_back(static_cast<std::int32_t>(x));
    std::vector<float> lse(static_cast<std::size_t>(heads * tokens));
    std::vector<std::byte> scratch(
        static_cast<std::size_t>(attention_scratch_bytes(tokens, heads, kv_tokens, kv_heads, head_dim)));
    const auto rows = [&](std::vector<T>& x, std::int64_t n, std::int64_t h) {
        return View<T>(x.data(), {n, h * head_dim});
    };
    const auto of_q = [&](std::vector<T>& x) { return rows(x, tokens, heads); };
    const auto of_k = [&](std::vector<T>& x) { return rows(x, kv_tokens, kv_heads); };
    Stream stream(2);
    const float scale = static_cast<float>(golden.scalar("scale"));
    attention_forward<T>(stream, {.y = of_q(y),
                                  .lse = View<float>(lse.data(), {heads, tokens}),
                                  .q = of_q(q),
                                  .k = of_k(k),
                                  .v = of_k(v),
                                  .lo = View<std::int32_t>(lo.data(), {tokens}),
                                  .head_dim = head_dim,
                                  .query_offset = size(5),
                                  .scale = scale});
    attention_backward<T>(stream,
                          {.dq = of_q(dq),
                           .dk = of_k(dk),
                           .dv = of_k(dv),
                           .scratch = View<std::byte>(scratch.data(), {static_cast<std::int64_t>(scratch.size())}),
                           .dy = of_q(dy),
                           .y = of_q(y),
                           .lse = View<float>(lse.data(), {heads, tokens}),
                           .q = of_q(q),
                           .k = of_k(k),
                           .v = of_k(v),
                           .lo = View<std::int32_t>(lo.data(), {tokens}),
                           .head_dim = head_dim,
                           .query_offset = size(5),
                           .scale = scale});
    const double bound = 12 * (std::is_same_v<T, bf16> ? 3 * 0x1p-8 : 60 * 0x1p-24);
    const auto same = [&](const auto& got, const char* name) {
        for (std::size_t i = 0; i < got.size(); ++i)
            EXPECT_NEAR(static_cast<double>(static_cast<float>(got[i])), golden[name][i], bound) << name << " " << i;
    };
    same(y, "y");
    same(lse, "lse");
    same(dq, "dq");
    same(dk, "dk");
    same(dv, "dv");
}

TEST(Attention, AgreesWithTheGolden) {
    check_golden<float>();
    check_golden<bf16>();
}

template <class T>
void check_threads() {
    Stream one(1), two(2), three(3);
    for (const Problem& problem : {problems[3], problems[5], problems[9], problems[13], turned[1], turned[5]}) {
        const auto expected = attention_test::run<T>(one, problem);
        EXPECT_TRUE(expected.same_bits(attention_test::run<T>(two, problem))) << problem.text();
        EXPECT_TRUE(expected.same_bits(attention_test::run<T>(three, problem))) << problem.text();
    }
}

TEST(Attention, BitsDoNotDependOnTheNumberOfThreads) {
    check_threads<float>();
    check_threads<bf16>();
}

// Generation asks one query at a time and must say what training said.
template <class T>
void check_decode() {
    Stream stream(2);
    const Problem whole{4, 2, 64, 150, 0, 0, Mask::documents};
    attention_test::Tensors<T> t(whole);
    attention_test::Outputs<T> all(whole);
    attention_forward<T>(stream, t.forward(all));
    for (const std::int64_t first : {1, 37, 149}) {
        const std::int64_t count = first == 37 ? 70 : 1;
        attention_test::Outputs<T> some(whole);
        AttentionForward<T> args = t.forward(some);
        std::vector<float> lse(static_cast<std::size_t>(whole.heads * count));
        args.y = args.y.rows(first, count);
        args.q = args.q.rows(first, count);
        args.lse = View<float>(lse.data(), {whole.heads, count});
        args.lo = args.lo.rows(first, count);
        args.query_offset = first;
        attention_forward<T>(stream, args);
        for (std::int64_t i = first; i < first + count; ++i)
            EXPECT_EQ(std::memcmp(some.y_view().row(i), all.y_view().row(i),
                                  sizeof(T) * static_cast<std::size_t>(whole.heads * whole.head_dim)),
                      0)
                << "query " << i << " of a call that began at " << first;
        for (std::int64_t h = 0; h < whole.heads; ++h)
            EXPECT_EQ(lse[static_cast<std::size_t>(h * count)],
                      all.lse[static_cast<std::size_t>(h * whole.tokens + first)]);
    }
}

TEST(Attention, AQueryHasTheSameBitsAloneAndInABatch) {
    check_decode<float>();
    check_decode<bf16>();
}

template <class T>
void check_unseen() {
    Stream stream(2);
    Problem p{2, 1, 32, 20, 90, 17, Mask::window};
    const Result<T> got = attention_test::run<T>(stream, p);
    // A window of 25 that ends at key 90 begins at 66: before it and behind the last query nothing is seen.
    for (std::int64_t key = 0; key < p.kv_tokens(); ++key) {
        const bool seen = key >= 66 && key < 110;
        for (std::int64_t d = 0; d < p.head_dim; ++d) {
            const double dk = got.dk(key, d), dv = got.dv(key, d);
            if (!seen)
                EXPECT_TRUE(dk == 0 && dv == 0) << "key " << key;
            else
                EXPECT_TRUE(dv != 0) << "key " << key;
        }
    }
}

TEST(Attention, KeysThatNoQuerySeesAreNotReadAndGetZeroGradients) {
    check_unseen<float>();
    check_unseen<bf16>();
}

TEST(Attention, ADocumentOfOneTokenCopiesItsValue) {
    Stream stream(2);
    const Problem p{2, 2, 64, 40, 0, 0, Mask::singles};
    attention_test::Tensors<float> t(p);
    attention_test::Outputs<float> out(p);
    attention_forward<float>(stream, t.forward(out));
    for (std::int64_t i = 0; i < p.tokens; ++i)
        for (std::int64_t d = 0; d < 128; ++d)
            EXPECT_EQ(out.y_view().row(i)[d], t.v_view().row(i)[d]) << i << ", " << d;
}

TEST(Attention, ScoresFarApartDoNotOverflow) {
    Stream stream(1);
    const Problem p{1, 1, 16, 64, 0, 0, Mask::causal};
    attention_test::Tensors<float> t(p);
    for (std::int64_t i = 0; i < p.tokens; ++i)
        for (std::int64_t d = 0; d < 16; ++d) t.q_view().row(i)[d] *= 1e4f;
    attention_test::Outputs<float> out(p);
    attention_forward<float>(stream, t.forward(out));
    for (std::int64_t i = 0; i < p.tokens; ++i)
        for (std::int64_t d = 0; d < 16; ++d) EXPECT_LE(std::abs(out.y_view().row(i)[d]), 1.0f);
}

template <class Change>
std::string message(Change change) {
    Stream stream(1);
    const Problem p{4, 2, 16, 8, 0, 0, Mask::causal};
    attention_test::Tensors<float> t(p);
    attention_test::Outputs<float> out(p);
    AttentionForward<float> args = t.forward(out);
    change(args, t);
    try {
        attention_forward<float>(stream, args);
    } catch (const Error& e) {
        return e.what();
    }
    return "";
}

TEST(Attention, AMaskBeyondTheQueryIsRefusedWithItsPlace) {
    EXPECT_EQ(message([](auto&, auto& t) { t.lo[5] = 6; }),
              "attention_forward: lo[5] is 6; query 5 is at key 5, so it must be in 0…5");
    EXPECT_EQ(message([](auto&, auto& t) { t.lo[0] = -1; }),
              "attention_forward: lo[0] is -1; query 0 is at key 0, so it must be in 0…0");
}

TEST(Attention, ShapesThatDisagreeAreRefusedWithTheNumbers) {
    EXPECT_EQ(message([](auto& a, auto&) { a.key_begin = -1; }),
              "attention_forward: key_begin is -1; it cannot be negative");
    EXPECT_EQ(message([](auto& a, auto&) { a.head_dim = 24; }),
              "attention_forward: rows of q and k hold 64 and 32 elements; both must be heads times head_dim 24");
    EXPECT_EQ(message([](auto& a, auto&) { a.v = a.v.columns(0, 16); }),
              "attention_forward: v is [8, 16], but must be [8, 32]");
    EXPECT_EQ(message([](auto& a, auto&) {
                  a.q = a.q.columns(0, 48);
                  a.y = a.y.columns(0, 48);
              }),
              "attention_forward: 3 heads cannot share 2 kv heads; heads must be a multiple of kv heads");
}

TEST(Attention, AnglesThatDoNotFitAreRefusedWithTheirPlace) {
    Stream stream(1);
    const auto message = [&](auto change) -> std::string {
        attention_test::Tensors<float> t(Problem{4, 2, 16, 8, 2, 1, Mask::causal}.turning(16));
        attention_test::Outputs<float> out(t.p);
        AttentionBackward<float> args = t.backward(out);
        change(args, t);
        try {
            attention_backward<float>(stream, args);
        } catch (const Error& e) {
            return e.what();
        }
        return "";
    };
    EXPECT_EQ(message([](auto& a, auto& t) { a.k_rope = t.angles(0, 8); }),
              "attention_backward: k_rope positions is [8], but must be [11]");
    EXPECT_EQ(message([](auto& a, auto& t) { a.q_rope = t.angles(0, 11); }),
              "attention_backward: q_rope positions is [11], but must be [8]");
    EXPECT_EQ(message([](auto&, auto& t) { t.at[3] = 97; }),
              "attention_backward: q_rope: token 1 has position 97, but the table holds positions 0…96; make the table as long "
              "as the longest sequence");
    EXPECT_EQ(message([](auto&, auto& t) { t.at[10] = -1; }),
              "attention_backward: k_rope: token 10 has position -1, but the table holds positions 0…96; make the table as long "
              "as the longest sequence");
    std::vector<float> wide(97 * 18);
    EXPECT_EQ(message([&](auto& a, auto&) { a.k_rope->table = View<const float>(wide.data(), {97, 18}); }),
              "attention_backward: k_rope table is [97, 18], but must be [positions, rotary_dim], rotary_dim even and at most "
              "head_dim 16");
}

TEST(Attention, BackwardWithTooLittleScratchSaysHowMuchItNeeds) {
    Stream stream(1);
    const Problem p{4, 2, 16, 8, 0, 0, Mask::causal};
    attention_test::Tensors<float> t(p);
    attention_test::Outputs<float> out(p);
    AttentionBackward<float> args = t.backward(out);
    args.scratch = args.scratch.rows(0, 8);
    try {
        attention_backward<float>(stream, args);
        FAIL() << "8 bytes of scratch were taken";
    } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find("scratch has 8 bytes, but " +
                                             std::to_string(attention_scratch_bytes(8, 4, 8, 2, 16))),
                  std::string::npos)
            << e.what();
    }
}

}  // namespace
}  // namespace keel
