// Same inputs, same bits: threads, repeated runs, recompute policies, where a micro-batch is cut from its buffers.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/model/decoder.h"
#include "engine/model/model.h"
#include "tests/engine/tiny.h"

namespace keel {
namespace {

struct Outcome {
    std::vector<double> losses, norms;
    std::vector<float> weights;
    bool operator==(const Outcome&) const = default;
};

Outcome train(const Config& config, int threads, int steps = 4) {
    Stream stream(threads);
    const auto model = make_model(config, stream, training_use(config));
    model->init(config.train.seed);
    Outcome out;
    for (int step = 1; step <= steps; ++step) {
        model->zero_grads();
        double count = 0;
        for (std::uint64_t micro = 0; micro < 2; ++micro) {
            const test::TinyBatch batch(config, config.train.micro_batch, static_cast<std::uint64_t>(10 * step) + micro);
            out.losses.push_back(model->train_micro_batch(batch.batch()));
            count += static_cast<double>(batch.loss_tokens);
        }
        model->reduce_grads();
        out.norms.push_back(model->grad_norm() / count);
        model->update({.lr = 1e-2f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f,
                       .grad_scale = static_cast<float>(1 / count), .step = step});
    }
    const View<float> master = model->master();
    out.weights.assign(master.data(), master.data() + master.size());
    return out;
}

std::vector<Config> variants(const std::string& dtype) {
    Config plain = test::tiny_config(dtype), all = plain;
    all.model.qkv_bias = all.model.qk_norm = all.model.tied = true;
    all.model.head_dim = 16;
    all.model.window = 7;
    all.optim.z_loss = 1e-3;
    Config wide = plain;  // more than one tile in every direction
    wide.model.hidden = 160, wide.model.head_dim = 40, wide.model.ffn = 320, wide.model.vocab = 517;
    wide.data.seq_len = 150, wide.memory.head_chunk = 64;
    Config behind = all;  // norms behind the branches; part of a head turns
    behind.model.qkv_bias = false, behind.model.post_norm = behind.model.qk_norm_whole = true;
    behind.model.rope_fraction = 0.75;
    return {plain, all, wide, behind};
}

class Bits : public testing::TestWithParam<const char*> {};

TEST_P(Bits, AreTheSameOnAnyNumberOfThreadsAndOnEveryRun) {
    for (const Config& config : variants(GetParam())) {
        const Outcome one = train(config, 1);
        EXPECT_TRUE(std::isfinite(one.losses.back()));
        EXPECT_EQ(one, train(config, 1));
        EXPECT_EQ(one, train(config, 2));
        EXPECT_EQ(one, train(config, 3));
    }
}

TEST_P(Bits, AreTheSameUnderEveryRecomputePolicy) {
    for (Config config : variants(GetParam())) {
        const Outcome none = train(config, 2);
        for (const char* policy : {"swiglu", "norms", "attention", "block"}) {
            config.memory.recompute = policy;
            EXPECT_EQ(none, train(config, 2)) << policy;
        }
    }
}

TEST_P(Bits, OfTheLossDoNotDependOnTheHeadChunk) {
    Config config = variants(GetParam())[2];
    config.memory.head_chunk = 300;
    const Outcome whole = train(config, 2, 1);
    config.memory.head_chunk = 77;
    EXPECT_EQ(whole.losses, train(config, 2, 1).losses);
}

// The loss falls: three layers learn a rule from ids to labels within a few steps.
TEST_P(Bits, BelongToAModelThatLearns) {
    Config config = test::tiny_config(GetParam());
    const Outcome out = train(config, 2, 30);
    EXPECT_LT(out.losses.back(), 0.7 * out.losses.front());
}

// A short micro-batch uses the first rows of buffers made for a long one; nothing of what lay behind them may show.
TEST_P(Bits, OfAShortMicroBatchIgnoreWhatLiesBehindIt) {
    const Config config = variants(GetParam())[0];
    Stream stream(2);
    const auto large = make_model(config, stream, training_use(config));
    Config one = config;
    one.train.micro_batch = 1;
    const auto small = make_model(one, stream, training_use(one));
    large->init(1), small->init(1);
    const test::TinyBatch full(config, 2, 5), half(config, 1, 6);
    large->zero_grads(), small->zero_grads();
    large->train_micro_batch(full.batch());
    large->zero_grads();
    EXPECT_EQ(large->train_micro_batch(half.batch()), small->train_micro_batch(half.batch()));
    EXPECT_EQ(std::memcmp(large->grads().data(), small->grads().data(), static_cast<std::size_t>(small->grads().bytes())), 0);
}

// A label of -1 costs nothing and teaches nothing.
TEST_P(Bits, OfGradientsAreZeroWithoutTargets) {
    const Config config = test::tiny_config(GetParam());
    Stream stream(1);
    const auto model = make_model(config, stream, training_use(config));
    model->init(1);
    test::TinyBatch batch(config, 1, 3);
    for (auto& label : batch.labels) label = -1;
    model->zero_grads();
    EXPECT_EQ(model->train_micro_batch(batch.batch()), 0.0);
    model->reduce_grads();
    EXPECT_EQ(model->grad_norm(), 0.0);
}

// Nothing leaks from the future or from another document: with one token changed, every logit before it, of other documents and
// of other rows keeps its bits. Packed documents are apart by this alone; positions that begin anew would not part them.
TEST_P(Bits, OfLogitsDoNotDependOnLaterTokensNorOnOtherDocuments) {
    for (const Config& config : variants(GetParam())) {
        Stream stream(2);
        const auto model = make_model(config, stream, training_use(config));
        model->init(3);
        test::TinyBatch batch(config, config.train.micro_batch, 4);
        const auto tokens = static_cast<std::int64_t>(batch.ids.size());
        const auto logits = [&] {
            std::vector<float> all(static_cast<std::size_t>(tokens * config.model.vocab));
            model->logits(batch.batch(), View<float>(all.data(), {tokens, config.model.vocab}));
            return all;
        };
        const std::vector<float> before = logits();
        for (const std::int64_t changed : {std::int64_t{0}, tokens / 3, tokens / 2 + 1, tokens - 1}) {
            std::int32_t& id = batch.ids[static_cast<std::size_t>(changed)];
            const std::int32_t was = std::exchange(id, static_cast<std::int32_t>((id + 1) % config.model.vocab));
            const std::vector<float> after = logits();
            id = was;
            // It reaches those that see it, those that see these in the next layer, and so on: not past its document.
            std::int64_t end = changed + 1;
            while (end < tokens && batch.positions[static_cast<std::size_t>(end)] > 0) ++end;
            for (std::int64_t i = 0; i < tokens; ++i) {
                const auto vocab = static_cast<std::size_t>(config.model.vocab), at = static_cast<std::size_t>(i) * vocab;
                const bool same = std::memcmp(&before[at], &after[at], vocab * sizeof(float)) == 0;
                if (i < changed || i >= end) {
                    EXPECT_TRUE(same) << "token " << i << " felt a change of token " << changed;
                } else if (i == changed) {
                    EXPECT_FALSE(same) << "token " << i;
                }
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Dtype, Bits, testing::Values("f32", "bf16"), [](const auto& p) { return std::string(p.param); });

// Token by token through the cache, or all at once: the same function. Blocks of queries and keys are cut differently, so sums
// differ in order, by at most depth x width x 2^-24 of the largest logit: 3 layers x 3 sums each x 160 x 6e-8 = 9e-5.
TEST(Decoder, GivesTheLogitsOfTheWholeSequence) {
    for (Config config : variants("f32")) {
        Stream stream(2);
        config.data.seq_len = 150;
        config.train.micro_batch = 1;
        const auto model = make_model(config, stream, training_use(config));
        model->init(3);
        test::TinyBatch batch(config, 1, 9);
        for (std::int64_t i = 0; i < 150; ++i) {  // one document
            batch.positions[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i);
            batch.lo[static_cast<std::size_t>(i)] =
                static_cast<std::int32_t>(config.model.window > 0 ? std::max<std::int64_t>(0, i - config.model.window + 1) : 0);
        }
        std::vector<float> all(static_cast<std::size_t>(150 * config.model.vocab));
        model->logits(batch.batch(), View<float>(all.data(), {150, config.model.vocab}));
        float largest = 0;
        for (const float x : all) largest = std::max(largest, std::abs(x));

        const auto decoder = make_decoder(config, stream, *model, 150);
        const std::span<const std::int32_t> ids(batch.ids);
        std::int64_t done = 0;
        for (const std::int64_t n : {1, 5, 130, 1, 1, 12}) {
            const View<const float> got = decoder->append(ids.subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(n)));
            done += n;
            for (std::int64_t i = 0; i < config.model.vocab; ++i)
                ASSERT_NEAR(got[i], all[static_cast<std::size_t>((done - 1) * config.model.vocab + i)], 9e-5f * largest);
        }
        EXPECT_EQ(done, 150);
        EXPECT_THROW(decoder->append(ids.first(1)), Error);  // the cache is full
    }
}

}  // namespace
}  // namespace keel
