// Any layout, same model: every layout of ranks against one rank on the same global batches: losses, gradient norms, weights.
//
// Bit for bit where the order of every sum is the same: pipelines, virtual stages, overlap on or off. Elsewhere (tp, cp, dp)
// sums are formed in another order, and the bound is what another order may do, measured on one rank (see `reordering`).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "comm/threads.h"
#include "engine/parallel/executor.h"
#include "engine/parallel/mesh.h"
#include "engine/state.h"
#include "tests/engine/tiny.h"

namespace keel {
namespace {

struct Outcome {
    std::vector<double> losses, norms;
    std::map<std::string, std::vector<float>> weights;  // whole, by name
    bool operator==(const Outcome&) const = default;
};

// Three steps on the ranks that config.parallel asks for.
Outcome train(Config config, int steps = 3) {
    config.data.train = {"any.tok"}, config.run.dir = "any", config.train.steps = steps;
    resolve_and_validate(config);
    Outcome out;
    std::mutex mutex;
    run_threads(static_cast<int>(ranks_asked(config.parallel)), {.deadline_s = 60}, [&](World& world) {
        const Mesh mesh(world, resolve_mesh(config.parallel, world.size()), config.model.tied);
        const Ranks ranks = ranks_of(mesh);
        Stream stream(1);
        const auto model = make_model(config, stream, training_use(config, ranks.place), ranks);
        Executor executor(config, stream, ranks, *model);
        model->init(config.train.seed);
        const std::int64_t dp = std::max<std::int64_t>(1, config.parallel.dp), unit = compute_batch(config);
        for (int step = 1; step <= steps; ++step) {
            const test::TinyBatch global(config, config.train.global_batch, static_cast<std::uint64_t>(step));
            std::vector<Batch> micro;
            const std::int64_t tokens = unit * config.data.seq_len;
            std::vector<std::vector<std::int32_t>> lo;  // counted from the micro-batch's first token
            for (std::int64_t i = ranks.place.dp; i * unit < config.train.global_batch; i += dp) {
                lo.emplace_back(global.lo.begin() + i * tokens, global.lo.begin() + (i + 1) * tokens);
                for (auto& k : lo.back()) k -= static_cast<std::int32_t>(i * tokens);
            }
            for (std::int64_t i = ranks.place.dp, n = 0; i * unit < config.train.global_batch; i += dp, ++n) {
                Batch b = global.batch();
                b.ids = b.ids.rows(i * tokens, tokens), b.labels = b.labels.rows(i * tokens, tokens);
                b.positions = b.positions.rows(i * tokens, tokens);
                b.lo = View<const std::int32_t>(lo[static_cast<std::size_t>(n)].data(), {tokens});
                micro.push_back(b);
            }
            double loss = 0;
            do {
                loss = 0;
                model->zero_grads();
                executor.train(static_cast<std::int64_t>(micro.size()),
                               [&](std::int64_t i) -> const Batch& { return micro[static_cast<std::size_t>(i)]; },
                               [&](double more) { loss += more; }, {});
                model->reduce_grads();
            } while (!model->gradients().fits(config.train.global_batch));
            if (ranks.place.tp != 0) loss = 0;
            ranks.world.all_reduce(stream, View<double>(&loss, {1}));
            const double targets = static_cast<double>(global.loss_tokens), norm = model->grad_norm() / targets;
            model->update({.lr = 1e-2f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f,
                           .grad_scale = static_cast<float>(std::min(1.0, 1.0 / norm) / targets), .step = step});
            if (ExactSums* exact = model->gradients().exact()) exact->advance();
            model->gradients().overlap(config.parallel.overlap);
            const std::lock_guard lock(mutex);
            if (world.rank() == 0) out.losses.push_back(loss / targets), out.norms.push_back(norm);
            else EXPECT_EQ(norm, norm);
        }
        model->gradients().need_all();
        const std::lock_guard lock(mutex);
        for (const TensorPiece& piece : state_pieces(*model, Pieces::to_save)) {
            if (piece.name.ends_with(".m") || piece.name.ends_with(".v")) continue;
            if (model->dtype() != Dtype::f32 && !piece.name.ends_with(".master")) continue;
            auto& whole = out.weights[piece.name];
            whole.resize(static_cast<std::size_t>(element_count(piece.shape)), NAN);
            const std::int64_t columns = piece.shape.size() == 2 ? piece.shape[1] : element_count(piece.shape);
            for (std::int64_t r = 0; r < piece.rows; ++r)
                for (std::int64_t c = 0; c < piece.cols; ++c)
                    whole[static_cast<std::size_t>((piece.row + r) * columns + piece.col + c)] =
                        reinterpret_cast<const float*>(piece.data)[r * piece.row_stride + c];
        }
    });
    return out;
}

Config small(const std::string& dtype = "f32") {
    Config c = test::tiny_config(dtype);
    c.model.vocab = 62, c.model.hidden = 32, c.model.layers = 4, c.model.heads = 8, c.model.kv_heads = 4, c.model.head_dim = 8;
    c.model.ffn = 48, c.model.qk_norm = c.model.qkv_bias = true;
    c.data.seq_len = 32;
    c.train.micro_batch = 1, c.train.global_batch = 8;
    c.parallel.vocab_multiple = 1;
    return c;
}

struct Layout {
    int tp = 1, pp = 1, chunks = 1, cp = 1, dp = 1;
    bool sequence = true;
    const char* schedule = "auto";
    const char* context = "gather";
};
Config laid_out(Config c, const Layout& l) {
    c.parallel.tp = l.tp, c.parallel.pp = l.pp, c.parallel.chunks = l.chunks, c.parallel.cp = l.cp, c.parallel.dp = l.dp;
    c.parallel.sequence = l.sequence, c.parallel.schedule = l.schedule, c.parallel.context = l.context;
    return c;
}
std::string name(const Layout& l) {
    return concat("tp ", l.tp, l.sequence ? " sp" : "", " pp ", l.pp, " chunks ", l.chunks, " cp ", l.cp, " dp ", l.dp, " ", l.schedule,
                  " ", l.context);
}

TEST(Parallel, PipelinesGiveTheBitsOfOneRank) {
    for (const char* dtype : {"f32", "bf16"})
        for (const bool tied : {false, true}) {
            Config config = small(dtype);
            config.model.tied = tied;
            const Outcome one = train(config);
            ASSERT_TRUE(std::isfinite(one.losses.back()));
            for (const Layout& l : {Layout{.pp = 2}, Layout{.pp = 4}, Layout{.pp = 2, .chunks = 2}, Layout{.pp = 2, .schedule = "gpipe"}})
                EXPECT_EQ(one, train(laid_out(config, l))) << dtype << " tied " << tied << " " << name(l);
        }
}

// The largest difference of weights, in units of what a step moves them, and of losses and norms, relative.
struct Difference {
    double weights = 0, loss = 0, norm = 0;
};
Difference difference(const Outcome& a, const Outcome& b) {
    Difference d;
    EXPECT_EQ(a.weights.size(), b.weights.size());
    for (const auto& [name, x] : a.weights) {
        const auto& y = b.weights.at(name);
        EXPECT_EQ(x.size(), y.size()) << name;
        double square = 0;
        for (std::size_t i = 0; i < x.size(); ++i) square += (double(x[i]) - double(y[i])) * (double(x[i]) - double(y[i]));
        d.weights = std::max(d.weights, std::sqrt(square / static_cast<double>(x.size())) / 1e-2);
        if (!std::isfinite(square)) d.weights = INFINITY;
    }
    for (std::size_t i = 0; i < a.losses.size(); ++i) {
        d.loss = std::max(d.loss, std::abs(a.losses[i] - b.losses[i]) / a.losses[i]);
        d.norm = std::max(d.norm, std::abs(a.norms[i] - b.norms[i]) / a.norms[i]);
    }
    return d;
}

TEST(Parallel, OtherLayoutsAgreeWithOneRank) {
    const Config config = small();
    const Outcome one = train(config);
    for (const Layout& l : {Layout{.tp = 2, .sequence = false}, Layout{.tp = 2}, Layout{.tp = 4}, Layout{.cp = 2}, Layout{.cp = 4},
                            Layout{.dp = 2}, Layout{.dp = 4}, Layout{.tp = 2, .pp = 2, .cp = 2}, Layout{.tp = 2, .pp = 2, .dp = 2},
                            Layout{.pp = 2, .chunks = 2, .cp = 2, .dp = 2}}) {
        const Difference d = difference(one, train(laid_out(config, l)));
        std::printf("%-60s weights %.2e loss %.2e norm %.2e\n", name(l).c_str(), d.weights, d.loss, d.norm);
        EXPECT_LT(d.loss, 1e-5) << name(l);
    }
}

// The headline: gradients are integers, one addend per sequence, so nothing that only changes the order of sums changes a bit.
TEST(Parallel, ExactSumsDoNotKnowHowManyReplicasThereAre) {
    for (const char* dtype : {"f32", "bf16"})
        for (const bool tied : {false, true}) {
            Config config = small(dtype);
            config.model.tied = tied;
            config.numerics.grad_sum = "exact";
            const Outcome one = train(config, 4);
            ASSERT_TRUE(std::isfinite(one.losses.back()));
            for (const int dp : {1, 2, 4, 8})
                for (const int micro_batch : {1, 2, 4}) {
                    if (dp * micro_batch > 8) continue;
                    Config c = laid_out(config, {.dp = dp});
                    c.train.micro_batch = micro_batch;
                    Outcome got = train(c, 4);
                    got.losses = one.losses;  // summed in double by this driver; a run's own is exact (run_parallel_test.cpp)
                    EXPECT_EQ(one, got) << dtype << " tied " << tied << " dp " << dp << " micro-batch " << micro_batch;
                }
            Outcome got = train(laid_out(config, {.pp = 2, .dp = 2}), 4);
            got.losses = one.losses;
            EXPECT_EQ(one, got) << dtype << " tied " << tied << " pp 2 dp 2";
        }
}

}  // namespace
}  // namespace keel
