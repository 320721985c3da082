#include "kernels/cross_entropy.h"

#include <gtest/gtest.h>

#include "tests/kernels/golden.h"
#include "tests/kernels/reference.h"
#include "tests/kernels/tensor.h"

namespace keel {
namespace {

// exp to 1.1 ulp, a running maximum that rescales up to once per 8 vectors, tree sums, a quotient, the loss's own sums.
constexpr int steps = 12;

struct Case {
    std::int64_t tokens, vocab;
    Values logits;
    std::vector<std::int32_t> labels;
    float z_loss;
    float scale = 1;
};

Case random_case(std::int64_t tokens, std::int64_t vocab, float z_loss) {
    Case c{tokens, vocab, random_values<float>("logits", tokens * vocab, 4), {}, z_loss};
    for (std::int64_t t = 0; t < tokens; ++t)
        c.labels.push_back(t % 5 == 3 ? -1 : static_cast<std::int32_t>((t * 7919 + 3) % vocab));
    return c;
}

// What ranks of a vocabulary-parallel group do, in one process: stats per shard, maximum, rescaling, sums, gradient.
template <class T> std::vector<Values> run(Stream& stream, const Case& c, int shards, bool in_place = false) {
    Tensor<float> logits(c.logits, c.tokens, c.vocab, c.vocab + 3), losses(c.tokens), alone(c.tokens);
    Tensor<T> dlogits(c.tokens, c.vocab, c.vocab + 1);
    Tensor<std::int32_t> labels(Values(c.labels.begin(), c.labels.end()));
    std::vector<Tensor<float>> max, sum, target;
    Values common(static_cast<std::size_t>(c.tokens), -std::numeric_limits<double>::infinity());
    const auto begin = [&](int s) { return c.vocab * s / shards; };
    const auto columns = [&](auto& tensor, int s) { return tensor.view().columns(begin(s), begin(s + 1) - begin(s)); };
    for (int s = 0; s < shards; ++s) {
        max.emplace_back(c.tokens), sum.emplace_back(c.tokens), target.emplace_back(c.tokens);
        cross_entropy_stats(stream, {.max = max.back().view(),
                                     .sum = sum.back().view(),
                                     .target = target.back().view(),
                                     .logits = columns(logits, s),
                                     .labels = labels.read(),
                                     .vocab_begin = begin(s)});
        EXPECT_TRUE(max.back().untouched() && sum.back().untouched() && target.back().untouched());
        const Values m = max.back().values();
        for (std::size_t t = 0; t < common.size(); ++t) common[t] = std::max(common[t], m[t]);
    }
    Tensor<float> top(common), total(c.tokens), label_logit(c.tokens);
    std::vector<float> sums(common.size()), targets(common.size());
    for (int s = 0; s < shards; ++s) {
        const auto i = static_cast<std::size_t>(s);
        cross_entropy_merge(stream, {.sum = sum[i].view(), .max = max[i].read(), .common = top.read()});
        const Values part = sum[i].values(), mine = target[i].values();
        for (std::size_t t = 0; t < common.size(); ++t) {
            sums[t] += static_cast<float>(part[t]);
            targets[t] += static_cast<float>(mine[t]);
        }
    }
    total.fill(widen(sums));
    label_logit.fill(widen(targets));
    cross_entropy_loss(stream, {.loss = alone.view(),
                                .labels = labels.read(),
                                .max = top.read(),
                                .sum = total.read(),
                                .target = label_logit.read()});
    for (int s = 0; s < shards; ++s) {
        const auto grad = [&](View<auto> d, auto type) {
            using G = decltype(type);
            cross_entropy_grad<G>(stream, {.loss = losses.view(),
                                           .dlogits = d,
                                           .logits = columns(logits, s),
                                           .labels = labels.read(),
                                           .max = top.read(),
                                           .sum = total.read(),
                                           .target = label_logit.read(),
                                           .vocab_begin = begin(s),
                                           .z_loss = c.z_loss,
                                           .scale = c.scale});
        };
        if (in_place)
            grad(columns(logits, s), float());
        else
            grad(columns(dlogits, s), T());
    }
    EXPECT_TRUE(losses.untouched() && alone.untouched() && dlogits.untouched() && logits.untouched());
    return {losses.values(), in_place ? logits.values() : dlogits.values(), alone.values()};
}

template <class T> void matches(const Case& c) {
    SCOPED_TRACE(testing::Message() << c.tokens << " x " << c.vocab << " z " << c.z_loss);
    const auto want = ref::cross_entropy<double, double>(c.logits, c.labels, c.z_loss);
    const auto naive = ref::cross_entropy<float, T>(ref::cast<float>(c.logits), c.labels, c.z_loss);
    for (const int shards : {1, 2, 3, 4}) {
        const auto got = on_any_threads([&](Stream& s) { return run<T>(s, c, shards); });
        expect_close<float>("loss", got[0], want.loss, widen(naive.loss), steps);
        expect_close<T>("dlogits", got[1], want.dlogits, widen(naive.dlogits), steps);
        const auto plain = ref::cross_entropy<double, double>(c.logits, c.labels, 0);
        const auto plain_naive = ref::cross_entropy<float, T>(ref::cast<float>(c.logits), c.labels, 0);
        expect_close<float>("evaluation loss", got[2], plain.loss, widen(plain_naive.loss), steps);
    }
}

template <class T> void matches_everywhere() {
    for (const std::int64_t tokens : {1, 2, 7, 64, 65, 257})
        for (const std::int64_t vocab : {11, 512, 1000})
            matches<T>(random_case(tokens, vocab, vocab == 512 ? 1e-3f : 0.0f));
}
TEST(CrossEntropy, OneToFourShardsOfTheVocabularyMatchTheWholeInFloat) { matches_everywhere<float>(); }
TEST(CrossEntropy, OneToFourShardsOfTheVocabularyMatchTheWholeInBf16) { matches_everywhere<bf16>(); }
TEST(CrossEntropy, OneToFourShardsOfTheVocabularyMatchTheWholeInF16) { matches_everywhere<f16>(); }

// By a power of two, which moves no digit: of the gradient alone, infinity where f16 ends.
TEST(CrossEntropy, ItsScaleMultipliesTheGradientAndNotTheLoss) {
    Case c = random_case(7, 512, 1e-3f);
    const auto plain = run<float>(stream_of(1), c, 2);
    c.scale = 0x1p18f;
    const auto scaled = run<float>(stream_of(1), c, 2), halves = run<f16>(stream_of(1), c, 2);
    EXPECT_TRUE(same_bits(scaled[0], plain[0]));
    EXPECT_TRUE(same_bits(scaled[2], plain[2]));
    std::int64_t infinite = 0;
    for (std::size_t i = 0; i < plain[1].size(); ++i) {
        EXPECT_EQ(scaled[1][i], 0x1p18 * plain[1][i]) << i;
        EXPECT_EQ(halves[1][i], static_cast<double>(static_cast<float>(f16(static_cast<float>(scaled[1][i]))))) << i;
        infinite += std::isinf(halves[1][i]);
    }
    EXPECT_GE(infinite, 4);  // of the labels at least, whose gradient is nearly -1
}

// Logits of +-1e4 among them: nothing overflows, and the loss keeps its digits.
TEST(CrossEntropy, IsTheGolden) {
    const Golden g("ops/cross_entropy");
    const std::vector<std::int32_t> labels(g["labels"].begin(), g["labels"].end());
    for (const bool z : {false, true}) {
        const Case c{g.dim("logits", 0), g.dim("logits", 1), g["logits"], labels,
                     z ? static_cast<float>(g.scalar("z_loss")) : 0.0f};
        const auto naive = ref::cross_entropy<float, float>(ref::cast<float>(g["logits"]), labels, c.z_loss);
        for (const int shards : {1, 2, 3}) {
            const auto got = run<float>(stream_of(2), c, shards);
            expect_close<float>("loss", got[0], g[z ? "loss_z" : "loss"], widen(naive.loss), steps);
            expect_close<float>("dlogits", got[1], g[z ? "dlogits_z" : "dlogits"], widen(naive.dlogits), steps);
        }
    }
}

// The known vector of a vocabulary-parallel loss over two shards.
TEST(CrossEntropy, TwoShardsOfTwoGiveTheKnownLoss) {
    const auto got = run<float>(stream_of(2), {1, 4, {1, 2, 3, 4}, {1}, 0}, 2);
    EXPECT_NEAR(got[0][0], 2.440189699, 4 * unit_roundoff<float> * 4);
    const Values want{.032059, -.912856, .236883, .643914};
    for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[1][i], want[i], 1e-6) << i;  // six digits are given
}

TEST(CrossEntropy, GradientMayOverwriteTheLogits) {
    for (const int shards : {1, 3}) {
        const Case c = random_case(65, 1000, 1e-3f);
        EXPECT_TRUE(same_bits(run<float>(stream_of(2), c, shards, true)[1], run<float>(stream_of(2), c, shards)[1]));
    }
}

// softmax sums to 1, so a row's gradient sums to 0. Each element carries at most `steps` roundings of itself, and their
// absolute values sum to at most 2.
TEST(CrossEntropy, GradientOfARowSumsToZero) {
    const Case c = random_case(65, 1000, 0);
    const auto got = run<float>(stream_of(1), c, 1);
    for (std::size_t t = 0; t < 65; ++t) {
        double sum = 0, size = 0;
        for (std::size_t i = 0; i < 1000; ++i) {
            sum += got[1][t * 1000 + i];
            size += std::abs(got[1][t * 1000 + i]);
        }
        EXPECT_LE(std::abs(sum), 2 * steps * unit_roundoff<float>) << t;
        EXPECT_EQ(size == 0, c.labels[t] < 0) << t;
        EXPECT_EQ(got[0][t] == 0, c.labels[t] < 0) << t;
    }
}

TEST(CrossEntropy, MaskedLogitsHaveNoShareAndNaNComesThrough) {
    const double inf = std::numeric_limits<double>::infinity();
    // A shard of masked columns alone contributes nothing.
    const auto masked = run<float>(stream_of(1), {1, 4, {1, 2, -inf, -inf}, {1}, 0}, 2);
    const auto narrow = run<float>(stream_of(1), {1, 2, {1, 2}, {1}, 0}, 1);
    EXPECT_EQ(masked[0], narrow[0]);
    EXPECT_EQ(masked[1], (Values{narrow[1][0], narrow[1][1], 0, 0}));
    EXPECT_TRUE(std::isnan(run<float>(stream_of(1), {1, 4, {1, 2, std::nan(""), 0}, {1}, 0}, 1)[0][0]));
    EXPECT_FALSE(std::isfinite(run<float>(stream_of(1), {1, 4, {1, 2, inf, 0}, {1}, 0}, 1)[0][0]));
}

TEST(CrossEntropy, RefusesShapesThatDisagree) {
    Tensor<float> logits(3, 5), three(3), four(4), dlogits(3, 4);
    Tensor<std::int32_t> labels(Values{0, 1, 2}), two(Values{0, 1});
    EXPECT_EQ(error_of([&] {
                  cross_entropy_stats(stream_of(1), {.max = three.view(),
                                                     .sum = three.view(),
                                                     .target = three.view(),
                                                     .logits = logits.read(),
                                                     .labels = two.read(),
                                                     .vocab_begin = 0});
              }),
              "cross_entropy: labels is [2], but must be [3]");
    EXPECT_EQ(error_of([&] {
                  cross_entropy_grad<float>(stream_of(1), {.loss = three.view(),
                                                           .dlogits = dlogits.view(),
                                                           .logits = logits.read(),
                                                           .labels = labels.read(),
                                                           .max = three.read(),
                                                           .sum = three.read(),
                                                           .target = three.read(),
                                                           .vocab_begin = 0,
                                                           .z_loss = 0});
              }),
              "cross_entropy: dlogits is [3, 4], but must be [3, 5]");
    EXPECT_EQ(error_of([&] {
                  cross_entropy_merge(stream_of(1), {.sum = three.view(), .max = four.read(), .common = three.read()});
              }),
              "cross_entropy: max is [4], but must be [3]");
    EXPECT_EQ(error_of([&] {
                  cross_entropy_loss(stream_of(1), {.loss = three.view(),
                                                    .labels = labels.read(),
                                                    .max = three.read(),
                                                    .sum = four.read(),
                                                    .target = three.read()});
              }),
              "cross_entropy: sum is [4], but must be [3]");
}

}  // namespace
}  // namespace keel
