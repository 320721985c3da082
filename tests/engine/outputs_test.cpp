// What a run tells programs: each output whole and true while it goes on, and after a stop.
#include "engine/observe/outputs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/observe/observe.h"
#include "kernels/base/file.h"
#include "tests/count_allocations.h"
#include "tests/engine/tiny.h"

using namespace keel;
namespace fs = std::filesystem;

namespace {

Config config_in(const fs::path& dir) {
    Config c = test::tiny_config();
    c.data.train = {"a.tok"}, c.run.dir = dir;
    resolve_and_validate(c);
    return c;
}

// The payloads of a file's records, each checked against its sums.
std::vector<std::string> events(const fs::path& path) {
    const std::string bytes = read_file(path);
    std::vector<std::string> out;
    for (std::size_t at = 0; at < bytes.size();) {
        std::uint64_t length = 0;
        std::uint32_t of_length = 0, of_data = 0;
        if (bytes.size() - at < 16) return ADD_FAILURE() << "a torn record at " << at, out;
        std::memcpy(&length, bytes.data() + at, 8), std::memcpy(&of_length, bytes.data() + at + 8, 4);
        if (bytes.size() - at < 16 + length) return ADD_FAILURE() << "a torn record at " << at, out;
        std::memcpy(&of_data, bytes.data() + at + 12 + length, 4);
        out.push_back(bytes.substr(at + 12, length));
        EXPECT_EQ(masked_crc32c(bytes.substr(at, 8)), of_length);
        EXPECT_EQ(masked_crc32c(out.back()), of_data);
        at += 16 + length;
    }
    return out;
}
std::vector<fs::path> event_files(const fs::path& run) {
    std::vector<fs::path> out;
    for (const auto& entry : fs::directory_iterator(run / "tensorboard")) out.push_back(entry.path());
    std::ranges::sort(out);
    return out;
}
bool has_scalar(const std::string& event, const std::string& tag, float value) {
    std::string bytes = std::string("\x0a") + static_cast<char>(tag.size()) + tag + "\x15" + std::string(4, '\0');
    std::memcpy(bytes.data() + bytes.size() - 4, &value, 4);
    return event.find(bytes) != std::string::npos;
}

void take_step(Observe& observe, Progress& progress, double loss) {
    const StepPlan plan{
        .first_sample = progress.samples, .samples = 4, .micro_batch = 2, .num_micro_batches = 2, .lr = 1e-3};
    const StepResult step{.loss = {loss * 64, 64},
                          .grad_norm = loss,
                          .applied = std::isfinite(loss),
                          .tokens = 96,
                          .tokens_squared = 2304};
    progress.advance(plan, step);
    observe.record(progress, plan, step);
}

}  // namespace

TEST(Outputs, TellWhatIsNotANumberByItsNameInEachOfThem) {
    const test::TempFolder folder;
    const Config config = config_in(folder.path());
    Ledger ledger(Clock::now());
    std::string line;
    {
        Observe observe(config, {.matmul_peak = 1e9, .total_samples = 80, .total_steps = 20}, ledger);
        Progress progress;
        observe.start(progress);
        testing::internal::CaptureStdout();
        take_step(observe, progress, NAN);
        observe.record_eval(progress, {.loss = {NAN, 3}, .bytes = 9, .seconds = 1});
        line = testing::internal::GetCapturedStdout();
    }
    EXPECT_NE(line.find(" loss NaN grad_norm NaN "), std::string::npos) << line;
    EXPECT_NE(line.find("eval step 1 loss NaN perplexity NaN bits/byte NaN "), std::string::npos) << line;
    const std::string log = read_file(folder / "log.jsonl");
    EXPECT_NE(log.find("\"loss\":\"NaN\",\"loss_tokens\":64,\"grad_norm\":\"NaN\""), std::string::npos) << log;
    EXPECT_NE(log.find("\"loss\":\"NaN\",\"perplexity\":\"NaN\""), std::string::npos) << log;
    const auto files = event_files(folder.path());
    ASSERT_EQ(files.size(), 1u);
    const auto all = events(files[0]);
    ASSERT_EQ(all.size(), 5u);  // version, session, configuration, step, evaluation
    const float nan = std::nanf("");
    EXPECT_TRUE(has_scalar(all[3], "train/loss", nan) && has_scalar(all[3], "train/grad_norm", nan));
    EXPECT_TRUE(has_scalar(all[4], "eval/loss", nan) && has_scalar(all[4], "eval/bits_per_byte", nan));
    const std::string metrics = read_file(folder / "metrics.prom");
    EXPECT_NE(metrics.find("\"} NaN\n"), std::string::npos);
    for (const char* name : {"keel_train_loss{", "keel_grad_norm{", "keel_eval_loss{"}) {
        const std::size_t at = metrics.find(std::string("\n") + name);
        ASSERT_NE(at, std::string::npos) << name;
        EXPECT_TRUE(metrics.substr(at + 1, metrics.find('\n', at + 1) - at - 1).ends_with("} NaN")) << name;
    }
}

TEST(Outputs, OfARunThatGoesOnSupersedeTheStepsThatWereLost) {
    const test::TempFolder folder;
    const Config config = config_in(folder.path());
    for (const std::int64_t from : {0, 2}) {  // the first job took 3 steps, and saved after 2
        Ledger ledger(Clock::now());
        Observe observe(config, {.total_samples = 80, .total_steps = 20, .ranks = 2}, ledger);
        Progress progress{
            .samples = 4 * from, .steps = from, .skipped = 0, .tokens = 96 * from, .tokens_squared = 2304 * from};
        observe.start(progress);
        for (int i = 0; i < 3; ++i) {
            take_step(observe, progress, 2.5);
            if (from == 0 && i == 1)
                observe.record_saving(progress), observe.record_save(progress, "checkpoints/step-00000002", 0.1);
        }
    }
    const auto files = event_files(folder.path());
    ASSERT_EQ(files.size(), 2u) << "a file per start";
    EXPECT_TRUE(events(files[0])[1].ends_with("\x10\x01\x3a\x02\x08\x01")) << "the session begins with step 1";
    EXPECT_TRUE(events(files[1])[1].ends_with("\x10\x03\x3a\x02\x08\x01"))
        << "and the next with step 3, which was lost";
    const std::string text = read_file(folder / "progress.txt");
    std::vector<std::string> lines;
    std::istringstream in(text);
    for (std::string l; std::getline(in, l);) lines.push_back(l.substr(l.find("# ranks")));
    ASSERT_EQ(lines.size(), 4u) << text;
    EXPECT_EQ(lines[0], "# ranks: 2\tStarting job\tIteration: 0\tFloating-point operations: 0");
    EXPECT_TRUE(lines[1].starts_with("# ranks: 2\tSaving checkpoint\tIteration: 2\tJob throughput: ")) << lines[1];
    EXPECT_EQ(lines[2], "# ranks: 2\tSaved checkpoint\tIteration: 2");
    EXPECT_TRUE(lines[3].starts_with("# ranks: 2\tStarting job\tIteration: 2\tFloating-point operations: "))
        << lines[3];
    EXPECT_EQ(lines[3].substr(lines[3].find("Floating")),
              lines[1].substr(lines[1].find("Floating"), lines[3].size() - lines[3].find("Floating")));
}

TEST(Outputs, CountTheEnergyOfStepsAndNotOfEvaluationsAndCheckpoints) {
    const test::TempFolder folder;
    const fs::path sys = folder.path() / "powercap/intel-rapl:0";
    fs::create_directories(sys);
    const auto write = [&](const char* name, const std::string& text) { std::ofstream(sys / name) << text << "\n"; };
    std::int64_t microjoules = 0;
    const auto use = [&](int joules) { write("energy_uj", std::to_string(microjoules += joules * 1'000'000)); };
    write("name", "package-0"), write("max_energy_range_uj", "100000000"), use(99);  // and soon starts again at 0
    const Config config = config_in(folder.path());
    const Clock::time_point now = Clock::now();
    Ledger ledger(now);
    {
        Observe observe(config, {.total_samples = 80, .total_steps = 20, .powercap = folder.path() / "powercap"},
                        ledger);
        Progress progress;
        observe.start(progress);
        microjoules = -100'000'000 + 99'000'000, use(35);
        take_step(observe, progress, 1);
        use(1000 / 50);
        observe.record_eval(progress, {.loss = {1, 1}});
        use(7);
        take_step(observe, progress, 1);
        use(11);
        observe.record_save(progress, "checkpoints/step-00000002", 0.1);
        use(5);
        take_step(observe, progress, 1);
    }
    std::vector<double> joules;
    std::ifstream in(folder / "log.jsonl");
    for (std::string line; std::getline(in, line);)
        if (const auto record = nlohmann::json::parse(line); record["event"] == "step")
            joules.push_back(record["joules"]);
    EXPECT_EQ(joules, (std::vector<double>{35, 7, 5}));
    EXPECT_NE(read_file(folder / "metrics.prom").find("} 78\n"), std::string::npos) << "the counter counts everything";
}

// behaviour.md, T14.6: 2 devices that use 35000 J each in 10 steps of 50 s together.
TEST(Outputs, TellTheEnergyOfAStepAndTheWattsOfADevice) {
    const test::TempFolder folder;
    for (const char* name : {"powercap/intel-rapl:0", "powercap/intel-rapl:1"}) {
        fs::create_directories(folder.path() / name);
        folder.write(std::string(name) + "/name", "package-0\n");
        folder.write(std::string(name) + "/max_energy_range_uj", "262143328850\n");
        folder.write(std::string(name) + "/energy_uj", "0\n");
    }
    const Config config = config_in(folder.path());
    const Clock::time_point t0 = Clock::now() - std::chrono::seconds(50);
    Ledger ledger(t0);
    {
        Observe observe(config, {.total_samples = 80, .total_steps = 20, .powercap = folder.path() / "powercap"},
                        ledger);
        Progress progress;
        observe.start(progress);
        ledger.enter(Phase::compute, t0 + std::chrono::seconds(45));  // a tenth of the fifty seconds
        ledger.enter(Phase::idle, t0 + std::chrono::seconds(50));
        for (const char* name : {"powercap/intel-rapl:0", "powercap/intel-rapl:1"})
            folder.write(std::string(name) + "/energy_uj", "3500000000\n");
        take_step(observe, progress, 1);
    }
    std::ifstream in(folder / "log.jsonl");
    std::string line;
    while (std::getline(in, line) && !line.starts_with("{\"event\":\"step\"")) {
    }
    const auto record = nlohmann::json::parse(line);
    EXPECT_EQ(record["joules"], 2 * 3500.0);
    EXPECT_NEAR(record["watts_per_device"].get<double>(), 700, 1e-6);
}

TEST(Outputs, SayOnceThatEnergyIsNotMeasured) {
    const test::TempFolder folder;
    const Config config = config_in(folder.path());
    Ledger ledger(Clock::now());
    testing::internal::CaptureStdout();
    Observe observe(config, {.total_samples = 80, .total_steps = 20, .powercap = folder / "none"}, ledger);
    Progress progress;
    observe.start(progress);
    take_step(observe, progress, 1), take_step(observe, progress, 1);
    const std::string out = testing::internal::GetCapturedStdout(),
                      said = "energy is not measured: " + (folder / "none") + " has no counter";
    EXPECT_NE(out.find(said), std::string::npos) << out;
    EXPECT_EQ(out.find("energy", out.find(said) + 10), std::string::npos) << out;
}

TEST(Outputs, AreScrapedFromThePortOfTheRun) {
    const test::TempFolder folder;
    Config config = config_in(folder.path());
    std::optional<MetricsServer> other;
    other.emplace("127.0.0.1", 0);
    config.observe.http_port = other->port();
    Ledger ledger(Clock::now());
    try {
        Observe observe(config, {}, ledger);
        FAIL();
    } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find("another run, listens there"), std::string::npos) << e.what();
    }
    other.reset();
    Observe observe(config, {.total_samples = 80, .total_steps = 20}, ledger);
    EXPECT_THROW(MetricsServer("127.0.0.1", static_cast<int>(config.observe.http_port)), Error)
        << "the run listens there now";
}

TEST(Outputs, OfAStepAllocateNothing) {
    const test::TempFolder folder;
    const fs::path sys = folder.path() / "powercap/intel-rapl:0";
    fs::create_directories(sys);
    folder.write("powercap/intel-rapl:0/name", "package-0\n"), folder.write("powercap/intel-rapl:0/energy_uj", "0\n");
    folder.write("powercap/intel-rapl:0/max_energy_range_uj", "1000\n");
    const Config config = config_in(folder.path());
    const RunFacts facts{.matmul_peak = 1e9,
                         .total_samples = 80,
                         .total_steps = 20,
                         .sources = {{"a.tok", 0.1}, {"b.tok", 0.2}},
                         .powercap = folder.path() / "powercap"};
    const Ledger ledger(Clock::now() - std::chrono::hours(1));
    Outputs outputs(config, facts, ledger, [](const std::string& text) { ADD_FAILURE() << text; });
    Progress progress;
    outputs.start(progress, 1.7e9);
    const long before = allocations();
    for (int i = 1; i <= 20; ++i) {
        progress.steps = i;
        outputs.step({.unix_time = 1.7e9 + i,
                      .progress = progress,
                      .plan = {.samples = 4},
                      .seconds = 0.1,
                      .peak_share = 0.4,
                      .joules = 1,
                      .watts = 2},
                     true);
        outputs.eval(progress, {.loss = {1, 1}, .bytes = 3}, 1.7e9);
        outputs.saving(progress, 1.7e9), outputs.saved(progress, 1.7e9);
    }
    EXPECT_EQ(allocations() - before, 0);
}
