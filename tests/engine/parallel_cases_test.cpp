// How other systems failed with several ranks, as tests. Numbers are those of the collections of such failures that the
// project was planned with; a case that another test protects stands here with its name only.
//
//   case  failure                                        protected by
//   P11   q, k, v or gate, up cut wrongly by tp          here, ATensorParallelRankTakesItsPart…
//         eps outside of the root                        ModelGoldens.EpsOutsideOfTheRootIsFarOutsideOfTheBound
//   P24   mean of means                                  LossSum.IsDividedOnceAfterAllSums; Parallel.OtherLayoutsAgree…
//                                                        (micro-batches and slices have unequal numbers of targets)
//   P25   loss or gradient scaled by cp                  Parallel.OtherLayoutsAgree… (cp 2, 4)
//   P26   replicated or tied parameters twice in norm    Parallel.OtherLayoutsAgree… (norms; tied; tp, pp)
//   P27   last micro-batch not reduced, or not cleared   Parallel.OtherLayoutsAgree… (dp 2, 4 of 8 unlike ones);
//                                                        RunParallel.ExactSumsLogAndSave… (sizes 1, 2, 4 over 1 to 8)
//   P28   labels shifted twice, or by nobody             here, TheLossOfABigramTextIsItsEntropy
//   P29   ranks with unequal numbers of micro-batches    here, ReplicasWithUnequalMicroBatchesAreRefused;
//                                                        RunParallel.EvaluationCountsEverySampleOnce…
//   P30   initial weights depend on the layout           RunParallel.AnyLayoutBeginsAsOneRank…
//   P40   a data position per rank                       RanksTest.HalfOfTheRanksAreKilled…;
//                                                        RunParallel.ExactSumsStayOnTheCurve…
//         the position of evaluation                     RunParallel.EvaluationCountsEverySampleOnce…
//   P55   a hang without a message                       RanksTest.ARankThatHangsIsNamed…; tests/comm/failures.cpp
//   P56   wrong rank variables, ranks that never come    RanksTest.LaunchersVariables…; Launch.*; in tests/comm
//                                                        a_rank_that_does_not_join_a_group_is_named
//   P57   ranks disagree on stopping                     RanksTest.ASignalToOneRankStopsAll…
//
//   trap                                                 protected by
//   work counted again per virtual stage, or in eval     here, TokensAndFlopsAreCountedOnceOnEveryLayout
//   optimizer state saved as the layout cut it           RunParallel.AnyLayoutBeginsAsOneRank…
//   replicas of cp left out when replicas are compared   here, EveryReplicaHoldsTheSameParameters
//   padding of the vocabulary in weights or softmax      Parallel.OtherLayoutsAgree… (62 rows on 4 ranks);
//                                                        here, ATensorParallelRankTakesItsPart… (31 rows)
//   backward finishes in another order than buckets      Parallel.OverlapChangesNoBit; Buckets.*
//   a growing batch accepted and ignored                 RunParallel.AGrowingBatchGrowsAlikeOnEveryLayout
//   bits depend on the topology                          RunParallel.ExactSumsLogAndSave…;
//                                                        RanksTest.ProcessesHaveTheBitsOfThreads
#include <gtest/gtest.h>

#include <mutex>
#include <numbers>

#include "ckpt/model_folder.h"
#include "engine/open_model.h"
#include "engine/state.h"
#include "kernels/base/file.h"
#include "tests/engine/rank_runs.h"

namespace keel {
namespace {

namespace fs = std::filesystem;
using test::checkpoint_of, test::differing, test::logged, test::on_ranks, test::take_step, test::tensors_of;

class ParallelCases : public testing::Test {
protected:
    ParallelCases() { test::write_token_file(dir.path() / "a.tok", 31, 1500, 1); }

    Config config(const std::string& name) const {
        Config c;
        c.model.dtype = "f32";
        c.model.vocab = 31, c.model.hidden = 16, c.model.layers = 4, c.model.heads = 8, c.model.kv_heads = 4;
        c.model.head_dim = 8, c.model.ffn = 24, c.model.init_std = 0.2;
        c.data.seq_len = 16;
        c.data.train = {(dir.path() / "a.tok").string()};
        c.train.micro_batch = 1, c.train.global_batch = 8, c.train.steps = 2, c.train.log_interval = 1000000;
        c.optim.lr = 1e-2, c.optim.schedule = "constant";
        c.parallel.vocab_multiple = 1;
        c.run.dir = (dir.path() / name).string();
        c.run.threads = 1;
        return c;
    }
    test::TempFolder dir;
};

// P11. A model folder with grouped keys, biases and a vocabulary that does not divide, read by 1, 2 and 4 ranks, is the
// same model: the folders made of what they save are the same bytes.
TEST_F(ParallelCases, ATensorParallelRankTakesItsPartOfEveryMatrixAndAnExportGivesItBack) {
    const fs::path origin = dir.path() / "folder";
    Config c = config("origin");
    c.model.qkv_bias = true;
    on_ranks(c, [&](auto& run) {
        for (std::int64_t i = 0; i < run.model->master().size(); ++i)  // biases and gains are all alike otherwise
            run.model->master()[i] += 0.001f * static_cast<float>(i % 1000);
        save_model_folder(origin, model_shape(run.config.model), param_tensors(*run.model),
                          {.tokenizer_from = {}, .dtype = Dtype::f32});
    });
    const std::string weights = read_file(origin / "model.safetensors");
    for (const int tp : {1, 2, 4}) {
        Config started = config(concat("tp ", tp));
        started.model = {}, started.model.dtype = "f32";
        started.ckpt.init = origin.string();
        started.parallel.tp = tp;
        on_ranks(started, [&](auto& run) { save_checkpoint(run); });
        const ModelSource source = open_model(started.run.dir);
        Stream stream(1);
        const auto model =
            make_model(source.config, stream, {.tokens = 1, .positions = 1, .head_chunk = 1, .training = false});
        load_params(source, *model);
        const fs::path exported = dir.path() / concat("exported ", tp);
        save_model_folder(exported, model_shape(source.config.model), param_tensors(*model),
                          {.tokenizer_from = {}, .dtype = Dtype::f32});
        EXPECT_TRUE(read_file(exported / "model.safetensors") == weights) << "tp " << tp;
    }
}

// A vocabulary may be larger than that of the weights: every new row is the mean of the old ones, in double, whatever the
// layout, from a model folder and from a checkpoint; and none can be taken away.
TEST_F(ParallelCases, AddedRowsOfAVocabularyAreTheMeanOfTheOldOnesOnEveryLayout) {
    for (const bool tied : {false, true}) {
        const std::string suffix = tied ? " tied" : "";
        const fs::path folder = dir.path() / ("origin folder" + suffix);
        Config c = config("origin" + suffix);
        c.model.tied = tied;
        on_ranks(c, [&](auto& run) {
            save_model_folder(folder, model_shape(run.config.model), param_tensors(*run.model),
                              {.tokenizer_from = {}, .dtype = Dtype::f32});
            save_checkpoint(run);
        });
        const auto origin = tensors_of(checkpoint_of(c.run.dir, 0));
        struct Start {
            const char* name;
            fs::path from;
            int tp, pp, dp;
        };
        for (const Start& start : {Start{"one rank", folder, 1, 1, 1}, Start{"checkpoint", c.run.dir, 1, 1, 1},
                                   Start{"tp 2", folder, 2, 1, 1}, Start{"tp 4, checkpoint", c.run.dir, 4, 1, 1},
                                   Start{"pp 2, dp 2", folder, 1, 2, 2}}) {
            Config grown = config(start.name + suffix);
            grown.model = {}, grown.model.dtype = "f32", grown.model.vocab = 37;
            grown.ckpt.init = start.from.string();
            grown.parallel.tp = start.tp, grown.parallel.pp = start.pp, grown.parallel.dp = start.dp;
            on_ranks(grown, [&](auto& run) { save_checkpoint(run); });
            auto expected = origin;
            for (const char* name : {"embed", "head"}) {
                if (!origin.contains(name)) continue;
                const std::string& bytes = origin.at(name);
                const std::size_t hidden = bytes.size() / sizeof(float) / 31;
                const auto* rows = reinterpret_cast<const float*>(bytes.data());
                std::vector<float> mean;
                for (std::size_t i = 0; i < hidden; ++i) {
                    double sum = 0;
                    for (std::size_t row = 0; row < 31; ++row) sum += static_cast<double>(rows[row * hidden + i]);
                    mean.push_back(static_cast<float>(sum / 31));
                }
                for (int row = 31; row < 37; ++row)
                    expected[name].append(reinterpret_cast<const char*>(mean.data()), hidden * sizeof(float));
                for (const char* moment : {".m", ".v"}) expected[std::string(name) + moment].resize(37 * hidden * sizeof(float));
            }
            EXPECT_EQ(differing(expected, tensors_of(checkpoint_of(grown.run.dir, 0))), "") << start.name << suffix;
        }
    }
    Config fewer = config("fewer");
    fewer.model = {}, fewer.model.dtype = "f32", fewer.model.vocab = 30;
    fewer.ckpt.init = (dir.path() / "origin folder").string();
    try {
        on_ranks(fewer, [](auto&) {});
        FAIL();
    } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find("has 31 rows, and none can be taken away"), std::string::npos) << e.what();
    }
}

// P28. Each token is followed by one of two, evenly: ln 2 nats. Labels that nobody shifts are copies, 0 nats; shifted
// twice, they are one of four, 2 ln 2. A loss nearer to ln 2 than to either has them right, at every edge of a slice.
TEST_F(ParallelCases, TheLossOfABigramTextIsItsEntropy) {
    TokenFileInfo info;
    info.vocab_size = 17, info.tokenizer_hash = 77, info.eos_id = 0;
    TokenFileWriter writer(dir.path() / "bigrams.tok", info);
    const Random random(5, Purpose::test, "bigrams");
    std::int32_t id = 0;
    for (std::uint64_t i = 0; i < 20000; ++i) {
        id = (2 * id + (random.uniform(i) < 0.5 ? 0 : 1)) % 16;
        const std::int32_t written = id + 1;
        writer.append({&written, 1});
    }
    writer.end_document();
    writer.finish();
    for (const char* context : {"gather", "ring"}) {
        Config c = config(concat("bigrams ", context));
        c.model.vocab = 17, c.model.layers = 1;
        c.data.train = {(dir.path() / "bigrams.tok").string()};
        c.train.steps = 60, c.train.micro_batch = 16, c.train.global_batch = 16, c.optim.lr = 5e-2;
        c.parallel.tp = c.parallel.cp = 2, c.parallel.context = context;
        test::train_whole(c);
        const double loss = logged(c.run.dir, "loss").at(60);
        EXPECT_NEAR(loss, std::numbers::ln2, std::numbers::ln2 / 2) << context;
    }
}

// P29.
TEST_F(ParallelCases, ReplicasWithUnequalMicroBatchesAreRefused) {
    Config c = config("uneven");
    c.train.global_batch = 6, c.parallel.dp = 4;
    try {
        on_ranks(c, [](auto&) {});
        FAIL();
    } catch (const Error& e) {
        EXPECT_EQ(e.code(), ExitCode::usage);
        const std::string message = "--train.global_batch 6 is not a multiple of --train.micro_batch 1 x 4 replicas";
        EXPECT_NE(std::string(e.what()).find(message), std::string::npos) << e.what();
    }
}

TEST_F(ParallelCases, TokensAndFlopsAreCountedOnceOnEveryLayout) {
    const auto counted = [&](const std::string& name, int tp, int pp, int chunks, int cp, int dp) {
        Config c = config(name);
        c.data.split = {0.9, 0.1, 0}, c.train.eval_interval = 1;
        c.parallel.tp = tp, c.parallel.pp = pp, c.parallel.chunks = chunks, c.parallel.cp = cp, c.parallel.dp = dp;
        test::train_whole(c);
        std::map<std::string, std::map<std::int64_t, double>> out;
        for (const char* key : {"tokens", "loss_tokens", "flops", "samples"}) out[key] = logged(c.run.dir, key);
        out["eval"] = logged(c.run.dir, "tokens", "eval");
        return out;
    };
    const auto one = counted("one", 1, 1, 1, 1, 1);
    EXPECT_EQ(one.at("flops").size(), 2u);
    EXPECT_EQ(one.at("eval").size(), 2u);
    EXPECT_EQ(one, counted("chunks", 1, 2, 2, 1, 1));
    EXPECT_EQ(one, counted("tp cp", 2, 1, 1, 2, 1));
    EXPECT_EQ(one, counted("cp dp", 1, 1, 1, 2, 2));
}

TEST_F(ParallelCases, EveryReplicaHoldsTheSameParameters) {
    Config c = config("replicas");
    c.parallel.tp = c.parallel.cp = c.parallel.dp = 2, c.parallel.bucket = 500;
    std::map<std::int64_t, std::map<std::string, std::string>> first;  // by tensor-parallel rank
    std::mutex mutex;
    int compared = 0;
    on_ranks(c, [&](auto& run) {
        for (int i = 0; i < 2; ++i) take_step(run);
        run.model->gradients().need_all();
        std::map<std::string, std::string> mine;
        for (const Param& p : run.model->params().specs)
            mine[p.name].assign(reinterpret_cast<const char*>(run.model->param_data()) + p.offset * std::int64_t{4},
                                static_cast<std::size_t>(p.size() * 4));
        const std::lock_guard lock(mutex);
        auto& other = first[run.ranks.place.tp];
        if (other.empty()) return void(other = std::move(mine));
        EXPECT_EQ(differing(other, mine), "") << "rank " << run.world.rank();
        ++compared;
    });
    EXPECT_EQ(compared, 6);
}

}  // namespace
}  // namespace keel
