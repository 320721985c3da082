// The books of whole runs: useful work is counted once, and no second is lost, whatever the layout and however often a
// run was stopped or fell.
#include <gtest/gtest.h>

#include <sched.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "engine/observe/run_log.h"
#include "tests/engine/rank_runs.h"

namespace keel {
namespace {

using test::on_ranks, test::train_whole;

class Books : public testing::Test {
protected:
    // Rows of 64 tokens that hold documents of 32, 16 and 16.
    Books() {
        TokenFileInfo info;
        info.vocab_size = 31, info.tokenizer_hash = 77, info.eos_id = 0;
        TokenFileWriter writer((dir / "packed.tok"), info);
        std::int32_t id = 1;
        for (int row = 0; row < 60; ++row)
            for (const int length : {32, 16, 16}) {
                for (int i = 0; i < length; ++i) id = (id * 5 + 1) % 31, writer.append({&id, 1});
                writer.end_document();
            }
        writer.finish();
    }
    Config config(const std::string& name) const {
        Config c;
        c.model.dtype = "f32";
        c.model.vocab = 31, c.model.hidden = 16, c.model.layers = 4, c.model.heads = 2, c.model.kv_heads = 2;
        c.model.head_dim = 8, c.model.ffn = 24, c.model.init_std = 0.2;
        c.data.seq_len = 64;
        c.data.train = {dir / "packed.tok"};
        c.train.micro_batch = 1, c.train.global_batch = 4, c.train.steps = 3;
        c.optim.lr = 1e-2, c.optim.schedule = "constant";  // a run may then go on past its end
        c.parallel.vocab_multiple = 1;
        c.run.dir = dir / name;
        c.run.threads = 1;
        return c;
    }
    static std::vector<nlohmann::json> records(const Config& c, const std::string& event) {
        std::vector<nlohmann::json> out;
        std::ifstream in(std::filesystem::path(c.run.dir) / "log.jsonl");
        for (std::string line; std::getline(in, line);)
            if (auto record = nlohmann::json::parse(line); record["event"] == event) out.push_back(std::move(record));
        return out;
    }
    static RunLog log(const Config& c) { return read_log(std::filesystem::path(c.run.dir) / "log.jsonl"); }
    test::TempFolder dir;
};

// By hand: a step is 4 rows, ΣL = 4·64 = 256, ΣL² = 4·(32² + 16² + 16²) = 6144. Per token 6·(4·layer + 16·31) with
// layer = 16·(16 + 32) + 16·16 + 3·16·24 = 2176, per square 6·4·16: 55 200 and 384. Together 16 490 496.
TEST_F(Books, UsefulWorkOfPackedRowsIsCountedOnceOnEveryLayout) {
    const double by_hand = 256 * 55'200.0 + 6144 * 384.0;
    ASSERT_EQ(by_hand, 16'490'496);
    const auto expect_counted = [&](const Config& c) {
        train_whole(c);
        const auto flops = test::logged(c.run.dir, "flops"), tokens = test::logged(c.run.dir, "tokens");
        ASSERT_EQ(flops.size(), 3u) << c.run.dir;
        for (const auto& [step, value] : flops) EXPECT_EQ(value, by_hand) << c.run.dir << " step " << step;
        EXPECT_EQ(tokens.at(3), 3 * 256) << c.run.dir;
    };
    const auto with = [&](const std::string& name, auto&& change) {
        Config c = config(name);
        change(c);
        expect_counted(c);
    };
    with("one rank", [](Config&) {});
    with("tp 2, pp 2, two chunks", [](Config& c) { c.parallel.tp = c.parallel.pp = c.parallel.chunks = 2; });
    with("cp 2, dp 2", [](Config& c) { c.parallel.cp = c.parallel.dp = 2; });
    with("pp 2, dp 2, chunks", [](Config& c) { c.parallel.pp = c.parallel.dp = c.parallel.chunks = 2; });
    with("recompute", [](Config& c) { c.memory.recompute = "block"; });
    with("evaluation", [](Config& c) { c.data.split = {0.5, 0.5, 0}, c.train.eval_interval = 1; });
    with("replays",
         [](Config& c) { c.numerics.grad_sum = "exact", c.parallel.dp = 2; });  // the first step chooses its scales
}

// Where rows end in padding, only tokens count. By hand: best_fit puts one document of 40 into each row of 64.
TEST_F(Books, PaddingIsNoUsefulWork) {
    TokenFileInfo info;
    info.vocab_size = 31, info.tokenizer_hash = 77, info.eos_id = 0;
    TokenFileWriter writer((dir / "short.tok"), info);
    for (int document = 0; document < 40; ++document) {
        for (std::int32_t i = 0; i < 40; ++i) {
            const std::int32_t id = 1 + i % 30;
            writer.append({&id, 1});
        }
        writer.end_document();
    }
    writer.finish();
    Config c = config("padded");
    c.data.train = {dir / "short.tok"}, c.data.packing = "best_fit";
    train_whole(c);
    for (const auto& [step, value] : test::logged(c.run.dir, "flops"))
        EXPECT_EQ(value, 4 * (40 * 55'200.0 + 40 * 40 * 384.0)) << step;
}

// The counts ride on the reduction of the loss: packed rows cost no collective that dense ones do not.
TEST_F(Books, PackedRowsNeedNoCollectiveOfTheirOwn) {
    std::vector<std::int64_t> collectives;
    for (const bool packed : {false, true}) {
        Config c = config(packed ? "packed" : "dense");
        c.data.reset_at_document = packed, c.parallel.dp = 2;
        on_ranks(c, [&](auto& run) {
            const std::int64_t before = run.ranks.world.collectives();
            for (int i = 0; i < 2; ++i) test::take_step(run);
            if (run.world.rank() == 0) collectives.push_back(run.ranks.world.collectives() - before);
        });
    }
    EXPECT_EQ(collectives[0], collectives[1]);
}

TEST_F(Books, ARunCutInThreeHasTheTotalsOfOneInOnePiece) {
    Config whole = config("whole");
    whole.train.steps = 12;
    train_whole(whole);

    Config cut = config("cut");
    const double begin = unix_seconds();
    process_start() = Clock::now();
    cut.train.steps = 4;
    train_whole(cut);  // ends by itself
    process_start() = Clock::now();
    cut.train.steps = 12;
    on_ranks(cut, [](auto& run) {  // falls after step 9, and has saved after step 6
        record_start(run);
        while (run.progress.steps < 9) {
            const StepPlan plan = run.schedule.at(run.progress);
            const StepResult step = *train_step(run, plan);
            run.progress.advance(plan, step);
            record_step(run, plan, step);
            if (run.progress.steps == 6) save_checkpoint(run);
        }
    });
    process_start() = Clock::now();
    train_whole(cut);

    const RunLog a = log(whole), b = log(cut);
    EXPECT_EQ(b.sessions.size(), 3u);
    EXPECT_EQ(b.sessions[2].from, 6);
    EXPECT_EQ(a.steps, b.steps);
    EXPECT_EQ(a.tokens, b.tokens);
    EXPECT_EQ(a.tokens, 12 * 256);
    EXPECT_EQ(a.flops, b.flops);
    EXPECT_EQ(a.flops, 12 * 16'490'496.0);
    EXPECT_EQ(test::logged(whole.run.dir, "loss"), test::logged(cut.run.dir, "loss"));

    // From the first beginning to the last reading, by the clocks themselves: seconds are rounded to microseconds, and
    // the time of day in doubles to a quarter of one.
    const double end = b.sessions[2].begin + b.sessions[2].readings.back().wall_seconds;
    EXPECT_NEAR(sum(b.seconds), end - b.sessions[0].begin, 1e-4);
    EXPECT_LE(begin, b.sessions[0].begin + 1e-3);
    EXPECT_LE(end, records(cut, "end").back()["time"].get<double>() + 1e-3);
    for (const Session& s : b.sessions)
        EXPECT_NEAR(sum(s.readings.back().seconds), s.readings.back().wall_seconds, 1e-5);
    // Steps 7 to 9 were done twice: what they took the first time, and the time until the run stood again.
    const auto& lost = b.sessions[1].readings;
    const auto saved = std::ranges::find_if(lost, [](const auto& r) { return r.step == 7; }) - 1;
    EXPECT_NEAR(b.seconds[static_cast<std::size_t>(Phase::recovery)],
                b.sessions[2].begin - b.sessions[1].begin - saved->wall_seconds, 1e-5);
    EXPECT_GT(b.seconds[static_cast<std::size_t>(Phase::recovery)], 0);
    EXPECT_GT(b.observe_seconds, 0);  // the ledger's own cost is in it
}

TEST_F(Books, RanksAreComparedAtLogLinesOnly) {
    Config c = config("ranks");
    c.parallel.pp = c.parallel.dp = 2, c.train.steps = 5, c.train.log_interval = 2, c.observe.timers = "fine";
    train_whole(c);
    const auto ranks = records(c, "ranks");
    ASSERT_EQ(ranks.size(), 3u);  // steps 2, 4 and the last
    EXPECT_EQ(ranks[0]["step"], 2);
    EXPECT_EQ(ranks[0]["steps"], 2);
    EXPECT_EQ(ranks[2]["step"], 5);
    EXPECT_EQ(ranks[2]["steps"], 1);
    for (const auto& r : ranks)
        for (const char* key : {"work_ms", "flops_per_second", "compute_ms", "communication_ms"}) {
            const auto value = [&](const char* what) { return r[std::string(key) + what].get<double>(); };
            EXPECT_LE(0, value("_min")) << key;
            EXPECT_LE(value("_min"), value("_median")) << key;
            EXPECT_LE(value("_median"), value("_max")) << key;
            EXPECT_LT(value("_max_rank"), 4) << key;
        }
    EXPECT_GT(ranks[0]["forward_ms_min"].get<double>(), 0);
    EXPECT_GT(ranks[0]["communication_ms_max"].get<double>(), 0);
    ASSERT_EQ(records(c, "rank").size(), 4u);
    EXPECT_EQ(records(c, "rank")[3]["steps"], 5);
    ASSERT_EQ(records(c, "startup").size(), 1u);
    EXPECT_GT(records(c, "startup")[0]["first_step_seconds_max"].get<double>(), 0);
    const std::string html = read_file(std::filesystem::path(c.run.dir) / "report.html");
    for (const char* section :
         {"Start-up", "<h2>Ranks", "The last step", "Memory over one step", "Where the time went", "MFU = FLOPs"})
        EXPECT_NE(html.find(section), std::string::npos) << section;
    EXPECT_NE(html.find(">rank 3<"), std::string::npos);  // a lane of the timeline

    Config off = config("off");
    off.parallel.dp = 2, off.observe.timers = "off";
    train_whole(off);
    EXPECT_TRUE(records(off, "ranks").empty());
    EXPECT_EQ(read_file(std::filesystem::path(off.run.dir) / "report.html").find("The last step"), std::string::npos);
}

TEST_F(Books, TheCeilingOfARunIsTheSumOfWhatItsRanksReachAtOnce) {
    Config c = config("ceiling");
    c.parallel.dp = 2;
    train_whole(c);
    const auto start = records(c, "start").at(0), rates = records(c, "rates").at(0);
    EXPECT_GT(rates["matmul_peak_min"].get<double>(), 0);
    EXPECT_EQ(start["matmul_peak"].get<double>(), rates["matmul_peak_min"].get<double>() + rates["matmul_peak_max"].get<double>());
}

// Ranks take turns on a processor that they are bound to together; who had the luckiest turn is no better than the others.
TEST_F(Books, RanksOfOneProcessorAreNotComparedAndWhoAskedForEvenOnesIsTold) {
    cpu_set_t all, one;
    ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    int first = 0;
    while (!CPU_ISSET(first, &all)) ++first;
    CPU_SET(first, &one);
    Config c = config("one processor");
    c.parallel.dp = 4, c.watch.even = true;
    testing::internal::CaptureStderr();
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    std::string refused;
    try {
        train_whole(c);
    } catch (const Error& e) {
        refused = e.what();
    }
    ASSERT_EQ(sched_setaffinity(0, sizeof all, &all), 0);
    const std::string told = testing::internal::GetCapturedStderr(), words = "--watch.even compares nothing here: ranks share processors";
    EXPECT_EQ(refused, "");
    EXPECT_NE(told.find(words), std::string::npos) << told;
    EXPECT_EQ(told.find(words), told.rfind(words)) << told;  // by one rank
    EXPECT_TRUE(records(c, "uneven").empty());
}

TEST_F(Books, ASlowRankIsWarnedAboutOnceByItsNumberAndHost) {
    Config c = config("slow");
    c.parallel.dp = 2, c.train.steps = 6;
    c.inject.faults = {"slow,step=2,every=1,rank=1,seconds=0.2"};  // and the other rank needs a few milliseconds
    c.observe.straggler_factor = 1.05, c.observe.straggler_times = 2;
    testing::internal::CaptureStderr();
    train_whole(c);
    const std::string told = testing::internal::GetCapturedStderr();
    char host[256] = "";
    gethostname(host, sizeof host);
    const std::string words = concat("keel: warning: rank 1 on ", host, " works at ");
    const std::size_t first = told.find(words);
    ASSERT_NE(first, std::string::npos) << told;
    EXPECT_EQ(told.find(words, first + 1), std::string::npos) << told;
    EXPECT_NE(told.find("% of the median rank's FLOP/s, for 2 log lines in a row"), std::string::npos) << told;
    EXPECT_EQ(told.find("rank 0 on "), std::string::npos) << told;
}

}  // namespace
}  // namespace keel
