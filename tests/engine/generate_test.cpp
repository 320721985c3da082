#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <vector>

#include "data/bpe_train.h"
#include "engine/generate.h"
#include "kernels/base/random.h"
#include "tests/engine/tiny.h"

namespace keel {
namespace {

const std::vector<float> logits{1.0f, 3.0f, 2.0f, 3.0f, -1e30f};

std::int32_t choose(const Sampling& s, double u) {
    std::vector<std::int32_t> order;
    return choose_token(View<const float>(logits.data(), {5}), s, u, order);
}

TEST(ChooseToken, TakesTheLikeliestAtTemperatureZeroAndTheLowerIdOfATie) {
    for (double u : {0.0, 0.5, 0.999}) EXPECT_EQ(choose({.temperature = 0}, u), 1);
}

TEST(ChooseToken, DrawsInProportionToTheProbabilities) {
    const Random random(1, Purpose::test, "choose");
    std::map<std::int32_t, int> seen;
    constexpr int n = 40000;
    for (std::uint64_t i = 0; i < n; ++i) seen[choose({.temperature = 1.0}, random.uniform(i))]++;
    const double z = std::exp(1.0) + 2 * std::exp(3.0) + std::exp(2.0);
    for (int id : {0, 1, 2, 3}) {
        const double p = std::exp(static_cast<double>(logits[static_cast<std::size_t>(id)])) / z;
        EXPECT_NEAR(seen[id], n * p, 5 * std::sqrt(n * p * (1 - p))) << id;  // five standard deviations
    }
    EXPECT_EQ(seen[4], 0);
}

TEST(ChooseToken, TopKAndTopPLeaveOnlyTheLikeliest) {
    for (double u = 0; u < 1; u += 0.01) {
        EXPECT_TRUE(choose({.temperature = 1, .top_k = 1}, u) == 1);
        const auto two = choose({.temperature = 1, .top_k = 2}, u);
        EXPECT_TRUE(two == 1 || two == 3);
        const auto nucleus = choose({.temperature = 1, .top_p = 0.7}, u);  // 0.4 + 0.4 reach it
        EXPECT_TRUE(nucleus == 1 || nucleus == 3);
        EXPECT_EQ(choose({.temperature = 1, .top_p = 1e-9}, u), 1);
    }
}

TEST(Generate, StopsAtEveryTokenThatEndsTheText) {
    BpeTrainer trainer;
    trainer.add("a few words, and a few more words");
    const Tokenizer tokenizer = trainer.train({.vocab_size = 264});
    Config config = test::tiny_config("f32");
    config.model.vocab = tokenizer.vocab_size();
    Stream stream(1);
    const auto model = make_model(config, stream, training_use(config));
    model->init(3);
    const auto decoder = make_decoder(config, stream, *model, config.data.seq_len);
    const Sampling without{.temperature = 0, .max_tokens = 8};
    std::vector<std::int32_t> order;
    const std::int32_t first = choose_token(decoder->append(tokenizer.encode("a few")), without, 0, order);
    ASSERT_NE(first, tokenizer.eos_id());
    EXPECT_NE(generate(*decoder, tokenizer, "a few", without), "");
    Sampling with = without;
    with.ending_ids = {(first + 1) % 264, first};
    EXPECT_EQ(generate(*decoder, tokenizer, "a few", with), "");
}

TEST(Sampling, RefusesValuesOutsideTheirRange) {
    const auto message = [](const Sampling& s) {
        try {
            check_sampling(s);
        } catch (const Error& e) {
            EXPECT_EQ(e.code(), ExitCode::usage);
            return std::string(e.what());
        }
        return std::string();
    };
    EXPECT_NE(message({.temperature = -1}).find("--temperature is -1"), std::string::npos);
    EXPECT_NE(message({.top_k = -2}).find("--top-k is -2"), std::string::npos);
    EXPECT_NE(message({.top_p = 0}).find("--top-p is 0"), std::string::npos);
    EXPECT_NE(message({.max_tokens = 0}).find("--max-tokens is 0"), std::string::npos);
    EXPECT_EQ(message({}), "");
}

}  // namespace
}  // namespace keel
