// What a step sends is what the formula says, on every rank of every layout: nothing is sent twice, and nothing unplanned.
#include <gtest/gtest.h>

#include <mutex>

#include "comm/threads.h"
#include "engine/parallel/executor.h"
#include "engine/parallel/volume.h"
#include "tests/engine/tiny.h"

namespace keel {
namespace {

bool operator==(const Traffic& a, const Traffic& b) {
    return a.all_reduce == b.all_reduce && a.reduce_scatter == b.reduce_scatter && a.all_gather == b.all_gather &&
           a.broadcast == b.broadcast && a.all_to_all == b.all_to_all && a.send == b.send;
}

std::string text(const Traffic& t) {
    return concat("all_reduce ", t.all_reduce, " reduce_scatter ", t.reduce_scatter, " all_gather ", t.all_gather, " send ", t.send);
}

void expect_formula(Config config) {
    config.data.train = {"any.tok"}, config.run.dir = "any";
    resolve_and_validate(config);
    std::mutex mutex;
    run_threads(static_cast<int>(ranks_asked(config.parallel)), {.deadline_s = 60}, [&](World& world) {
        ParallelSection parallel = config.parallel;
        const Mesh mesh(world, resolve_mesh(parallel, world.size()), config.model.tied);
        const Ranks ranks = ranks_of(mesh);
        Stream stream(1);
        const auto model = make_model(config, stream, training_use(config, ranks.place), ranks);
        Executor executor(config, stream, ranks, *model);
        model->init(1);
        const test::TinyBatch batch(config, compute_batch(config), 1);
        const Batch view = batch.batch();
        const std::int64_t replicas = std::max<std::int64_t>(1, config.parallel.dp);
        model->zero_grads();
        executor.train(config.train.global_batch / compute_batch(config) / replicas, [&](std::int64_t) -> const Batch& { return view; }, {});
        model->reduce_grads();
        model->gradients().fits(config.train.global_batch);
        (void)model->grad_norm();
        model->update({.lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0, .grad_scale = 1e-3f, .step = 1});
        auto formula = step_traffic(config, ranks.place);
        const std::lock_guard lock(mutex);
        for (const auto& [name, sent] : mesh.traffic()) {
            if (!formula.contains(name) && sent.total() == 0) continue;
            if (name == "world") continue;  // votes and sums of a few numbers
            EXPECT_TRUE(formula[name] == sent) << "rank " << world.rank() << ", " << name << ": sent " << text(sent) << ", formula "
                                               << text(formula[name]);
        }
    });
}

Config small() {
    Config c = test::tiny_config("bf16");
    c.model.vocab = 62, c.model.layers = 4, c.model.heads = 8, c.model.kv_heads = 4, c.model.qk_norm = true;
    c.data.seq_len = 32;
    c.train.micro_batch = 1, c.train.global_batch = 8;
    c.parallel.vocab_multiple = 1;
    return c;
}

TEST(Volume, IsTheFormulaOnEveryRank) {
    for (const char* recompute : {"none", "attention", "block"}) {
        const auto with = [&](auto&& change) {
            SCOPED_TRACE(recompute);
            Config c = small();
            c.memory.recompute = recompute;
            change(c);
            expect_formula(c);
        };
        with([](Config& c) { c.parallel.tp = 2, c.parallel.sequence = false; });
        with([](Config& c) { c.parallel.tp = 2, c.memory.head_chunk = 7; });
        with([](Config& c) { c.parallel.tp = 2, c.model.post_norm = c.model.qk_norm_whole = true; });
        // 61 rows on two ranks are 31 and 30: the ranks' buckets must close alike all the same.
        with([](Config& c) { c.parallel.tp = 2, c.model.vocab = 61, c.parallel.bucket = 3000; });
        with([](Config& c) { c.parallel.cp = 2; });
        with([](Config& c) { c.parallel.cp = 4, c.parallel.context = "ring"; });
        with([](Config& c) { c.parallel.dp = 2, c.parallel.bucket = 3000; });
        with([](Config& c) { c.parallel.pp = 2, c.parallel.chunks = 2, c.model.tied = true; });
        with([](Config& c) { c.parallel.tp = 2, c.parallel.pp = 2, c.parallel.dp = 2, c.model.tied = true; });
        with([](Config& c) { c.parallel.tp = 2, c.parallel.pp = 2, c.parallel.dp = 2, c.numerics.grad_sum = "exact"; });
    }
}

}  // namespace
}  // namespace keel
