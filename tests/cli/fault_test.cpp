// Steps that look wrong, as a user and a job script meet them: exit codes, messages, and the way on. Real processes.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <fstream>
#include <regex>
#include <string>
#include <vector>

#include "tests/engine/tiny.h"

namespace {

namespace fs = std::filesystem;

class Fault : public testing::Test {
protected:
    Fault() { keel::test::write_token_file(dir_.path() / "a.tok", 61, 20000, 1); }

    // Exit code of `keel train` in the folder `name`.
    int train(const std::string& name, const std::string& more) const {
        const std::string command = "\"" KEEL_BINARY "\" train --model.dtype f32 --model.vocab 61 --model.hidden 32 --model.layers 2"
            " --model.heads 4 --model.ffn 40 --data.seq_len 32 --train.global_batch 4 --train.micro_batch 1 --run.threads 1"
            " --train.steps 8 --parallel.dp 2 --data.train '" + (dir_.path() / "a.tok").string() + "' --run.dir '" +
            (dir_.path() / name).string() + "' " + more + " >'" + (dir_.path() / (name + ".out")).string() + "' 2>'" +
            (dir_.path() / (name + ".err")).string() + "'";
        const int status = std::system(command.c_str());
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    static std::string read_all(const fs::path& path) {
        std::ifstream in(path);
        return {std::istreambuf_iterator<char>(in), {}};
    }
    std::string err(const std::string& name) const { return read_all(dir_.path() / (name + ".err")); }
    std::string log(const std::string& name) const { return read_all(dir_.path() / name / "log.jsonl"); }
    // Losses by step; of a step trained twice the later one.
    std::vector<std::string> curve(const std::string& name) const {
        std::ifstream in(dir_.path() / name / "log.jsonl");
        const std::regex step("\\{\"event\":\"step\",\"step\":([0-9]+).*\"loss\":([^,]+),");
        std::vector<std::string> losses(9);
        std::smatch found;
        for (std::string line; std::getline(in, line);)
            if (std::regex_search(line, found, step)) losses.at(std::stoul(found[1])) = found[2];
        return losses;
    }
    keel::test::TempFolder dir_;
};

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST_F(Fault, ABadStepLeavesWith16ThenWith17AndIsGonePastBySkippingIt) {
    const std::string bad = "--inject.faults grad_nan,step=5,rank=1,tensor=layers.0.qkv,lasting ";
    ASSERT_EQ(train("bad", bad), 16) << err("bad");
    EXPECT_HAS(err("bad"), "step 5, samples 16 to 19: loss ");
    EXPECT_HAS(err("bad"), "rank 1 on ");
    EXPECT_HAS(err("bad"), ": the gradient of layers.0.qkv");
    EXPECT_HAS(err("bad"), "Start the run again, best on another machine");
    EXPECT_HAS(err("bad"), "The samples are in " + (dir_.path() / "bad" / "fault-step-00000005.json").string());
    EXPECT_HAS(log("bad"), "\"event\":\"fault\"");
    EXPECT_HAS(log("bad"), "\"exit_code\":16");
    EXPECT_HAS(log("bad"), "{\"event\":\"end\",\"why\":\"fault\"");
    EXPECT_TRUE(fs::exists(dir_.path() / "bad" / "checkpoints" / "step-00000004"));

    ASSERT_EQ(train("bad", bad), 17) << err("bad");
    EXPECT_HAS(err("bad"), "A second start came to the same");
    ASSERT_EQ(train("bad", bad + "--fault.skip 5"), 0) << err("bad");
    EXPECT_HAS(log("bad"), "{\"event\":\"skip\",\"step\":5,\"samples\":20}");
}

TEST_F(Fault, AReportThatCannotBeWrittenIsWarnedAboutAndTheCodeIsTheFaults) {
    fs::create_directories(dir_.path() / "no report" / "report.html");
    ASSERT_EQ(train("no report", "--inject.faults grad_nan,step=2,lasting "), 16) << err("no report");
    EXPECT_HAS(err("no report"), "keel: warning: ");
    EXPECT_HAS(err("no report"), "report.html");
    EXPECT_EQ(read_all(dir_.path() / "no report.out").find("report: "), std::string::npos);
}

TEST_F(Fault, AnErrorOfTheHardwareLeavesWith17AndTheNextStartEndsAsIfNothingHadBeen) {
    const std::string validate = "--fault.mode validate --fault.interval 1 ";
    ASSERT_EQ(train("calm", validate), 0) << err("calm");
    ASSERT_EQ(train("turned", validate + "--inject.faults grad_flip,step=5,rank=1,bit=12"), 17) << err("turned");
    EXPECT_HAS(err("turned"), "this hardware computes wrongly now and then");
    ASSERT_EQ(train("turned", validate), 0) << err("turned");
    EXPECT_EQ(curve("turned"), curve("calm"));
    EXPECT_NE(curve("calm")[8], "");
}

TEST_F(Fault, ASupervisorStartsAnOpenQuestionAgainAndAnAnsweredOneNot) {
    EXPECT_EQ(train("watched", "--restart.max 5 --inject.faults grad_nan,step=5,lasting"), 17) << err("watched");
    EXPECT_HAS(err("watched"), "ended with code 16");
    EXPECT_HAS(err("watched"), "not started again: what was found must be looked at first");
}

TEST_F(Fault, ReplicasThatDifferLeaveWith17) {
    EXPECT_EQ(train("differ", "--fault.replica_interval 1 --inject.faults param_flip,step=5,rank=1,tensor=embed,bit=3"), 17);
    EXPECT_HAS(err("differ"), "the parameter embed is not that of rank 0; which of them is right cannot be told");
}

}  // namespace
