// Any layout, same model: every layout of ranks against one rank on the same global batches: losses, gradient norms,
// weights.
//
// Bit for bit where the order of every sum is the same: pipelines and their schedules, virtual stages, overlap on or
// off, recompute, threads per rank. Elsewhere (tp, cp, dp) sums are formed in another order, and the bound is a small
// multiple of the error of naive evaluations in the same precision, all against float64 (see `Bounds`).
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
#include "engine/parallel/slices.h"
#include "engine/state.h"
#include "tests/engine/reference_model.h"
#include "tests/engine/tiny.h"

namespace keel {
namespace {

// Eps is large beside the rounding errors of the clipped gradient's elements, and small beside most elements: one that
// is all rounding must not move by a whole lr and decide the distance of its tensor.
constexpr double lr = 1e-2, beta1 = 0.9, beta2 = 0.95, eps = 1e-4, weight_decay = 0.1;

struct Outcome {
    std::vector<double> losses, norms;
    std::map<std::string, std::vector<float>> weights;  // whole, by name
    bool operator==(const Outcome&) const = default;
};
void PrintTo(const Outcome& x, std::ostream* out) {
    *out << "losses " << testing::PrintToString(x.losses) << ", norms " << testing::PrintToString(x.norms);
}

// Three steps on the ranks that config.parallel asks for, of `threads` each.
Outcome train(Config config, int steps = 3, int threads = 1) {
    config.data.train = {"any.tok"}, config.run.dir = "any", config.train.steps = std::max(1, steps);
    resolve_and_validate(config);
    Outcome out;
    std::map<int, std::vector<double>> norms;  // by rank
    std::mutex mutex;
    run_threads(static_cast<int>(ranks_asked(config.parallel)), {.deadline_s = 60}, [&](World& world) {
        const Mesh mesh(world, resolve_mesh(config.parallel, world.size()), config.model.tied);
        const Ranks ranks = ranks_of(mesh);
        Stream stream(threads);
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
                               [&](std::int64_t i) -> const Batch& { return micro[static_cast<std::size_t>(i)]; }, {});
                model->reduce_grads();
                for (const double more : model->take_losses()) loss += more;
            } while (!model->gradients().fits(config.train.global_batch));
            if (ranks.place.tp != 0) loss = 0;
            ranks.world.all_reduce(stream, View<double>(&loss, {1}));
            const double targets = static_cast<double>(global.loss_tokens), norm = model->grad_norm() / targets;
            model->update({.lr = float(lr), .beta1 = float(beta1), .beta2 = float(beta2), .eps = float(eps),
                           .weight_decay = float(weight_decay),
                           .grad_scale = static_cast<float>(std::min(1.0, 1.0 / norm) / targets), .step = step});
            if (ExactSums* exact = model->gradients().exact()) exact->advance();
            const ParallelSection& p = config.parallel;
            model->gradients().overlap(p.overlap && p.overlap_reduce, p.overlap && p.overlap_gather);
            const std::lock_guard lock(mutex);
            norms[world.rank()].push_back(norm);
            if (world.rank() == 0) out.losses.push_back(loss / targets);
        }
        model->gradients().need_all();
        const std::lock_guard lock(mutex);
        for (const TensorPiece& piece : state_pieces(*model, Pieces::to_save)) {
            if (piece.name.ends_with(".m") || piece.name.ends_with(".v")) continue;
            if (model->dtype() != Dtype::f32 && !piece.name.ends_with(".master")) continue;
            auto& whole = out.weights[piece.name.substr(0, piece.name.find(".master"))];
            whole.resize(static_cast<std::size_t>(element_count(piece.shape)), NAN);
            const std::int64_t columns = piece.shape.size() == 2 ? piece.shape[1] : element_count(piece.shape);
            for (std::int64_t r = 0; r < piece.rows; ++r)
                for (std::int64_t c = 0; c < piece.cols; ++c)
                    whole[static_cast<std::size_t>((piece.row + r) * columns + piece.col + c)] =
                        reinterpret_cast<const float*>(piece.data)[r * piece.row_stride + c];
        }
    });
    out.norms = norms[0];
    for (const auto& [rank, mine] : norms) EXPECT_EQ(mine, out.norms) << "rank " << rank;
    return out;
}

Config small(const std::string& dtype = "f32") {
    Config c = test::tiny_config(dtype);
    c.model.vocab = 62, c.model.hidden = 32, c.model.layers = 4, c.model.ffn = 48;
    c.model.heads = 8, c.model.kv_heads = 4, c.model.head_dim = 8, c.model.qk_norm = c.model.qkv_bias = true;
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
    int group = 0;
};
Config laid_out(Config c, const Layout& l) {
    c.parallel.tp = l.tp, c.parallel.pp = l.pp, c.parallel.cp = l.cp, c.parallel.dp = l.dp;
    c.parallel.chunks = l.chunks, c.parallel.sequence = l.sequence;
    c.parallel.schedule = l.schedule, c.parallel.context = l.context, c.parallel.micro_batch_group = l.group;
    return c;
}
std::string name(const Layout& l) {
    return concat("tp ", l.tp, l.sequence ? " sp" : "", " pp ", l.pp, " chunks ", l.chunks, " cp ", l.cp, " dp ", l.dp,
                  " ", l.schedule, " ", l.context);
}

TEST(Parallel, PipelinesGiveTheBitsOfOneRank) {
    for (const char* dtype : {"f32", "bf16"})
        for (const bool tied : {false, true}) {
            Config config = small(dtype);
            config.model.tied = tied;
            const Outcome one = train(config);
            ASSERT_TRUE(std::isfinite(one.losses.back()));
            for (const Layout& l : {Layout{.pp = 2, .schedule = "1f1b"}, Layout{.pp = 4}, Layout{.pp = 2, .chunks = 2},
                                    Layout{.pp = 2, .schedule = "gpipe"}, Layout{.pp = 2, .chunks = 2, .group = 8}})
                EXPECT_EQ(one, train(laid_out(config, l))) << dtype << " tied " << tied << " " << name(l);
        }
}

// The same steps by plain loops (reference_model.h): R is the type of arithmetic, Store what values are rounded to.
struct Plain {
    std::vector<double> losses, norms;
    std::vector<std::vector<double>> token_losses;                   // by step
    std::vector<std::map<std::string, std::vector<double>>> grads;   // of the mean loss, by step
    std::map<std::string, std::vector<double>> weights;
};
template <class R, class Store> Plain plain(const Config& c, const Weights& initial, std::size_t first_term = 0) {
    ReferenceModel<R, Store> model(c.model, initial);
    model.first_term = first_term;
    Plain out;
    for (int step = 1; step <= 3; ++step) {
        const test::TinyBatch batch(c, c.train.global_batch, static_cast<std::uint64_t>(step));
        Rows rows(c.model, {}, {});
        rows.ids = batch.ids, rows.labels = batch.labels, rows.positions = batch.positions, rows.lo = batch.lo;
        rows.loss_tokens = batch.loss_tokens;
        const double targets = static_cast<double>(batch.loss_tokens);
        const auto result = model.forward(rows);
        model.zero_grads();
        model.backward(rows);
        out.losses.push_back(result.loss / targets);
        out.norms.push_back(model.grad_norm() / targets);
        out.token_losses.emplace_back(result.token_loss.begin(), result.token_loss.end());
        auto& grads = out.grads.emplace_back();
        for (const auto& [name, g] : model.grads)
            for (const R x : g) grads[name].push_back(static_cast<double>(x) / targets);
        model.update({.lr = lr, .beta1 = beta1, .beta2 = beta2, .eps = eps, .weight_decay = weight_decay,
                      .grad_scale = std::min(1.0, 1.0 / out.norms.back()) / targets}, step);
    }
    for (const auto& [name, w] : model.master) out.weights[name].assign(w.begin(), w.end());
    return out;
}

template <class A, class B> double distance(const A& a, const B& b) {
    double square = 0;
    for (std::size_t i = 0; i < b.size(); ++i) square += std::pow(double(a.at(i)) - double(b[i]), 2);
    return std::sqrt(square);
}

// What an evaluation in this precision may be off from float64. The mean loss is bounded by what tokens' losses are
// off, since |sum of errors| <= sum of |errors|; the norm by the gradients, since | |g| - |h| | <= |g - h|; weights by
// the worst tensor of their kind over all layers: some are eight numbers, and three evaluations say little of those.
// Twice the largest error seen; three times in bf16, where partial sums of tensor-parallel ranks are rounded once more.
struct Bounds {
    double times;
    std::vector<double> loss, norm;
    std::map<std::string, double> weights;  // root mean square, by kind
    Plain truth;

    static std::string kind(const std::string& name) { return name.substr(name.rfind('.') + 1); }
    template <class Trained> void allow(const Trained& trained) {
        for (const auto& [name, w] : truth.weights) {
            double& bound = weights[kind(name)];
            bound = std::max(bound, times * distance(trained.at(name), w) / std::sqrt(static_cast<double>(w.size())));
        }
    }
};
template <class Store> Bounds bounds(const Config& config, const Weights& initial) {
    Bounds b{.times = sizeof(Store) == sizeof(float) ? 2.0 : 3.0, .loss = std::vector<double>(3),
             .norm = std::vector<double>(3), .weights = {}, .truth = plain<double, double>(config, initial)};
    for (const std::size_t first_term : {0, 7}) {  // two orders of every sum
        const Plain naive = plain<float, Store>(config, initial, first_term);
        for (std::size_t s = 0; s < 3; ++s) {
            double loss = 0, grads = 0, tokens = 0;
            for (std::size_t t = 0; t < naive.token_losses[s].size(); ++t) {
                loss += std::abs(naive.token_losses[s][t] - b.truth.token_losses[s][t]);
                tokens += b.truth.token_losses[s][t] != 0;  // one that is not predicted
            }
            for (const auto& [name, g] : b.truth.grads[s]) grads += std::pow(distance(naive.grads[s].at(name), g), 2);
            b.loss[s] = std::max(b.loss[s], b.times * loss / tokens);
            b.norm[s] = std::max(b.norm[s], b.times * std::sqrt(grads));
        }
        b.allow(naive.weights);
    }
    return b;
}
Bounds bounds(const Config& config) {
    Weights initial;
    for (const auto& [name, w] : train(config, 0).weights) initial[name].assign(w.begin(), w.end());
    Bounds b = config.model.dtype == "f32" ? bounds<float>(config, initial) : bounds<bf16>(config, initial);
    b.allow(train(config).weights);  // a third order: that of one rank
    return b;
}

// The worst of everything, as a share of its bound.
double expect_within(const Outcome& got, const Bounds& b, const std::string& what) {
    double worst = 0;
    const auto within = [&](double error, double bound, const std::string& name) {
        EXPECT_LE(error, bound) << what << ": " << name;
        worst = std::max(worst, error / bound);
    };
    EXPECT_EQ(got.weights.size(), b.truth.weights.size());
    for (std::size_t s = 0; s < 3; ++s) {
        within(std::abs(got.losses.at(s) - b.truth.losses[s]), b.loss[s], concat("loss of step ", s + 1));
        within(std::abs(got.norms.at(s) - b.truth.norms[s]), b.norm[s], concat("gradient norm of step ", s + 1));
    }
    for (const auto& [name, w] : b.truth.weights) {
        const double error = distance(got.weights.at(name), w) / std::sqrt(static_cast<double>(w.size()));
        within(error, b.weights.at(Bounds::kind(name)), name);
    }
    return worst;
}

TEST(Parallel, OtherLayoutsAgreeWithOneRankWithinTheErrorOfANaiveEvaluation) {
    const std::vector<Layout> layouts = {{},
                                         {.tp = 2, .sequence = false},
                                         {.tp = 2},
                                         {.tp = 4, .sequence = false},
                                         {.tp = 4},
                                         {.cp = 2},
                                         {.cp = 4},
                                         {.cp = 2, .context = "ring"},
                                         {.cp = 4, .context = "ring"},
                                         {.dp = 2},
                                         {.dp = 4},
                                         {.tp = 2, .pp = 2, .cp = 2},
                                         {.tp = 2, .pp = 2, .cp = 2, .context = "ring"},
                                         {.tp = 2, .pp = 2, .dp = 2},
                                         {.pp = 2, .chunks = 2, .cp = 2, .dp = 2}};
    for (const auto& [dtype, tied] : {std::pair{"f32", false}, {"f32", true}, {"bf16", true}}) {
        Config config = small(dtype);
        config.model.tied = tied;
        const Bounds b = bounds(config);
        for (const Layout& l : layouts) {
            const std::string what = concat(dtype, tied ? " tied " : " ", name(l));
            std::printf("%-60s %.2f of the bound\n", what.c_str(), expect_within(train(laid_out(config, l)), b, what));
        }
    }
}

// Norms behind the branches, and of all of q and all of k, whose heads the ranks share (OLMo-2): the sums of squares meet.
TEST(Parallel, NormsOfAllHeadsAgreeWithOneRankWithinTheErrorOfANaiveEvaluation) {
    for (const char* dtype : {"f32", "bf16"}) {
        Config config = small(dtype);
        config.model.qkv_bias = false, config.model.post_norm = config.model.qk_norm_whole = true;
        config.model.rope_fraction = 0.75;
        const Bounds b = bounds(config);
        for (const Layout& l : {Layout{.tp = 2, .sequence = false}, Layout{.tp = 4}, Layout{.tp = 2, .pp = 2, .cp = 2}}) {
            const std::string what = concat(dtype, " post-norm ", name(l));
            std::printf("%-60s %.2f of the bound\n", what.c_str(), expect_within(train(laid_out(config, l)), b, what));
        }
        config.parallel.tp = config.parallel.pp = 2;
        const Outcome kept = train(config);
        config.memory.recompute = "block";
        EXPECT_EQ(kept, train(config)) << dtype;
    }
}

// The batches above have documents on both sides of every cut of a row into slices.
TEST(Parallel, DocumentsOfTheseTestsCrossTheCutsOfContextParallelRanks) {
    const Config config = small();
    for (const int cp : {2, 4}) {
        const test::TinyBatch batch(config, config.train.global_batch, 1);
        const std::int64_t chunk = config.data.seq_len / (2 * cp);
        for (std::int64_t cut = chunk; cut < config.data.seq_len; cut += chunk) {
            int crossing = 0;
            for (std::int64_t row = 0; row < config.train.global_batch; ++row) {
                const std::int64_t t = row * config.data.seq_len + cut;
                crossing += batch.lo[static_cast<std::size_t>(t)] < t ? 1 : 0;
            }
            EXPECT_GT(crossing, 0) << "cp " << cp << ", token " << cut;
        }
    }
}

TEST(Parallel, OverlapChangesNoBit) {
    for (const bool tied : {false, true}) {
        Config config = small("bf16");
        config.model.tied = tied;
        config.parallel.bucket = 3000;  // a dozen of them
        for (const Layout& l :
             {Layout{.dp = 4}, Layout{.tp = 2, .cp = 2, .dp = 2}, Layout{.pp = 2, .chunks = 2, .dp = 2}}) {
            Config with = laid_out(config, l), reduce = with, gather = with, without = with;
            reduce.parallel.overlap_gather = false, gather.parallel.overlap_reduce = false;
            without.parallel.overlap = false;
            const auto expected = train(without);
            for (const Config& pieces : {with, reduce, gather})
                EXPECT_EQ(train(pieces), expected) << "tied " << tied << " " << name(l);
        }
    }
}

// Beside other axes, too: what a stage computes is what the whole did. With replicas, shards end elsewhere in a stage
// than in the whole, so a parameter's squares may be summed in other parts: the norm is a double, and may differ by the
// roundings of a sum of so many squares.
TEST(Parallel, PipelinesBesideOtherAxesGiveTheBitsWithoutThem) {
    Config config = small();
    config.model.tied = true;
    for (Layout l : {Layout{.tp = 2}, Layout{.cp = 2}, Layout{.dp = 2}}) {
        const Outcome without = train(laid_out(config, l));
        double squares = 0;
        for (const auto& [name, w] : without.weights) squares += static_cast<double>(w.size());
        for (const int chunks : {1, 2}) {
            l.pp = 2, l.chunks = chunks;
            Outcome with = train(laid_out(config, l));
            for (std::size_t i = 0; i < with.norms.size() && l.cp * l.dp > 1; ++i) {
                EXPECT_NEAR(with.norms[i], without.norms[i], without.norms[i] * squares * 0x1p-53) << name(l);
                with.norms[i] = without.norms[i];
            }
            EXPECT_EQ(without.norms, with.norms) << name(l);
            EXPECT_EQ(without.losses, with.losses) << name(l);
            EXPECT_TRUE(without.weights == with.weights) << name(l);
        }
    }
}

TEST(Parallel, UnevenStagesGiveTheBitsOfOneRank) {
    const Config config = small();
    const Outcome one = train(config);
    for (const auto& [pp, chunks, layers] :
         {std::tuple{2, 1, "Et|tttL"}, {2, 1, "Etttt|L"}, {3, 1, "E|tttt|L"}, {2, 2, "Et|tt||tL"}}) {
        Config c = laid_out(config, {.pp = pp, .chunks = chunks});
        c.parallel.layers = layers;
        EXPECT_EQ(one, train(c)) << layers;
    }
    Config c = laid_out(config, {.pp = 3});
    c.parallel.first_layers = c.parallel.last_layers = 1;
    EXPECT_EQ(one, train(c)) << "1 2 1";
}

TEST(Parallel, RecomputingChangesNoBitOfAnyLayout) {
    for (const Layout& l : {Layout{.tp = 2}, Layout{.pp = 2, .chunks = 2}, Layout{.tp = 2, .pp = 2, .cp = 2}}) {
        Config config = laid_out(small("bf16"), l);
        const Outcome kept = train(config);
        for (const char* policy : {"swiglu", "norms", "attention", "block"}) {
            config.memory.recompute = policy;
            EXPECT_EQ(kept, train(config)) << policy << " " << name(l);
        }
    }
}

TEST(Parallel, ThreadsOfARankChangeNoBit) {
    Config config = laid_out(small("bf16"), {.tp = 2, .cp = 2});
    EXPECT_EQ(train(config, 3, 1), train(config, 3, 2));
    config = laid_out(small(), {.pp = 2, .dp = 2});
    config.train.micro_batch = 2;
    EXPECT_EQ(train(config, 3, 1), train(config, 3, 2));
}

// The headline: gradients are integers, one addend per sequence, so what only changes the order of sums changes no bit.
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
                    got.losses = one.losses;  // doubles in this driver; a run's own is exact (run_parallel_test.cpp)
                    EXPECT_EQ(one, got) << dtype << " tied " << tied << " dp " << dp << " micro-batch " << micro_batch;
                }
            Outcome got = train(laid_out(config, {.pp = 2, .dp = 2}), 4);
            got.losses = one.losses;
            EXPECT_EQ(one, got) << dtype << " tied " << tied << " pp 2 dp 2";
        }
}

}  // namespace
}  // namespace keel
