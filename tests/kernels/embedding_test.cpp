#include "kernels/embedding.h"

#include <gtest/gtest.h>

#include "tests/kernels/golden.h"
#include "tests/kernels/reference.h"
#include "tests/kernels/tensor.h"

namespace keel {
namespace {

template <class T> std::vector<Values> run(Stream& stream, const Values& w, const std::vector<std::int32_t>& ids,
                                           const Values& dy, const Values& before, std::int64_t begin,
                                           std::int64_t hidden) {
    const auto tokens = static_cast<std::int64_t>(ids.size()),
               vocab = static_cast<std::int64_t>(before.size()) / hidden;
    Tensor<T> table(w, vocab, hidden), y(tokens, hidden), d(dy, tokens, hidden);
    Tensor<float> dw(before, vocab, hidden);
    Tensor<std::int32_t> id(Values(ids.begin(), ids.end()));
    embedding_forward<T>(stream, {.y = y.view(), .ids = id.read(), .w = table.read(), .vocab_begin = begin});
    embedding_backward<T>(stream, {.dw = dw.view(), .dy = d.read(), .ids = id.read(), .vocab_begin = begin});
    EXPECT_TRUE(y.untouched() && dw.untouched());
    return {y.values(), dw.values()};
}

// A gradient row is a chain of float additions in token order and nothing else: no tolerance against the naive sum.
template <class T> void matches() {
    for (const std::int64_t tokens : {1, 2, 7, 64, 65, 257})
        for (const std::int64_t hidden : {8, 16, 31, 288, 513})
            for (const std::int64_t vocab : {11, 512}) {
                SCOPED_TRACE(testing::Message() << tokens << " x " << hidden << " of " << vocab);
                std::vector<std::int32_t> ids;
                for (std::int64_t t = 0; t < tokens; ++t)  // repeats, and ids of other shards on both sides
                    ids.push_back(static_cast<std::int32_t>((t * t * 7 + t) % (vocab + 8) + 96));
                const Values w = random_values<T>("w", vocab * hidden), dy = random_values<T>("dy", tokens * hidden);
                const Values before = random_values<float>("before", vocab * hidden);
                const auto got = on_any_threads([&](Stream& s) { return run<T>(s, w, ids, dy, before, 100, hidden); });
                const auto n = static_cast<std::size_t>(hidden);
                EXPECT_TRUE(same_bits(got[0], ref::embedding(w, ids, 100, n)));
                EXPECT_TRUE(same_bits(got[1], widen(ref::embedding_backward(ref::cast<float>(before),
                                                                            ref::cast<float>(dy), ids, 100, n))));
            }
}
TEST(Embedding, CopiesRowsAndSumsGradientsInTokenOrderInFloat) { matches<float>(); }
TEST(Embedding, CopiesRowsAndSumsGradientsInTokenOrderInBf16) { matches<bf16>(); }
TEST(Embedding, CopiesRowsAndSumsGradientsInTokenOrderInF16) { matches<f16>(); }

TEST(Embedding, IsTheGolden) {
    const Golden g("ops/embedding");
    const std::vector<std::int32_t> ids(g["ids"].begin(), g["ids"].end());
    const auto got = run<float>(stream_of(2), g["w"], ids, g["dy"], g["dw_before"],
                                static_cast<std::int64_t>(g.scalar("vocab_begin")), g.dim("w", 1));
    EXPECT_TRUE(same_bits(got[0], g["y"]));
    // At most four float additions per element.
    EXPECT_LE(worst_error(got[1], g["dw"]), 4 * unit_roundoff<float>);
}

TEST(Embedding, RefusesShapesThatDisagree) {
    Tensor<float> w(5, 8), y(3, 7);
    Tensor<std::int32_t> ids(Values{0, 1, 2});
    EXPECT_EQ(error_of([&] {
                  embedding_forward<float>(stream_of(1),
                                           {.y = y.view(), .ids = ids.read(), .w = w.read(), .vocab_begin = 0});
              }),
              "embedding: y is [3, 7], but must be [3, 8]");
    EXPECT_EQ(error_of([&] {
                  embedding_backward<float>(stream_of(1),
                                            {.dw = w.view(), .dy = y.read(), .ids = ids.read(), .vocab_begin = 0});
              }),
              "embedding: dy is [3, 7], but must be [3, 8]");
}

}  // namespace
}  // namespace keel
