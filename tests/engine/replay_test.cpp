// A step that looks wrong is computed again, and that tells the chip from the program.
#include <cerrno>
#include <limits>

#include "kernels/base/file_faults.h"
#include "tests/engine/fault_runs.h"

namespace keel {
namespace {

namespace fs = std::filesystem;

class ReplayTest : public test::FaultRuns {};

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

// Worked by hand: of a hundred values the largest is 2.5; ten times that is a spike, and no later value moves the measure.
TEST(Spikes, AreTenTimesTheLargestOfTheFirstHundred) {
    Spikes s;
    for (int i = 0; i < 100; ++i) {
        EXPECT_FALSE(s.is_spike(1e9, 10, 100));
        s.add(i == 40 ? 2.5 : 1.0, 100);
    }
    EXPECT_FALSE(s.is_spike(24.9, 10, 100));
    EXPECT_TRUE(s.is_spike(25.0, 10, 100));
    s.add(3.0, 100);
    EXPECT_TRUE(s.is_spike(26.0, 10, 100));
    EXPECT_FALSE(s.is_spike(26.0, 0, 100));  // off
    EXPECT_FALSE(s.is_spike(std::numeric_limits<double>::infinity(), 10, 100));  // another matter
    s.accept(26.0);
    EXPECT_FALSE(s.is_spike(259.0, 10, 100));
    EXPECT_TRUE(s.is_spike(260.0, 10, 100));
}

TEST(Spikes, ValuesThatAreNotFiniteAreNoMeasure) {
    Spikes s;
    s.add(std::nan(""), 1);
    EXPECT_EQ(s.count, 0);
    s.add(2, 1);
    for (const double value : {std::nan(""), std::numeric_limits<double>::infinity()}) s.accept(value);  // of an overflow in f16
    EXPECT_EQ(s.largest, 2);
    EXPECT_TRUE(s.is_spike(20, 10, 1));
}

struct Layout {
    const char* name;
    int tp, pp, cp, dp;
    const char* sum;
};
const Layout layouts[] = {{"one", 1, 1, 1, 1, "float"},   {"tp", 2, 1, 1, 1, "float"},      {"pp", 1, 2, 1, 1, "float"},
                          {"cp", 1, 1, 2, 1, "float"},    {"dp", 1, 1, 1, 2, "float"},      {"exact", 1, 1, 1, 1, "exact"},
                          {"exact dp", 1, 1, 1, 2, "exact"}, {"exact tp", 2, 1, 1, 1, "exact"}};
void lay_out(Config& c, const Layout& l) {
    c.parallel.tp = l.tp, c.parallel.pp = l.pp, c.parallel.cp = l.cp, c.parallel.dp = l.dp, c.numerics.grad_sum = l.sum;
}

// Whatever an attempt touches is put back: a run of which every step is computed twice is the run.
TEST_F(ReplayTest, ARunOfWhichEveryStepIsComputedTwiceIsTheSameToTheBit) {
    for (const Layout& l : layouts) {
        Config once = config(concat(l.name, " once")), twice = config(concat(l.name, " twice"));
        once.fault.mode = "disabled", twice.fault.mode = "validate", twice.fault.interval = 1;
        for (Config* c : {&once, &twice}) {
            lay_out(*c, l);
            EXPECT_EQ(run(*c).why, "done");
        }
        EXPECT_EQ(test::differing(test::tensors_of(at_step(once, 5)), test::tensors_of(at_step(twice, 5))), "") << l.name;
        EXPECT_EQ(test::logged(once.run.dir, "loss"), test::logged(twice.run.dir, "loss")) << l.name;
        EXPECT_TRUE(findings(twice).empty());
    }
}

// What an attempt does to them shows in few results, so they are looked at themselves.
TEST_F(ReplayTest, TheScalesOfExactSumsArePutBackBeforeAnotherAttempt) {
    Config c = config("scales");
    c.numerics.grad_sum = "exact";
    test::on_ranks(c, [](keel::Run& run) {
        test::take_step(run);
        ExactSums& exact = *run.model->gradients().exact();
        const std::vector<int> before = exact.scales();
        run.replay->begin_step(2);
        run.replay->begin_attempt();
        std::vector<int> touched = before;
        for (int& scale : touched) scale -= 3;
        exact.set_scales(touched);
        StepResult bad;
        bad.loss = {std::nan(""), 1}, bad.applied = false;
        EXPECT_TRUE(run.replay->again(run.schedule.at(run.progress), bad));
        EXPECT_EQ(exact.scales(), before);
    });
}

// The lowest bits of one gradient: nothing would ever show it but another result.
TEST_F(ReplayTest, ATurnedBitIsTheChipsAndItsRankAndTensorAreNamed) {
    for (const Layout& l : layouts) {
        const int last = l.tp * l.pp * l.cp * l.dp - 1;
        Config calm = config(concat(l.name, " calm"));
        Config c = config(concat(l.name, " turned"), {concat("grad_flip,step=3,bit=18,tensor=layers.1.down,rank=", last)});
        c.fault.mode = "validate", c.fault.interval = 1;
        lay_out(c, l), lay_out(calm, l);
        const Ending end = run(c);
        EXPECT_EQ(end.why, "fault") << l.name;
        EXPECT_EQ(end.finding.code, ExitCode::fault) << l.name;
        EXPECT_EQ(end.finding.verdict, "passing");
        EXPECT_HAS(end.finding.where, concat("rank ", last, " on "));
        EXPECT_HAS(end.finding.where, "the gradient of layers.1.down");
        EXPECT_EQ(std::ranges::count(end.finding.where, '\n'), 1) << end.finding.where;  // that rank alone
        ASSERT_EQ(findings(c).size(), 1u);
        EXPECT_EQ(findings(c)[0]["step"], 3);
        EXPECT_EQ(findings(c)[0]["exit_code"], 17);

        // The checkpoint is of before the step, and a start from it ends where an undisturbed run does.
        EXPECT_TRUE(fs::exists(at_step(c, 2))) << l.name;
        EXPECT_EQ(run(c).why, "done");
        EXPECT_EQ(run(calm).why, "done");
        EXPECT_EQ(test::differing(test::tensors_of(at_step(calm, 5)), test::tensors_of(at_step(c, 5))), "") << l.name;
    }
}

TEST_F(ReplayTest, ANanThatDoesNotComeAgainIsTheChips) {
    const Config c = config("passing", {"grad_nan,step=3"});
    const Ending end = run(c);
    EXPECT_EQ(end.finding.code, ExitCode::fault);
    EXPECT_EQ(end.finding.verdict, "passing");
    EXPECT_HAS(end.finding.where, "the gradient of ");
}

TEST_F(ReplayTest, AToleratedErrorIsOutvotedAndChangesNothing) {
    Config c = config("tolerated", {"grad_nan,step=3", "grad_flip,step=4"}), calm = config("calm");
    c.fault.tolerate = 1, c.fault.mode = "validate", c.fault.interval = 1;
    const Ending end = run(c);  // the first is outvoted, the second is one too many
    EXPECT_HAS(end.told, "training goes on with the two that agree (1 of --fault.tolerate 1)");
    EXPECT_EQ(end.finding.step, 4);
    EXPECT_EQ(end.finding.code, ExitCode::fault);
    EXPECT_EQ(run(c).why, "done");
    EXPECT_EQ(run(calm).why, "done");
    EXPECT_EQ(test::differing(test::tensors_of(at_step(calm, 5)), test::tensors_of(at_step(c, 5))), "");
}

// A defect that strikes at every attempt, here and after a restart, is the program's until another machine knows better.
TEST_F(ReplayTest, ANanThatComesAgainIsOpenUntilAnotherStart) {
    const Config c = config("open", {"grad_nan,step=3,tensor=layers.0.qkv,lasting"});
    Ending end = run(c);
    EXPECT_EQ(end.finding.code, ExitCode::open);
    EXPECT_EQ(end.finding.verdict, "open");
    EXPECT_HAS(end.finding.where, "rank 0 on ");
    EXPECT_HAS(end.finding.where, "the gradient of layers.0.qkv");
    EXPECT_EQ(end.finding.first_sample, 8);
    EXPECT_HAS(end.finding.advice, "--fault.skip 3 goes past the step");
    const auto dumped = nlohmann::json::parse(read_file(end.finding.dump));
    EXPECT_EQ(dumped["step"], 3);
    EXPECT_EQ(dumped["micro_batches"].size(), 4u);  // which of them it was, a gradient does not say
    EXPECT_EQ(dumped["micro_batches"][1]["first_sample"], 9);
    EXPECT_EQ(dumped["micro_batches"][1]["ids"].size(), 24u);
    EXPECT_TRUE(fs::exists(at_step(c, 2)));

    end = run(c);  // here again
    EXPECT_EQ(end.finding.code, ExitCode::fault);
    EXPECT_EQ(end.finding.verdict, "program");
    EXPECT_HAS(end.finding.advice, "A second start came to the same");

    const auto elsewhere = [&] {  // what is known is of another machine
        auto lines = findings(c);
        std::string text;
        for (auto& line : lines) line["hosts"] = {"another"}, text += line.dump() + "\n";
        write_file_atomically(fs::path(c.run.dir) / "faults.jsonl", text);
    };
    elsewhere();
    end = run(c);
    EXPECT_EQ(end.finding.code, ExitCode::fault);
    EXPECT_HAS(end.finding.advice, "Other machines came to the same: the program or the data");

    elsewhere();
    Config sound = c, calm = config("calm");
    sound.inject.faults.clear();
    end = run(sound);  // a machine without the defect
    EXPECT_EQ(end.why, "done");
    EXPECT_HAS(end.told, "The step is good here: a machine named computes wrongly. Training goes on");
    EXPECT_HAS(end.told, "it was on another");
    EXPECT_EQ(findings(c).back()["verdict"], "settled");
    EXPECT_EQ(run(calm).why, "done");
    EXPECT_EQ(test::differing(test::tensors_of(at_step(calm, 5)), test::tensors_of(at_step(c, 5))), "");
}

TEST_F(ReplayTest, WhatEarlierStartsFoundIsReadWhateverTheFileHolds) {
    const Config c = config("history", {"grad_nan,step=2,lasting"});
    fs::create_directories(c.run.dir);
    write_file_atomically(fs::path(c.run.dir) / "faults.jsonl",
                          "{\"step\":2,\"verdict\":\"open\",\"hosts\":[\"a\"]}\n[1]\nnot json\n{\"step\":\"x\",\"hosts\":[],\"verdict\":3}\n"
                          "{\"step\":2,\"verdict\":\"settled\",\"hosts\":[7]}\n{\"verd");
    EXPECT_EQ(run(c).finding.verdict, "program");
    Config anew = c;
    anew.ckpt.resume = "none";  // another history
    EXPECT_EQ(run(anew).finding.verdict, "open");
}

TEST_F(ReplayTest, AFullDiskDoesNotChangeTheVerdict) {
    const Config c = config("full", {"grad_nan,step=2,lasting"});
    const FileFaults full([](FileStep step, const fs::path& path) {
        return step == FileStep::create && path.string().find("faults.jsonl") != std::string::npos ? ENOSPC : 0;
    });
    const Ending end = run(c);
    EXPECT_EQ(end.finding.code, ExitCode::open);
    EXPECT_HAS(end.told, "the next start will not know what was found");
}

TEST_F(ReplayTest, OnEveryLayoutANanNamesTheRankItBeganAt) {
    for (const Layout& l : layouts) {
        const int last = l.tp * l.pp * l.cp * l.dp - 1;
        Config c = config(concat(l.name, " nan"), {concat("grad_nan,step=2,lasting,tensor=layers.1.down,rank=", last)});
        lay_out(c, l);
        const Ending end = run(c);
        EXPECT_EQ(end.finding.code, ExitCode::open) << l.name;
        EXPECT_HAS(end.finding.where, concat("rank ", last, " on "));
        EXPECT_HAS(end.finding.where, "the gradient of layers.1.down");
    }
}

TEST_F(ReplayTest, AParameterThatIsNotFiniteIsNamedAndNotSaved) {
    const Config c = config("parameter", {"param_nan,step=3,tensor=layers.1.gate_up"});
    const Ending end = run(c);
    EXPECT_EQ(end.finding.code, ExitCode::open);
    EXPECT_HAS(end.finding.where, "the parameter layers.1.gate_up, before the step");
    EXPECT_HAS(end.finding.advice, "What is in memory is no good, and was not saved");
    EXPECT_FALSE(fs::exists(at_step(c, 2)));
}

// Weights so large that a layer's output overflows, though every parameter is a number.
TEST_F(ReplayTest, WhatALayerPutsOutIsNamedWhereItFirstGoesBad) {
    for (const char* recompute : {"none", "block"}) {
        Config c = config(concat("forward ", recompute));
        c.model.layers = 4, c.memory.recompute = recompute;
        const Ending end = run(c, [](keel::Run& run) {
            const Param& p = run.model->params().at("layers.1.down");
            std::fill_n(run.model->master().data() + p.offset, p.size(), 3e38f);
        });
        EXPECT_EQ(end.finding.code, ExitCode::open);
        EXPECT_HAS(end.finding.where, "what layer 1 puts out for micro-batch 0");
    }
}

TEST_F(ReplayTest, ASpikeThatComesAgainIsToldAndOneThatDoesNotIsTheChips) {
    for (const bool lasting : {true, false}) {
        Config c = config(concat("spike ", lasting), {concat("grad_value,step=4,value=1e4", lasting ? ",lasting" : "")});
        c.fault.spike_steps = 3;
        const Ending end = run(c);
        if (!lasting) {
            EXPECT_EQ(end.finding.code, ExitCode::fault);
            continue;
        }
        EXPECT_EQ(end.why, "done");
        ASSERT_EQ(findings(c).size(), 1u);
        EXPECT_EQ(findings(c)[0]["verdict"], "spike");
        EXPECT_HAS(end.told, "warning: step 4, samples 12 to 15: loss ");
        EXPECT_HAS(end.told, "no fault of the hardware. Training goes on");
        EXPECT_EQ(test::logged(c.run.dir, "exit_code", "fault").size(), 1u);
    }
}

// The measure of spikes is part of a checkpoint: a run cut in two finds the same ones.
TEST_F(ReplayTest, TheMeasureOfSpikesSurvivesARestart) {
    Config c = config("measure");
    c.ckpt.interval = 1, c.train.steps = 3;
    StepSpikes before;
    test::on_ranks(c, [&](keel::Run& run) { train(run), before = run.replay->spikes; });
    EXPECT_EQ(before.loss.count, 3);
    test::on_ranks(c, [&](keel::Run& run) { EXPECT_EQ(run.replay->spikes, before); });
}

// Opinions differ: rank 0 sees a spike that is none, rank 1 has a NaN. The worse one counts, and nobody waits for anybody.
TEST_F(ReplayTest, WhatOneRankHoldsHarmlessCannotCancelWhatAnotherFound) {
    Config c = config("votes", {"grad_nan,step=1,rank=1,lasting"});
    c.parallel.dp = 2;
    const auto sees_spikes = [](int rank) {
        return [rank](keel::Run& run) {
            if (run.world.rank() == rank) run.replay->spikes.loss = {.count = 1000, .largest = 1e-9};
        };
    };
    EXPECT_EQ(run(c, sees_spikes(0)).finding.code, ExitCode::open);
    Config alone = config("alone");
    alone.parallel.dp = 2, alone.train.steps = 1;
    EXPECT_EQ(run(alone, sees_spikes(1)).why, "done");
    EXPECT_EQ(findings(alone).at(0)["verdict"], "spike");
}

// Documents of one token predict nothing: the loss is 0 / 0, and no fault.
TEST_F(ReplayTest, AStepWithoutATargetIsNoFault) {
    Config c = config("no targets");
    c.data.train = {(dir_.path() / "lone.tok").string()};
    TokenFileInfo info;
    info.vocab_size = 61, info.tokenizer_hash = 77, info.eos_id = 0;
    TokenFileWriter writer(c.data.train[0], info);
    for (const std::int32_t id : std::vector<std::int32_t>(1500, 5)) writer.append({&id, 1}), writer.end_document();
    writer.finish();
    EXPECT_EQ(run(c).why, "done");
    EXPECT_TRUE(findings(c).empty());
}

TEST_F(ReplayTest, DisabledAStepThatIsNotFiniteIsPassedByAndTrainingGoesOn) {
    Config c = config("disabled", {"grad_nan,step=3,lasting"});
    c.fault.mode = "disabled";
    EXPECT_EQ(run(c).why, "done");
    EXPECT_TRUE(findings(c).empty());
    EXPECT_EQ(test::logged(c.run.dir, "step").size(), 5u);
}

}  // namespace
}  // namespace keel
