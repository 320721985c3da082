// The CUDA bodies of the ops that know the vocabulary: embedding, whose backward must be the CPU's bits, and
// cross-entropy over shards of the vocabulary; swept over schedules.
#include <gtest/gtest.h>

#include <limits>

#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "tests/kernels/reference.h"
#include "tests/sim/gpu_tensor.h"

namespace keel {
namespace {

Values wide(const std::vector<std::int32_t>& x) { return Values(x.begin(), x.end()); }

// ---- embedding
// --------------------------------------------------------------------------------------------------------------

template <class T>
void embedding_matches() {
    struct {
        std::int64_t tokens, vocab, hidden, begin, all = -1;  // the id of every token
    } const shapes[] = {{0, 4, 8, 0}, {1, 1, 8, 0}, {5, 3, 7, 1}, {37, 11, 24, 4}, {3, 9, 1100, 0},
                        // What lies before and behind the 64 sorted rows in the scratch looks like one of these.
                        {64, 70, 8, 0, 63}, {64, 70, 8, 0, 0}};
    for (const auto [tokens, vocab, hidden, begin, all] : shapes) {
        SCOPED_TRACE(testing::Message() << tokens << " tokens, " << vocab << " x " << hidden << " from row " << begin);
        std::vector<std::int32_t> ids;  // some of other shards, before and behind; some often
        for (std::int64_t t = 0; t < tokens; ++t)
            ids.push_back(static_cast<std::int32_t>(all >= 0 ? all : t % 3 ? t * t * 5 % (vocab + begin + 2) : begin));
        const Values w = random_values<T>("w", vocab * hidden), dy = random_values<T>("dy", tokens * hidden);
        const Values before = random_values<float>("dw", vocab * hidden);
        const auto columns = static_cast<std::size_t>(hidden);
        for (const auto& got : on_gpus([&](Gpu&gpu, Stream&stream) -> std::vector<Values> {
                 GpuTensor<std::int32_t> id(gpu, stream, {tokens}, wide(ids));
                 GpuTensor<T> table(gpu, stream, {vocab, hidden}, w), d(gpu, stream, {tokens, hidden}, dy),
                     y(gpu, stream, {tokens, hidden});
                 GpuTensor<float> dw(gpu, stream, {vocab, hidden}, before);
                 GpuTensor<std::byte> scratch(gpu, stream, {embedding_scratch_bytes(tokens)});
                 embedding_forward<T>(stream,
                                      {.y = y.view(), .ids = id.read(), .w = table.read(), .vocab_begin = begin});
                 embedding_backward<T>(stream, {.dw = dw.view(),
                                                .dy = d.read(),
                                                .ids = id.read(),
                                                .vocab_begin = begin,
                                                .scratch = scratch.view()});
                 return {y.values(), dw.values()};
             })) {
            EXPECT_TRUE(same_bits(got[0], ref::embedding<double>(w, ids, begin, columns)));
            EXPECT_TRUE(same_bits(got[1], widen(ref::embedding_backward<float>(
                                              ref::cast<float>(before), ref::cast<float>(dy), ids, begin, columns))));
        }
    }
}
TEST(EmbeddingCuda, GathersRowsAndAddsGradientsInTheOrderOfTheCpuInFloat) { embedding_matches<float>(); }
TEST(EmbeddingCuda, GathersRowsAndAddsGradientsInTheOrderOfTheCpuInBf16) { embedding_matches<bf16>(); }

TEST(EmbeddingCuda, BackwardWithoutScratchSaysHowMuchItWants) {
    OneGpu& one = OneGpu::simulated();
    GpuTensor<std::int32_t> id(*one.gpu, *one.stream, {3}, {0, 1, 2});
    GpuTensor<float> dw(*one.gpu, *one.stream, {3, 8}, Values(24)), d(*one.gpu, *one.stream, {3, 8}, Values(24));
    const std::string error = error_of([&] {
        embedding_backward<float>(*one.stream, {.dw = dw.view(), .dy = d.read(), .ids = id.read(), .vocab_begin = 0});
    });
    EXPECT_NE(error.find(concat("scratch has 0 bytes, but 3 tokens need ", embedding_scratch_bytes(3))),
              std::string::npos)
        << error;
}

// ---- cross-entropy
// ----------------------------------------------------------------------------------------------------------

constexpr int steps = 14;  // exp to 2 ulp, online rescaling, tree sums, a quotient, the loss's own sums

struct Case {
    std::int64_t tokens, vocab, padding;
    float z_loss;
    float scale = 1;
};

// Per-shard statistics, the common maximum and sums (what the ranks exchange, made here on the host), losses and
// gradients.
template <class T>
std::vector<Values> run(Gpu& gpu, Stream& stream, const Case& c, const Values& x,
                        const std::vector<std::int32_t>& label, int shards, bool in_place) {
    const auto n = static_cast<std::size_t>(c.tokens);
    const std::int64_t stride = c.vocab + c.padding;
    Values rows;
    for (std::int64_t t = 0; t < c.tokens; ++t) {
        rows.insert(rows.end(), x.begin() + t * c.vocab, x.begin() + (t + 1) * c.vocab);
        rows.insert(rows.end(), static_cast<std::size_t>(c.padding),
                    1000);  // read by mistake, it would be every maximum
    }
    GpuTensor<float> logits(gpu, stream, {c.tokens, stride}, rows);
    GpuTensor<T> apart(gpu, stream, {c.tokens, stride}, Values(rows.size(), 0));
    GpuTensor<std::int32_t> labels(gpu, stream, {c.tokens}, wide(label));
    const auto begin = [&](int s) { return c.vocab * s / shards; };
    const auto columns = [&](const auto& tensor, int s) {
        return tensor.view().columns(begin(s), begin(s + 1) - begin(s));
    };
    GpuTensor<float> max(gpu, stream, {c.tokens}), sum(gpu, stream, {c.tokens}), target(gpu, stream, {c.tokens});
    GpuTensor<float> losses(gpu, stream, {c.tokens}), alone(gpu, stream, {c.tokens}), top(gpu, stream, {c.tokens});
    Values common(n, -std::numeric_limits<double>::infinity()), total(n), mine(n);
    std::vector<Values> maxima, sums, targets;
    for (int s = 0; s < shards; ++s) {
        cross_entropy_stats(stream, {.max = max.view(),
                                     .sum = sum.view(),
                                     .target = target.view(),
                                     .logits = columns(logits, s),
                                     .labels = labels.read(),
                                     .vocab_begin = begin(s)});
        maxima.push_back(max.values()), sums.push_back(sum.values()), targets.push_back(target.values());
        for (std::size_t t = 0; t < n; ++t) common[t] = std::max(common[t], maxima.back()[t]);
    }
    top.fill(common);
    for (std::size_t s = 0; s < sums.size(); ++s) {
        max.fill(maxima[s]), sum.fill(sums[s]);
        cross_entropy_merge(stream, {.sum = sum.view(), .max = max.read(), .common = top.read()});
        const Values part = sum.values();
        for (std::size_t t = 0; t < n; ++t)
            total[t] = static_cast<double>(static_cast<float>(total[t] + part[t])), mine[t] += targets[s][t];
    }
    sum.fill(total), target.fill(mine);
    cross_entropy_loss(
        stream,
        {.loss = alone.view(), .labels = labels.read(), .max = top.read(), .sum = sum.read(), .target = target.read()});
    const auto grad = [&](auto to, int s, auto type) {
        cross_entropy_grad<decltype(type)>(stream, {.loss = losses.view(),
                                                    .dlogits = to,
                                                    .logits = columns(logits, s),
                                                    .labels = labels.read(),
                                                    .max = top.read(),
                                                    .sum = sum.read(),
                                                    .target = target.read(),
                                                    .vocab_begin = begin(s),
                                                    .z_loss = c.z_loss,
                                                    .scale = c.scale});
    };
    for (int s = 0; s < shards; ++s) {
        if (in_place)
            grad(columns(logits, s), s, float());
        else
            grad(columns(apart, s), s, T());
    }
    Values dlogits;
    const Values all = in_place ? logits.values() : apart.values();
    for (std::int64_t t = 0; t < c.tokens; ++t)
        dlogits.insert(dlogits.end(), all.begin() + t * stride, all.begin() + t * stride + c.vocab);
    return {losses.values(), dlogits, alone.values()};
}

template <class T>
void cross_entropy_matches(bool in_place) {
    for (const Case& c : {Case{1, 11, 0, 0}, Case{4, 512, 4, 1e-3f, 3}, Case{3, 1000, 3, 0}, Case{2, 2311, 1, 1e-4f}})
        for (const int shards : {1, 3}) {
            SCOPED_TRACE(testing::Message()
                         << c.tokens << " x " << c.vocab << " in " << shards << " shards, z " << c.z_loss);
            const Values x = random_values<float>("logits", c.tokens * c.vocab, 4);
            std::vector<std::int32_t> labels;
            for (std::int64_t t = 0; t < c.tokens; ++t)
                labels.push_back(t % 4 == 2 ? -1 : t % 4 == 1 ? 0 : static_cast<std::int32_t>((t * 7919 + 3) % c.vocab));
            auto want = ref::cross_entropy<double, double>(x, labels, static_cast<double>(c.z_loss));
            for (double& d : want.dlogits) d *= static_cast<double>(c.scale);
            const auto plain = ref::cross_entropy<double, double>(x, labels, 0);
            auto naive = ref::cross_entropy<float, T>(ref::cast<float>(x), labels, static_cast<double>(c.z_loss));
            for (float& d : naive.dlogits) d *= c.scale;
            const auto plain_naive = ref::cross_entropy<float, T>(ref::cast<float>(x), labels, 0);
            for (const auto& got :
                 on_gpus([&](Gpu&gpu, Stream&stream) { return run<T>(gpu, stream, c, x, labels, shards, in_place); })) {
                expect_close<float>("loss", got[0], want.loss, widen(naive.loss), steps);
                expect_close<T>("dlogits", got[1], want.dlogits, widen(naive.dlogits), steps);
                expect_close<float>("evaluation loss", got[2], plain.loss, widen(plain_naive.loss), steps);
                for (std::int64_t i = 0; i < c.tokens * c.vocab; ++i)
                    if (labels[static_cast<std::size_t>(i / c.vocab)] < 0) {
                        EXPECT_EQ(got[1][static_cast<std::size_t>(i)], 0);
                    }
            }
        }
}
TEST(CrossEntropyCuda, ShardsOfTheVocabularyMatchTheWholeInFloat) { cross_entropy_matches<float>(false); }
TEST(CrossEntropyCuda, ShardsOfTheVocabularyMatchTheWholeInBf16) { cross_entropy_matches<bf16>(false); }
TEST(CrossEntropyCuda, TheGradientMayOverwriteTheLogits) { cross_entropy_matches<float>(true); }

}  // namespace
}  // namespace keel
