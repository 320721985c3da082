// Whole runs on several ranks: what they log and save against a run of one rank. parallel_test.cpp holds the model to
// that; here are the loop, the data, the log, checkpoints and restarts around it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string_view>
#include <tuple>

#include "engine/state.h"
#include "tests/engine/rank_runs.h"

namespace keel {
namespace {

namespace fs = std::filesystem;
using test::checkpoint_of, test::differing, test::logged, test::on_ranks, test::take_step, test::tensors_of,
    test::train_whole;

struct Layout {
    const char* name;
    int tp = 1, pp = 1, chunks = 1, cp = 1, dp = 1;
    const char* context = "gather";
};

class RunParallel : public testing::Test {
protected:
    RunParallel() { test::write_token_file(dir.path() / "a.tok", 31, 1500, 1); }

    Config config(const std::string& name, const std::string& dtype = "f32") const {
        Config c;
        c.model.dtype = dtype;
        c.model.vocab = 31, c.model.hidden = 16, c.model.layers = 2, c.model.heads = 2, c.model.kv_heads = 2;
        c.model.head_dim = 8, c.model.ffn = 24, c.model.init_std = 0.2;
        c.data.seq_len = 8;
        c.data.train = {(dir.path() / "a.tok").string()};
        c.train.micro_batch = 1, c.train.global_batch = 8, c.train.steps = 4, c.train.log_interval = 1000000;
        c.optim.lr = 1e-2, c.optim.schedule = "constant";  // a run may then go on past its end
        c.parallel.vocab_multiple = 1;
        c.run.dir = (dir.path() / name).string();
        c.run.threads = 1;
        return c;
    }
    Config exact(const std::string& name, const std::string& dtype = "f32") const {
        Config c = config(name, dtype);
        c.numerics.grad_sum = "exact";
        return c;
    }
    static Config laid_out(Config c, const Layout& l) {
        c.parallel.tp = l.tp, c.parallel.pp = l.pp, c.parallel.chunks = l.chunks;
        c.parallel.cp = l.cp, c.parallel.dp = l.dp, c.parallel.context = l.context;
        return c;
    }
    // Losses, norms and every tensor of the checkpoint of `step`.
    static void expect_equal_runs(const Config& a, const Config& b, std::int64_t step) {
        for (const char* key : {"loss", "grad_norm", "tokens", "loss_tokens", "samples"})
            EXPECT_EQ(logged(a.run.dir, key), logged(b.run.dir, key)) << key << " of " << b.run.dir;
        EXPECT_EQ(logged(b.run.dir, "loss").size(), static_cast<std::size_t>(step)) << b.run.dir;
        EXPECT_EQ(differing(tensors_of(checkpoint_of(a.run.dir, step)), tensors_of(checkpoint_of(b.run.dir, step))), "")
            << b.run.dir;
    }
    test::TempFolder dir;
};

TEST_F(RunParallel, ExactSumsLogAndSaveTheSameForAnyReplicasAndMicroBatches) {
    for (const char* dtype : {"f32", "bf16"}) {
        const bool few = std::string(dtype) == "bf16";
        const auto run = [&](int dp, int micro_batch) {
            Config c = exact(concat(dtype, " dp ", dp, " micro-batch ", micro_batch), dtype);
            c.parallel.dp = dp;
            c.train.global_batch = 32, c.train.micro_batch = micro_batch, c.train.steps = 20;
            train_whole(c);
            return c;
        };
        const Config one = run(1, 1);
        ASSERT_TRUE(std::isfinite(logged(one.run.dir, "loss").at(20)));
        for (const int dp : {1, 2, 4, 8})
            for (const int micro_batch : {1, 2, 4}) {
                if (dp * micro_batch == 1 || (few && dp * micro_batch != 8)) continue;
                expect_equal_runs(one, run(dp, micro_batch), 20);
            }
    }
}

TEST_F(RunParallel, ExactSumsStayOnTheCurveOfOneRankThroughStopsAndOtherLayouts) {
    Config one = exact("one");
    one.train.steps = 15;
    train_whole(one);
    Config many = exact("many");
    for (const auto& [steps, layout] :
         {std::pair{5, Layout{.name = "", .dp = 4}}, {10, {.name = "", .dp = 2}}, {15, {.name = "", .pp = 2}}}) {
        Config c = laid_out(many, layout);
        c.train.steps = steps, c.train.micro_batch = layout.dp == 2 ? 2 : 1;
        train_whole(c);
    }
    expect_equal_runs(one, many, 15);
}

// Scales set by hand to what they would be before a jump of the gradients by 2^30: sums do not fit, and the step is run
// again with the scales that the data asks for. Equal to a step that had those from the beginning, on any layout.
TEST_F(RunParallel, AnOverflowOfExactSumsIsReplayedWithEqualBits) {
    std::vector<int> right;  // as the replay chose them
    const auto train = [&](const Layout& layout, bool overflow) {
        const Config c = laid_out(exact(concat(layout.name, overflow ? " replays" : " knows")), layout);
        std::mutex mutex;
        on_ranks(c, [&](auto& run) {
            for (int i = 0; i < 3; ++i) take_step(run);
            ExactSums& sums = *run.model->gradients().exact();
            std::vector<int> scales = sums.scales();
            for (int& s : scales) s += 30;
            if (!overflow) scales = right;
            sums.set_scales(scales);
            take_step(run);
            EXPECT_EQ(run.progress.skipped, 0);
            // A step chooses the scales of the next one by what it has seen: those are the ones it was run again with.
            for (std::size_t p = 0; p < scales.size(); ++p) EXPECT_EQ(sums.scales()[p] < scales[p], overflow) << p;
            {
                const std::lock_guard lock(mutex);
                if (right.empty()) right = sums.scales();
            }
            save_checkpoint(run);
        });
        return tensors_of(checkpoint_of(c.run.dir, 4));
    };
    const auto one = train({.name = "one"}, true);
    EXPECT_EQ(differing(one, train({.name = "one"}, false)), "");
    for (const Layout& l : {Layout{.name = "dp2", .dp = 2}, {.name = "pp2 dp2", .pp = 2, .dp = 2}})
        EXPECT_EQ(differing(one, train(l, true)), "") << l.name;
}

TEST_F(RunParallel, ANonFiniteGradientOfOneRankIsAppliedNowhereAndConsumesItsData) {
    for (const char* sums : {"float", "exact"})
        for (const Layout& l : {Layout{.name = "dp2", .dp = 2}, {.name = "tp2", .tp = 2}, {.name = "pp2", .pp = 2},
                                {.name = "cp2", .cp = 2}}) {
            Config c = laid_out(config(concat("nan ", l.name, " ", sums)), l);
            c.numerics.grad_sum = sums, c.fault.mode = "disabled";
            on_ranks(c, [&](auto& run) {
                take_step(run);
                run.model->gradients().need_all();
                const std::vector<float> moments(run.model->second_moment().data(),
                                                 run.model->second_moment().data() + run.model->second_moment().size());
                auto* params = reinterpret_cast<float*>(run.model->param_data());
                for (const Param& p : run.model->params().specs)  // a gain: every token meets it
                    if (run.world.rank() == 1 && p.name.ends_with("ffn_norm")) params[p.offset] = std::nanf("");
                take_step(run);
                EXPECT_EQ(run.progress.skipped, 1) << l.name << " " << sums << " rank " << run.world.rank();
                EXPECT_EQ(run.progress.samples, 16);
                const float* now = run.model->second_moment().data();
                EXPECT_EQ(std::memcmp(moments.data(), now, moments.size() * sizeof(float)), 0);
            });
        }
}

const std::vector<Layout>& layouts() {
    static const std::vector<Layout> all{{.name = "one"},
                                         {.name = "tp2", .tp = 2},
                                         {.name = "pp2", .pp = 2},
                                         {.name = "tp4", .tp = 4},
                                         {.name = "pp2 chunks2", .pp = 2, .chunks = 2},
                                         {.name = "dp4", .dp = 4},
                                         {.name = "cp2", .cp = 2},
                                         {.name = "cp2 ring", .cp = 2, .context = "ring"},
                                         {.name = "tp2 dp2", .tp = 2, .dp = 2},
                                         {.name = "tp2 pp2 cp2", .tp = 2, .pp = 2, .cp = 2}};
    return all;
}

// One test for what would take the same runs twice: initial weights, the data of a step, and every checkpoint on every
// layout. A tied embedding lies on two stages; the master weights of bf16 are a tensor of their own.
TEST_F(RunParallel, AnyLayoutBeginsAsOneRankAndLoadsWhatAnyOtherSavedAndGoesOnFromIt) {
    const auto on = [&](const Layout& l) {
        Config c = laid_out(config(l.name, "bf16"), l);
        c.model.layers = 4, c.model.heads = 4, c.model.kv_heads = 4, c.model.head_dim = 4;  // enough for chunks, and for tp 4
        c.model.tied = true, c.parallel.bucket = 500, c.ckpt.keep_last = 0;
        return c;
    };
    std::vector<std::map<std::string, std::string>> initial, first, second;
    std::vector<Progress> progress(layouts().size());
    for (std::size_t i = 0; i < layouts().size(); ++i) {
        const Config c = on(layouts()[i]);
        on_ranks(c, [&](auto& run) {
            save_checkpoint(run);
            for (int step = 0; step < 2; ++step) take_step(run), save_checkpoint(run);
            if (run.world.rank() == 0) progress[i] = run.progress;
        });
        initial.push_back(tensors_of(checkpoint_of(c.run.dir, 0)));
        first.push_back(tensors_of(checkpoint_of(c.run.dir, 1)));
        second.push_back(tensors_of(checkpoint_of(c.run.dir, 2)));
        EXPECT_EQ(differing(initial[0], initial[i]), "") << layouts()[i].name;
        EXPECT_NE(differing(first[i], second[i]), "") << layouts()[i].name;
        EXPECT_EQ(progress[0].samples, progress[i].samples) << layouts()[i].name;
        EXPECT_EQ(progress[0].tokens, progress[i].tokens) << layouts()[i].name;
        EXPECT_EQ(progress[0].tokens_squared, progress[i].tokens_squared) << layouts()[i].name;  // a sum over documents
    }
    for (std::size_t i = 0; i < layouts().size(); ++i)
        if (const Layout& l = layouts()[i]; l.pp > 1 && l.tp * l.cp == 1) {
            EXPECT_EQ(differing(second[0], second[i]), "") << l.name << ": a pipeline has the bits of one rank";
        }
    for (std::size_t i = 0; i < layouts().size(); ++i) {
        Config c = on(layouts()[i]);
        c.ckpt.resume = checkpoint_of(c.run.dir, 1).string();
        c.run.dir += " again";
        on_ranks(c, [&](auto& run) {
            const auto saves = [&](const std::map<std::string, std::string>& tensors, const std::string& from) {
                save_checkpoint(run);
                if (run.world.rank() != 0) return;
                EXPECT_EQ(differing(tensors, tensors_of(checkpoint_of(c.run.dir, 2))), "") << c.run.dir << " " << from;
            };
            take_step(run);
            saves(second[i], "after a step");
            for (std::size_t k = 0; k < layouts().size(); ++k) {  // as a run does that resumes from it
                const fs::path other = checkpoint_of(on(layouts()[k]).run.dir, 1);
                load_checkpoint(run.ranks.world, other, state_pieces(*run.model, Pieces::to_load));
                saves(first[k], other.string());
            }
        });
    }
}

// A schedule that goes forward through all micro-batches first keeps more of them than the loader does.
// What runs beside is in the picture of a step: nothing in that of the first, and in later ones what its flag leaves on.
TEST_F(RunParallel, TheFirstStepDoesWithoutOverlapAndEachPieceHasItsFlag) {
    for (const auto& [all, reduce, gather] : {std::tuple{true, true, true}, {true, true, false}, {true, false, true}, {false, true, true}}) {
        Config c = config(concat("overlap", all, reduce, gather));
        c.parallel.dp = 2, c.parallel.overlap = all, c.parallel.overlap_reduce = reduce, c.parallel.overlap_gather = gather;
        const bool reduces = all && reduce, gathers = all && gather;
        on_ranks(c, [&](keel::Run& run) {
            const auto beside = [&](std::string_view name) {
                return std::ranges::any_of(run.spans->last_beside.all(), [&](const Span& s) { return s.name == name; });
            };
            take_step(run);
            EXPECT_TRUE(run.spans->last_beside.all().empty());
            for (int i = 0; i < 2; ++i) take_step(run);
            EXPECT_EQ(beside("reduce"), reduces);
            EXPECT_EQ(beside("gather"), gathers);
        });
    }
}

TEST_F(RunParallel, ManyMicroBatchesUnderWayKeepTheirOwnTokens) {
    Config one = config("one by one");
    train_whole(one);
    Config gpipe = config("all at once");
    gpipe.parallel.schedule = "gpipe";
    train_whole(gpipe);
    expect_equal_runs(one, gpipe, 4);
}

// 22 samples of validation are 22 over any replicas: nobody drops or repeats the last ones, and nobody waits for a
// replica that has fewer. Exact sums make the losses equal in every bit; after a restart too.
TEST_F(RunParallel, EvaluationCountsEverySampleOnceWhereReplicasHaveUnequalShares) {
    const auto run = [&](const Layout& l) {
        Config c = laid_out(exact(l.name), l);
        c.data.split = {0.88, 0.12, 0};
        c.train.eval_interval = 1, c.train.steps = 1;
        train_whole(c);
        c.train.steps = 2;
        train_whole(c);
        return std::pair(logged(c.run.dir, "loss", "eval"), logged(c.run.dir, "tokens", "eval"));
    };
    const auto one = run({.name = "one"});
    EXPECT_EQ(one.first.size(), 2u);
    for (const Layout& l :
         {Layout{.name = "dp4", .dp = 4}, {.name = "pp2 dp2", .pp = 2, .dp = 2}, {.name = "pp2", .pp = 2}})
        EXPECT_EQ(one, run(l)) << l.name;
}

// Steps of 2, 4, 6 and 8 samples: each size is another schedule of the pipeline, and another share of a replica.
TEST_F(RunParallel, AGrowingBatchGrowsAlikeOnEveryLayout) {
    const auto run = [&](const Layout& l) {
        Config c = laid_out(exact(concat("ramp ", l.name)), l);
        c.train.batch_ramp = {2, 2, 16}, c.train.steps = 0, c.train.samples = 36;
        train_whole(c);
        return c;
    };
    const Config one = run({.name = "one"});
    const auto batches = logged(one.run.dir, "batch");
    EXPECT_EQ(batches.begin()->second, 2);
    EXPECT_EQ(batches.rbegin()->second, 8);
    for (const Layout& l :
         {Layout{.name = "dp2", .dp = 2}, {.name = "pp2", .pp = 2}, {.name = "pp2 dp2", .pp = 2, .dp = 2}})
        expect_equal_runs(one, run(l), static_cast<std::int64_t>(batches.size()));
}

}  // namespace
}  // namespace keel
