// `keel report`, through the binary: runs side by side, and what it says of folders that hold none.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "kernels/base/file.h"
#include "tests/cli/keel_command.h"
#include "tests/engine/tiny.h"

namespace keel {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using test::Outcome;

class ReportCommand : public testing::Test {
protected:
    Outcome keel(const std::string& words) const { return test::run_keel(words, dir.path()); }
    void train(const std::string& run, const std::string& more) const {
        if (!fs::exists(dir / "a.tok")) test::write_token_file(dir / "a.tok", 61, 3000, 1);
        const Outcome got = keel(
            "train --model.dtype f32 --model.vocab 61 --model.hidden 16 --model.layers 1 --model.heads 2 --model.ffn 24"
            " --data.seq_len 16 --data.train a.tok --data.split 0.9 0.1 0 --train.global_batch 2 --run.threads 1"
            " --run.dir '" +
            run + "' " + more);
        ASSERT_EQ(got.code, 0) << got.err;
    }
    void refused(const std::string& words, const std::string& message) const {
        const Outcome got = keel("report " + words);
        EXPECT_EQ(got.code, 2) << got.out;
        EXPECT_EQ(got.err, "keel: error: " + message + "\n");
        EXPECT_FALSE(fs::exists(dir / "comparison.html")) << words;
    }
    // A folder with the files of a run.
    void make_run(const std::string& run, const std::string& log) const {
        fs::create_directories(dir / run);
        dir.write(run + "/log.jsonl", log);
        dir.write(run + "/config.toml", "[model]\nvocab = 61\n");
    }
    test::TempFolder dir;
};

constexpr const char* start = "{\"event\":\"start\",\"time\":100,\"wall_seconds\":1,\"step\":0}\n";
constexpr const char* step =
    "{\"event\":\"step\",\"step\":1,\"tokens\":64,\"loss\":4.5,\"seconds\":2,\"flops\":1000}\n";

TEST_F(ReportCommand, ComparesRunsByTableAndPage) {
    train("runs/one & only", "--train.steps 6");
    train("runs/two", "--train.steps 6 --optim.lr 1e-2 --optim.clip 0.5");
    const Outcome got = keel("report 'runs/one & only' runs/two --out both.html");
    ASSERT_EQ(got.code, 0) << got.err;
    for (const char* words : {"one & only", "two ", "goodput_%", "settings that differ", "optim.lr", "0.01",
                              "optim.clip", "report: both.html"})
        EXPECT_NE(got.out.find(words), std::string::npos) << words << " in\n" << got.out;
    EXPECT_EQ(got.out.find("run.dir"), std::string::npos);
    EXPECT_EQ(got.out.find("optim.beta1"), std::string::npos);
    const std::string html = read_file(dir / "both.html");
    for (const char* words :
         {"one &amp; only", "<polyline class=\"c0\"", "<polyline class=\"c1\"", "Settings that differ", "optim.clip",
          "Where the time went", "prefers-color-scheme: dark"})
        EXPECT_NE(html.find(words), std::string::npos) << words;
    for (const char* forbidden : {"<script", "http:", "https:", "src=", "@import", "url("})
        EXPECT_EQ(html.find(forbidden), std::string::npos) << forbidden;
}

TEST_F(ReportCommand, SpeaksJsonWhereEverySecondHasAnEntry) {
    train("a", "--train.steps 4");
    train("a", "--train.steps 8 --optim.schedule constant --ckpt.accept_changes true");
    make_run(
        "b/killed",
        std::string(start) + "{\"event\":\"seconds\",\"step\":0,\"startup_seconds\":1,\"wall_seconds\":1}\n" + step +
            "{\"event\":\"seconds\",\"step\":1,\"startup_seconds\":1,\"compute_seconds\":3,\"wall_seconds\":4}\n{\"ev");
    const Outcome got = keel("report a b/killed --json");
    ASSERT_EQ(got.code, 0) << got.err;
    const Json json = Json::parse(got.out);
    const Json& a = json["runs"][0];
    EXPECT_EQ(a["run"], "a");
    EXPECT_EQ(a["steps"], 8);
    EXPECT_EQ(a["sessions"], 2);
    EXPECT_EQ(a["ended"], "done");
    double sum = 0;
    for (const auto& [key, value] : a.items())
        if (key.ends_with("_seconds") && key != "wall_seconds") sum += value.get<double>();
    EXPECT_NEAR(sum, a["wall_seconds"].get<double>(), 1e-9);
    const Json& b = json["runs"][1];
    EXPECT_EQ(b["run"], "killed");
    EXPECT_EQ(b["ended"], "not yet, or killed");
    EXPECT_EQ(b["wall_seconds"], 4);
    EXPECT_EQ(b["loss"], 4.5);
    EXPECT_EQ(b["eval_loss"], nullptr);
    EXPECT_EQ(b["tokens_per_second"], 32);
    EXPECT_EQ(b["goodput_percent"], 75);
    EXPECT_TRUE(fs::exists(dir / "comparison.html"));
}

TEST_F(ReportCommand, OneRunIsShownAndSaidToBeAlone) {
    make_run("one", std::string(start) + step);
    const Outcome got = keel("report one/");
    EXPECT_EQ(got.code, 0) << got.err;
    EXPECT_NE(got.out.find("one run only: there is nothing to compare it with"), std::string::npos) << got.out;
}

TEST_F(ReportCommand, ManyRunsKeepTheirNamesApart) {
    std::string words;
    for (int i = 0; i < 12; ++i) {
        make_run("sweep " + std::to_string(i) + "/run", std::string(start) + step);
        words += " 'sweep " + std::to_string(i) + "/run'";
    }
    const Outcome got = keel("report" + words);
    EXPECT_EQ(got.code, 0) << got.err;
    EXPECT_NE(got.out.find("sweep 0/run"), std::string::npos) << got.out;
    EXPECT_NE(got.out.find("sweep 11/run"), std::string::npos) << got.out;
    EXPECT_EQ(got.out.find("settings that differ"), std::string::npos) << got.out;
}

TEST_F(ReportCommand, FoldersThatHoldNoRunAreNamedWithTheReason) {
    make_run("empty", "");
    make_run("begun", start);
    make_run("good", std::string(start) + step);
    fs::create_directories(dir / "no log");
    refused("good 'not here'", "report: not here is not there; give the folder of a run (--run.dir of keel train)");
    refused("good/log.jsonl", "report: good/log.jsonl is a file; give the folder of a run (--run.dir of keel train)");
    refused("'no log' good", "report: no log has no log.jsonl, so it is no folder of a run (--run.dir of keel train)");
    refused("empty", "report: empty/log.jsonl holds no step yet; compare the run when it has made one");
    refused("good begun", "report: begun/log.jsonl holds no step yet; compare the run when it has made one");
    refused("good ./good", "report: ./good is given twice");
    const Outcome none = keel("report");
    EXPECT_EQ(none.code, 2);
    EXPECT_NE(none.err.find("RUN"), std::string::npos) << none.err;
    refused("good --out nowhere/page.html",
            "--out nowhere/page.html: there is no folder nowhere; make it, or name another place");
}

}  // namespace
}  // namespace keel
