// The binary as a user meets it: what it says to a mistake, which code it leaves with, what a broken pipe does to it.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "tests/cli/keel_command.h"

namespace keel::test {
namespace {

Outcome keel(const std::string& words, const std::string& redirect = "") { return run_keel(words, ".", redirect); }

void expect_usage_error(const std::string& arguments, const std::string& message) {
    const Outcome got = keel(arguments);
    EXPECT_EQ(got.code, 2) << arguments;
    EXPECT_EQ(got.out, "") << arguments;
    EXPECT_EQ(got.err, "keel: error: " + message + "\n");
}

}  // namespace

TEST(Cli, UnknownOptionsAreAnsweredWithTheNearestKnownOne) {
    expect_usage_error("train --optim.lrr 1", "unknown option --optim.lrr; did you mean --optim.lr? `keel train --help` lists the options");
    expect_usage_error("train --clip-grad 1", "unknown option --clip-grad; did you mean --optim.clip? `keel train --help` lists the options");
    expect_usage_error("train --max_grad_norm=1", "unknown option --max_grad_norm; did you mean --optim.clip? `keel train --help` lists the options");
    expect_usage_error("train --seq-length 1024", "unknown option --seq-length; did you mean --data.seq_len? `keel train --help` lists the options");
    expect_usage_error("tokenizer train --vocba 300 x --out y", "unknown option --vocba; did you mean --vocab? `keel tokenizer train --help` lists the options");
    expect_usage_error("estimate --qqqqqqqq", "unknown option --qqqqqqqq; `keel estimate --help` lists the options");
}

TEST(Cli, UnknownCommandsAreAnsweredWithTheNearestKnownOne) {
    EXPECT_TRUE(keel("trian").err.starts_with("keel: error: unknown command trian; did you mean `keel train`? Commands of keel are tokenizer, "));
    expect_usage_error("tokenizer trian", "unknown command trian; did you mean `keel tokenizer train`? Commands of keel tokenizer are train, check");
    expect_usage_error("tokenizer", "which command? `keel tokenizer` has train, check; `keel tokenizer --help` tells more");
    expect_usage_error("estimate stray", "`keel estimate` does not take \"stray\" here; `keel estimate --help` shows what it takes");
}

TEST(Cli, MissingValuesAndRequiredOptionsAreExplained) {
    expect_usage_error("eval --data x", "model is missing: a run (its newest checkpoint), a checkpoint, or a model folder; see `keel eval --help`");
    expect_usage_error("estimate --model.layers", "--model.layers: 1 required COUNT missing; see `keel estimate --help`");
    expect_usage_error("estimate --model.preset tiny --model.layers x", "--model.layers x: this must be a whole number");
    expect_usage_error("train", "--model.hidden is 0; give a size of at least 1, or a --model.preset");
}

TEST(Cli, AnEmptyNameIsAMistakeWhereOneMustBeGiven) {
    expect_usage_error("inspect ''", "path: it is empty; see `keel inspect --help`");
    expect_usage_error("convert '' x", "from: it is empty; see `keel convert --help`");
    expect_usage_error("convert x ''", "to: it is empty; see `keel convert --help`");
    expect_usage_error("tokenize --tokenizer t --out '' x", "--out: it is empty; see `keel tokenize --help`");
    expect_usage_error("eval m --data ''", "--data: it is empty; see `keel eval --help`");
}

TEST(Cli, AFileInThePlaceOfAModelIsToldWithTheFolderItLiesIn) {
    const TempFolder home;
    const std::filesystem::path& dir = home.path();
    std::filesystem::create_directories(dir / "model");
    std::ofstream(dir / "model" / "config.json") << "{}";
    std::ofstream(dir / "model" / "model.safetensors") << "x";
    std::ofstream(dir / "book.txt") << "x";
    const std::string file = (dir / "model" / "model.safetensors").string(), folder = (dir / "model").string();
    EXPECT_EQ(keel("generate '" + file + "'").err, "keel: error: " + file + " is a file; did you mean its folder, " + folder + "?\n");
    const std::string text = (dir / "book.txt").string();
    const Outcome got = keel("eval '" + text + "' --data x");
    EXPECT_EQ(got.code, 1);
    EXPECT_EQ(got.err, "keel: error: " + text + " is a file; give the folder of a run, a checkpoint or a model\n");
    expect_usage_error("eval x --data y --seq-len -1", "--seq-len is -1; give a positive number, or 0 for the model's own");
}

TEST(Cli, MistakesInAConfigurationFileAreToldWithTheirPlace) {
    const TempFolder folder;
    const std::string path = folder.write("with space.toml", "[model]\npreset = \"tiny\"\nlayer = 3\n");
    expect_usage_error("estimate --config \"" + path + "\"", path + ":3:1: unknown setting model.layer; did you mean model.layers?");
    expect_usage_error("estimate --config ''", "--config: the name of the file is empty; name one, or leave --config out; see `keel estimate --help`");
    const Outcome missing = keel("estimate --config /nowhere.toml");
    EXPECT_EQ(missing.code, 1);
    EXPECT_EQ(missing.err, "keel: error: cannot open /nowhere.toml: No such file or directory\n");
}

TEST(Cli, NothingAtAllPrintsTheHelpAndIsAUsageError) {
    const Outcome got = keel("");
    EXPECT_EQ(got.code, 2);
    EXPECT_EQ(got.out, "");
    EXPECT_NE(got.err.find("step by step"), std::string::npos);
}

TEST(Cli, VersionNamesTheBuild) {
    const Outcome got = keel("--version");
    EXPECT_EQ(got.code, 0);
    EXPECT_TRUE(got.out.starts_with("keel ")) << got.out;
    EXPECT_NE(got.out.find(", built for "), std::string::npos);
    EXPECT_NE(got.out.find(", Unicode "), std::string::npos);
}

TEST(Cli, EveryOptionOfEveryCommandHasASentenceOfHelp) {
    for (const char* command : {"", "tokenizer train", "tokenize", "data show", "estimate", "train", "eval", "generate", "inspect", "convert", "bench"}) {
        const Outcome got = keel(std::string(command) + " --help");
        EXPECT_EQ(got.code, 0) << command;
        std::istringstream lines(got.out);
        std::string line, next;
        std::getline(lines, line);
        while (std::getline(lines, next)) {
            // An option's help begins in column 44, or on the next line if the option's name is long.
            if (line.starts_with("  -") && line.find_first_not_of(' ', 44) == std::string::npos) {
                EXPECT_TRUE(next.starts_with(std::string(40, ' '))) << command << ": " << line;
            }
            line = next;
        }
    }
}

TEST(Cli, HelpShowsDefaultsInOneGroupPerSection) {
    const std::string help = keel("train --help").out;
    EXPECT_NE(help.find("[optim]:"), std::string::npos);
    EXPECT_NE(help.find("--optim.beta2 NUMBER=0.95"), std::string::npos);
    EXPECT_NE(help.find("--train.seed COUNT=1234"), std::string::npos);
}

TEST(Cli, EstimateListsPresetsWithTheirExactCounts) {
    const Outcome got = keel("estimate --presets");
    EXPECT_EQ(got.code, 0);
    EXPECT_NE(got.out.find("llama-3.1-8b      8 030 261 248"), std::string::npos) << got.out;
}

TEST(Cli, EstimateShowsParametersFlopsAndMemoryOfAModelTooLargeForThisMachine) {
    const Outcome got = keel("estimate --model.preset qwen3-32b --data.seq_len 8192 --train.global_batch 8 --train.micro_batch 1 --train.steps 10");
    EXPECT_EQ(got.code, 0) << got.err;
    EXPECT_NE(got.out.find("32 762 123 264"), std::string::npos);
    EXPECT_NE(got.out.find("FLOPs per token"), std::string::npos);
    EXPECT_NE(got.out.find("memory plan: "), std::string::npos);
    EXPECT_NE(got.out.find("the run: 10 steps"), std::string::npos);
}

TEST(Cli, EstimateDrawsThePipelineScheduleAndForecastsACluster) {
    const std::string model = "estimate --model.preset tiny --model.layers 8 --data.seq_len 256 ";
    Outcome got = keel(model + "--parallel.pp 2 --train.micro_batch 1 --train.global_batch 2 --schedule");
    EXPECT_EQ(got.code, 0) << got.err;
    EXPECT_TRUE(got.out.starts_with("rank 0 |F0|F1")) << got.out;
    EXPECT_NE(got.out.find("1f1b, 2 stages, 2 micro-batches: "), std::string::npos);

    const TempFolder folder;
    const std::string file = folder / "schedule.svg";
    got = keel(model + "--parallel.pp 2 --train.global_batch 8 --train.micro_batch 1 --schedule '" + file + "'");
    EXPECT_EQ(got.code, 0) << got.err;
    EXPECT_TRUE(std::filesystem::exists(file));
    expect_usage_error(model + "--schedule picture.png", "--schedule picture.png: give text, or the name of a file that ends in .svg");

    got = keel(model + "--parallel.tp 2 --parallel.pp 2 --cluster gpus=16,device=h200");  // the batch is chosen
    EXPECT_EQ(got.code, 0) << got.err;
    EXPECT_NE(got.out.find("layout       tp 2 with sequence, cp 1, dp 4, pp 2 (1f1b), 2 micro-batches of 1 x 256 tokens"), std::string::npos)
        << got.out;
    EXPECT_NE(got.out.find("MFU "), std::string::npos);
    EXPECT_NE(got.out.find("memory of one rank, by pipeline stage"), std::string::npos);
    expect_usage_error(model + "--cluster gpus=8,devise=a100", "--cluster: there is no \"devise\"; did you mean device?");
}

TEST(Cli, AReaderThatLeavesIsNotAnError) {
    EXPECT_EQ(std::system("bash -c 'set -o pipefail; \"" KEEL_BINARY "\" train --help | true'"), 0);
}

TEST(Cli, OutputThatCannotBeWrittenIsAnError) {
    const Outcome got = keel("estimate --presets", " >/dev/full");
    EXPECT_EQ(got.code, 1);
    EXPECT_EQ(got.err, "keel: error: standard output: No space left on device\n");
}

// A closed descriptor's number goes to the next file that is opened. What is printed must not land in it.
TEST(Cli, AClosedOutputIsAnErrorAndNothingIsPrintedIntoTheFilesThatAreWritten) {
    const TempFolder folder;
    const std::filesystem::path& dir = folder.path();
    std::ofstream(dir / "a.txt") << "one two two three three three\n";
    const std::string path = "'" + dir.string() + "'";
    ASSERT_EQ(keel("tokenizer train --vocab 260 --out " + path + "/tok " + path + "/a.txt").code, 0);
    const std::string words = "train --model.hidden 4 --model.layers 1 --model.heads 1 --model.ffn 4 --data.seq_len 4 --run.threads 1 "
                              "--train.global_batch 1 --train.steps 2 --data.tokenizer " + path + "/tok --data.train " + path +
                              "/a.tok --run.dir " + path + "/run";
    ASSERT_EQ(keel("tokenize --tokenizer " + path + "/tok --out " + path + "/a.tok " + path + "/a.txt").code, 0);
    const Outcome got = keel(words, " >&-");
    EXPECT_EQ(got.code, 1);
    EXPECT_NE(got.err.find("standard output: Bad file descriptor"), std::string::npos) << got.err;
    std::ifstream log(dir / "run" / "log.jsonl");
    int lines = 0;
    for (std::string line; std::getline(log, line); ++lines) EXPECT_TRUE(line.starts_with("{\"event\":")) << line;
    EXPECT_GE(lines, 4);
}

TEST(Cli, ADeviceTrainsOrIsRefusedInOneLine) {
    const TempFolder folder;
    const std::string path = "'" + folder.path().string() + "'";
    std::ofstream(folder.path() / "a.txt") << "one two two three three three\n";
    ASSERT_EQ(keel("tokenizer train --vocab 260 --out " + path + "/tok " + path + "/a.txt").code, 0);
    ASSERT_EQ(keel("tokenize --tokenizer " + path + "/tok --out " + path + "/a.tok " + path + "/a.txt").code, 0);
    const auto on = [&](const std::string& device, int gpus) {
        const std::string n = std::to_string(gpus);
        return "train --model.hidden 8 --model.layers 1 --model.heads 1 --model.ffn 8 --data.seq_len 8 --run.threads 1 --train.micro_batch 1 "
               "--train.steps 3 --train.sample_prompt one --data.tokenizer " + path + "/tok --data.train " + path + "/a.tok --run.dir " +
               path + "/run" + n + " --train.global_batch " + n + " --parallel.dp " + n + " --device " + device;
    };
    const Outcome here = keel("devices"), trained = keel(on("cudasim", 1));
    EXPECT_NE(here.out.find("cudasim  cudasim, sm_90"), std::string::npos) << here.out;
    for (const char* what : {", 8 of them\n", "runtime 13.0, ", "cublasLt ", "NCCL 2.", "kernels for "})
        EXPECT_NE(here.out.find(what), std::string::npos) << what << " in " << here.out;
    EXPECT_EQ(trained.code, 0) << trained.err;
    EXPECT_NE(trained.out.find("per epoch, cudasim, sm_90"), std::string::npos) << trained.out;
    const Outcome both = keel(on("cudasim", 2));
    EXPECT_EQ(both.code, 0) << both.err;
    EXPECT_NE(both.out.find("2 ranks (nccl):"), std::string::npos) << both.out;
    const Outcome nine = keel(on("cudasim", 9));
    EXPECT_EQ(nine.code, 2);
    EXPECT_NE(nine.err.find(", which shows 8 GPUs; every rank needs one of its own: start fewer, or lower --parallel.tp, pp, cp or dp"),
              std::string::npos) << nine.err;
    const std::string refused = "\ncuda     not offered: ";
    const auto at = here.out.find(refused);
    if (at == std::string::npos) return;
    const auto why = here.out.substr(at + refused.size(), here.out.find('\n', at + 1) - at - refused.size());
    expect_usage_error(on("cuda", 1), "--run.device cuda: " + why + "; leave it out to train on the CPU");
}

TEST(Cli, WhatMultipliesBf16CanBeChosen) {
    const TempFolder folder;
    const std::string path = "'" + folder.path().string() + "'";
    std::ofstream(folder.path() / "a.txt") << "one two two three three three\n";
    ASSERT_EQ(keel("tokenizer train --vocab 260 --out " + path + "/tok " + path + "/a.txt").code, 0);
    ASSERT_EQ(keel("tokenize --tokenizer " + path + "/tok --out " + path + "/a.tok " + path + "/a.txt").code, 0);
    const Outcome got = keel("train --model.hidden 8 --model.layers 1 --model.heads 1 --model.ffn 8 --model.dtype bf16 --data.seq_len 8 "
                             "--run.threads 1 --train.micro_batch 1 --train.global_batch 1 --train.steps 1 --run.bf16_by floats "
                             "--data.tokenizer " + path + "/tok --data.train " + path + "/a.tok --run.dir " + path + "/run");
    EXPECT_EQ(got.code, 0) << got.err;
    const std::string devices = keel("devices").out;
    const auto at = devices.find("products: ") + std::string("products: ").size();
    EXPECT_NE(got.out.find(" threads, " + devices.substr(at, devices.find(' ', at) - at) + " matmul"), std::string::npos) << got.out;
}

TEST(Cli, InitIsShortForTheSettingOfItsName) {
    const Outcome got = keel("train --init /nowhere --data.train a.tok --data.seq_len 8 --train.global_batch 1 --train.steps 1 --run.dir run");
    EXPECT_NE(got.code, 0);
    EXPECT_NE(got.err.find("/nowhere"), std::string::npos) << got.err;
}

TEST(Cli, ATokenizerCannotTakeThePlaceOfAFile) {
    const TempFolder folder;
    const std::string path = folder.write("a file.txt", "text text text");
    const Outcome got = keel("tokenizer train --vocab 260 --out '" + path + "' '" + path + "'");
    EXPECT_EQ(got.code, 1);
    EXPECT_EQ(got.err, "keel: error: cannot make folder " + path + ": Not a directory; --out is a folder, or a name that ends in .json\n");
    EXPECT_EQ(read_file(path), "text text text");
}

// The system would kill whoever writes past `ulimit -f`, without a word and with its temporary file left behind.
TEST(Cli, AFilePastTheLimitOfItsSizeIsAnErrorWithItsNumbers) {
    const TempFolder folder;
    const std::filesystem::path& dir = folder.path();
    std::ofstream(dir / "a.txt") << "one two two three three three\n";
    const int status = std::system(("ulimit -f 1 && \"" KEEL_BINARY "\" tokenizer train --vocab 260 --out '" + (dir / "tok").string() +
                                    "' '" + (dir / "a.txt").string() + "' >/dev/null 2>'" + (dir / "said").string() + "'").c_str());
    EXPECT_EQ(WEXITSTATUS(status), 1);
    const std::string said = read_file(dir / "said");
    EXPECT_TRUE(said.starts_with("keel: error: cannot write ")) << said;
    EXPECT_NE(said.find("File too large"), std::string::npos) << said;
    for (const auto& entry : std::filesystem::directory_iterator(dir / "tok"))
        EXPECT_EQ(entry.path().filename(), "tokenizer_config.json");
}

}  // namespace keel::test
