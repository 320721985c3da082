// From text to a model that writes, through the binary as a user types it: tokenizer, token files, training, a stop and a
// resume, evaluation, generation; and every file on the way is one that `keel inspect` knows.
#include <gtest/gtest.h>

#include <cmath>
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
using Json = nlohmann::json;
using test::Outcome;

class Pipeline : public testing::Test {
protected:
    // `keel WORDS` with the folder of the test, whose name has a space in it, as working folder.
    Outcome keel(const std::string& words) const { return test::run_keel(words, dir.path()); }
    std::string done(const std::string& words) const {
        const Outcome got = keel(words);
        EXPECT_EQ(got.code, 0) << words << "\n" << got.err;
        return got.out;
    }
    void refused(const std::string& words, int code, const std::string& message) const {
        const Outcome got = keel(words);
        EXPECT_EQ(got.code, code) << words << "\n" << got.err;
        EXPECT_NE(got.err.find(message), std::string::npos) << got.err;
    }
    fs::path at(const std::string& name) const { return dir.path() / name; }

    void make_text() const {
        std::ofstream text(at("book.txt"));
        for (int i = 0; i < 1500; ++i)
            text << "verse " << i % 97 << ": and the word was with them, and they saw it.\n" << (i % 50 == 49 ? "\n" : "");
    }
    void make_token_files() const {
        make_text();
        done("tokenizer train --vocab 300 --skip-tail 5% --out tok book.txt");
        done("tokenize --tokenizer tok --valid-tail 5% --valid-text tail.txt --out train.tok --valid-out valid.tok "
             "--split-at-blank-lines true book.txt");
    }

    const std::string shape = "--model.dtype f32 --model.hidden 32 --model.layers 2 --model.heads 2 --model.ffn 64 "
                              "--data.seq_len 32 --train.global_batch 4 --optim.lr 1e-2 --run.threads 2 ";
    const std::string data = "--data.tokenizer tok --data.train train.tok --data.valid valid.tok ";
    test::TempFolder dir;
};

TEST_F(Pipeline, FromTextToAModelThatWrites) {
    make_token_files();
    const std::string train = "train " + shape + data + "--train.steps 60 --ckpt.interval 20 --train.eval_interval 30 " +
                              "--train.sample_prompt 'and the' --run.dir run";
    EXPECT_NE(done(train).find("report: run/report.html"), std::string::npos);

    std::ifstream log(at("run/log.jsonl"));
    double first = 0, last = 0;
    int evaluations = 0;
    for (std::string line; std::getline(log, line);) {
        const Json record = Json::parse(line);
        if (record["event"] == "step") (first == 0 ? first : last) = record["loss"].get<double>();
        evaluations += record["event"] == "eval";
    }
    EXPECT_LT(last, 0.5 * first);  // the text repeats itself; half of ln 300 is far from what is left to learn
    EXPECT_EQ(evaluations, 2);
    EXPECT_NE(read_file(at("run/report.html")).find("A sample of its own"), std::string::npos);

    const Json eval = Json::parse(done("eval run --data valid.tok --json"));
    EXPECT_NEAR(eval["perplexity"].get<double>(), std::exp(eval["loss"].get<double>()), 1e-9 * eval["perplexity"].get<double>());
    EXPECT_NEAR(eval["bits_per_byte"].get<double>(),
                eval["loss"].get<double>() * eval["targets"].get<double>() / eval["bytes"].get<double>() / std::log(2.0), 1e-9);

    const std::string one = done("generate run --prompt 'and the' --max-tokens 20 --seed 5");
    EXPECT_TRUE(one.starts_with("and the")) << one;
    EXPECT_EQ(one, done("generate run --prompt 'and the' --max-tokens 20 --seed 5 --threads 1"));

    // The same command has nothing left to do, and says so by doing nothing.
    done(train);
    EXPECT_EQ(Json::parse(done("inspect run --json"))["checkpoints"].size(), 2u);  // --ckpt.keep_last

    const std::pair<const char*, const char*> kinds[] = {
        {"run", "run"}, {"run/checkpoints/step-00000060", "checkpoint"}, {"run/checkpoints/step-00000060/manifest.json", "checkpoint"},
        {"run/checkpoints/step-00000060/state.json", "checkpoint"}, {"run/checkpoints/step-00000060/weights.safetensors", "safetensors"},
        {"run/config.toml", "configuration of a run"}, {"run/log.jsonl", "log of a run"}, {"run/report.html", "report of a run"},
        {"tok", "tokenizer"}, {"tok/tokenizer.json", "tokenizer"}, {"tok/tokenizer_config.json", "tokenizer"}, {"train.tok", "token file"}};
    for (const auto& [path, kind] : kinds)
        EXPECT_EQ(Json::parse(done(std::string("inspect ") + path + " --json"))["kind"], kind) << path;
}

// Started anew beside what an earlier run left: the next automatic resume goes on with the new start, not the old end.
TEST_F(Pipeline, StartingAnewSetsLaterCheckpointsAside) {
    make_token_files();
    const std::string train = "train " + shape + data + "--optim.schedule constant --run.dir run ";
    done(train + "--train.steps 9");
    const Outcome anew = keel(train + "--train.steps 3 --ckpt.resume none");
    EXPECT_EQ(anew.code, 0) << anew.err;
    EXPECT_NE(anew.err.find("checkpoints/set-aside-1"), std::string::npos) << anew.err;
    EXPECT_TRUE(fs::exists(at("run/checkpoints/set-aside-1/step-00000009/manifest.json")));
    EXPECT_NE(done(train + "--train.steps 5").find("going on after step 3"), std::string::npos);
}

TEST_F(Pipeline, MistakesAreToldBeforeTheWork) {
    make_token_files();
    const std::string train = "train " + shape + data + "--train.steps 4 ";
    refused("tokenize --tokenizer tok --out book.txt book.txt", 2, "book.txt is one of the inputs, and would be overwritten");
    refused(train + "--run.dir long --train.sample_prompt \"$(cat tail.txt)\"", 2, "--train.sample_prompt has ");
    EXPECT_FALSE(fs::exists(at("long")));
    done("tokenizer train --vocab 290 --out other book.txt");
    refused("train " + shape + "--data.tokenizer other --data.train train.tok --train.steps 4 --run.dir no", 1,
            "was made with tokenizer");
    refused("train " + shape + "--data.train train.tok --model.vocab 300 --train.steps 4 --run.dir no --train.sample_prompt x", 2,
            "--train.sample_prompt needs --data.tokenizer");
    done(train + "--run.dir run");
    // The same path, another tokenizer behind it: ids mean something else now.
    done("tokenize --tokenizer other --out train.tok book.txt");
    done("tokenize --tokenizer other --out valid.tok book.txt");
    refused("train " + shape + "--model.vocab 300 --data.train train.tok --data.valid valid.tok --train.steps 4 --run.dir run", 1,
            "was made with tokenizer");
    refused("eval run --data valid.tok", 1, "was made with tokenizer");
}

}  // namespace
}  // namespace keel
