// Corpora as people have them, through the binary: what goes in, what comes out, what `data show` shows, and a training
// run on the token files of other programs that is bit for bit the run on keel's own.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "kernels/base/file.h"
#include "tests/cli/keel_command.h"
#include "tests/engine/tiny.h"

namespace keel {
namespace {

namespace fs = std::filesystem;

class DataCommand : public testing::Test {
protected:
    test::TempFolder dir;

    void SetUp() override {
        std::ofstream text(at("book.txt"));
        for (int i = 0; i < 600; ++i)
            text << "verse " << i % 97 << ": and they saw it.\n" << (i % 20 == 19 ? "\n" : "");
        text.close();
        done("tokenizer train --vocab 300 --out tok book.txt");
    }
    fs::path at(const std::string& name) const { return dir.path() / name; }
    std::string done(const std::string& words) const {
        const test::Outcome got = test::run_keel(words, dir.path());
        EXPECT_EQ(got.code, 0) << words << "\n" << got.err;
        return got.out;
    }
    std::string refused(const std::string& words) const {
        const test::Outcome got = test::run_keel(words, dir.path());
        EXPECT_NE(got.code, 0) << words;
        return got.err;
    }
};

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << "in: " << (text)

TEST_F(DataCommand, ARunOnOtherProgramsTokenFilesIsBitForBitTheRunOnKeelsOwn) {
    done("tokenize --tokenizer tok --split-at-blank-lines true --out a.tok book.txt");
    done("tokenize --tokenizer tok --split-at-blank-lines true --to megatron --out m book.txt");
    done("tokenize --tokenizer tok --split-at-blank-lines true --to llmc --out c.bin book.txt");
    const std::string bytes = read_file(at("c.bin")).substr(1024);
    std::ofstream(at("raw.bin"), std::ios::binary) << bytes;
    const std::string shape =
        "--model.dtype f32 --model.hidden 32 --model.layers 1 --model.heads 2 --model.ffn 64 --data.seq_len 32 "
        "--train.global_batch 2 --train.steps 3 --run.threads 1 --data.tokenizer tok --data.train ";
    std::vector<std::string> losses;
    for (const std::string source : {"a.tok", "m", "c.bin", "raw.bin --data.raw_dtype uint16"}) {
        fs::remove_all(at("run"));
        done("train " + shape + source + " --run.dir run");
        std::string loss;
        std::ifstream log(at("run/log.jsonl"));
        for (std::string line; std::getline(log, line);)
            if (const auto j = nlohmann::json::parse(line); j.contains("loss")) loss += j["loss"].dump() + " ";
        losses.push_back(loss);
    }
    EXPECT_GT(losses[0].size(), 20u);
    for (const std::string& loss : losses) EXPECT_EQ(loss, losses[0]);
    EXPECT_HAS(done("inspect m"), "Megatron token file");
    EXPECT_HAS(done("inspect c.bin --verify"), "llm.c token file");
    EXPECT_HAS(refused("inspect raw.bin"), "nothing keel knows");
    EXPECT_HAS(refused("train " + shape + "raw.bin --run.dir other"), "--data.raw_dtype uint16");
}

TEST_F(DataCommand, BadLinesCopiesAndOrderAreReported) {
    fs::create_directories(at("dump/deep"));
    std::ofstream(at("dump/2.jsonl")) << "{\"body\": \"second\"}\nnonsense\n{\"body\": \"first\"}\n";
    std::ofstream(at("dump/deep/1.jsonl")) << "{\"body\": \"third\"}\n{\"body\": \"first\"}\n";
    EXPECT_HAS(refused("tokenize --tokenizer tok --field body --out a.tok dump"),
               "dump/2.jsonl, line 2 (byte 19): not valid JSON");
    EXPECT_FALSE(fs::exists(at("a.tok")));
    const std::string out =
        done("tokenize --tokenizer tok --field body --on-bad-line skip --report report.json --out a.tok dump");
    EXPECT_HAS(out, "1 bad lines skipped; the first of them:\n  dump/2.jsonl, line 2 (byte 19)");
    EXPECT_HAS(out, "1 documents");
    EXPECT_HAS(out, "exact copies of an earlier one: 3 of 1, counted from 0");
    const auto report = nlohmann::json::parse(read_file(at("report.json")));
    EXPECT_EQ(report["inputs"][1]["path"], "dump/deep/1.jsonl");
    EXPECT_EQ(report["body"]["documents"], 4);
    EXPECT_EQ(report["bad_lines"]["first"][0]["line"], 2);
}

TEST_F(DataCommand, ShowPrintsDocumentsAndWhatIsPredicted) {
    std::ofstream(at("sft.jsonl")) << "{\"prompt\": \"they saw\", \"completion\": \" it.\\n\"}\n{\"prompt\": \"a long "
                                      "verse: and they \", \"completion\": \"saw\"}\n";
    done("tokenize --tokenizer tok --chat prompt --out a.tok sft.jsonl");
    const std::string settings = "--data.tokenizer tok --data.train a.tok --data.seq_len 64 --data.packing best_fit ";
    const std::string out = done("data show " + settings + "--count 1");
    EXPECT_HAS(out, "1 samples of 64 tokens per epoch");
    EXPECT_HAS(out, "sample 0: ");
    EXPECT_HAS(out, "2 documents");
    EXPECT_HAS(out, "⟨they saw⟩ it.\n");
    EXPECT_HAS(out, "⟨a long verse: and they ⟩saw");
    EXPECT_EQ(out.find('\033'), std::string::npos) << "colours in a pipe";
    EXPECT_HAS(done("data show " + settings + "--count 1 --color always"), "\033[48;5;");
    EXPECT_HAS(done("data show " + settings + "--count 1 --table"), "sees from  text\n");
    done("data show " + settings + "--count 3 --html page.html");
    const std::string page = read_file(at("page.html"));
    EXPECT_HAS(page, "<h2>Sample 2</h2>");
    EXPECT_HAS(page, "class=\"d1 no\"");
    EXPECT_EQ(page.find("http"), std::string::npos) << "the page must be self-contained";
    EXPECT_HAS(refused("data show --data.seq_len 8"), "--data.train is missing");
    EXPECT_HAS(refused("data show " + settings + "--data.order megatron"), "--data.order_samples");
}

TEST_F(DataCommand, ARunOnABlendSaysHowOftenItGoesThroughEachSource) {
    done("tokenize --tokenizer tok --out long.tok book.txt");
    std::ofstream(at("short.txt")) << std::string(400, 'x');
    done("tokenize --tokenizer tok --out short.tok short.txt");
    const std::string out = done(
        "train --model.dtype f32 --model.hidden 32 --model.layers 1 --model.heads 2 --model.ffn 64 --data.seq_len 32 "
        "--train.global_batch 2 --train.steps 4 --run.threads 1 --data.tokenizer tok --data.train 0.75 long.tok 0.25 short.tok --run.dir run");
    EXPECT_HAS(out, "will take 6 samples of long.tok: 0.");
    EXPECT_HAS(out, "took 6 samples of long.tok: 0.");
    EXPECT_HAS(out, "took 2 samples of short.tok: ");
}

}  // namespace
}  // namespace keel
