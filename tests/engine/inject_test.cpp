// Faults that a run is told to suffer: they strike where and when they were told to, once in its life, and nothing else does.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <set>

#include "ckpt/checkpoint.h"
#include "engine/config_io.h"
#include "engine/fault/inject.h"
#include "kernels/base/file.h"
#include "tests/engine/rank_runs.h"

namespace keel {
namespace {

namespace fs = std::filesystem;

class Inject : public testing::Test {
protected:
    Inject() { test::write_token_file(dir_.path() / "a.tok", 61, 1500, 1); }

    Config config(const std::string& name, const std::vector<std::string>& faults) const {
        Config c = test::tiny_config("f32");
        c.model.layers = 4;  // for two stages
        c.run.dir = (dir_.path() / name).string();
        c.run.threads = 1;
        c.data.train = {(dir_.path() / "a.tok").string()};
        c.train.steps = 6;
        c.inject.faults = faults;
        c.fault.mode = "disabled";  // what they do is left to stand
        return c;
    }
    static std::string refusal(Config c, const std::string& fault) {
        c.inject.faults = {fault};
        try {
            resolve_and_validate(c);
        } catch (const Error& e) {
            EXPECT_EQ(e.code(), ExitCode::usage);
            return e.what();
        }
        return "accepted";
    }
    static std::string params_of(keel::Run& run) {
        return {reinterpret_cast<const char*>(run.model->param_data()),
                static_cast<std::size_t>(run.model->params().flat_size * size_bytes(run.model->dtype()))};
    }
    // Of each rank, what is told at stderr besides the warning at the start.
    static std::string told(const Config& c, const std::function<void(keel::Run&)>& body) {
        testing::internal::CaptureStderr();
        test::on_ranks(c, body);
        return testing::internal::GetCapturedStderr();
    }
    test::TempFolder dir_;
};

TEST_F(Inject, NonsenseIsRefusedByName) {
    const Config c = config("refused", {});
    const std::vector<std::pair<std::string, std::string>> cases = {
        {"grad_nam,step=2", "\"grad_nam\" is no kind of fault; did you mean grad_nan?"},
        {"kill/grad_nam:2,step=2", "\"grad_nam\" is no kind of fault; did you mean grad_nan?"},
        {"fire,step=2", "kinds are grad_nan, grad_value, grad_flip, param_nan, param_value, param_flip, slow, hang, kill, write_fail, "
                        "disk_full, corrupt_checkpoint, bad_core"},
        {"", "it begins with no kind of fault"},
        {"kill", "no step is given; write step=7 for the seventh, after=60 for a minute later, or mttf=600 for a random time"},
        {"kill,step=7", "step 7 is none of the run's, which are 1 to 6"},
        {"kill,step=0", "step 0 is none of the run's"},
        {"kill,step=x", "step=x: this must be a whole number"},
        {"kill,step=2,step=3", "step is given twice"},
        {"kill,step=2,bit=3", "\"bit=3\" means nothing for kill; it takes step, after, mttf, rank, ranks, every, lasting"},
        {"kill/slow,step=2,bit=3", "\"bit=3\" means nothing for kill/slow; it takes step, after, mttf, rank, ranks, every, lasting, seconds"},
        {"kill:x/hang,step=2", "weight=x: this must be a number"},
        {"kill:-1/hang,step=2", "kill:-1: a weight must be at least 0"},
        {"kill:0/hang:0,step=2", "no kind has a weight above 0"},
        {"kill,mttf=0", "mttf=0; it must be more than 0"},
        {"kill,mttf=nan", "it must be more than 0"},
        {"kill,mttf=2e9", "mttf=2e+09; it must be more than 0, and less than 1e9"},
        {"kill,after=2e9", "after=2e+09; it must be at least 0, and less than 1e9"},
        {"slow,step=2,seconds=2e9", "seconds=2e+09; it must be at least 0, and less than 1e9"},
        {"kill,after=-1", "after=-1; it must be at least 0"},
        {"kill,step=7,mttf=60", "step 7 is none of the run's, which are 1 to 6"},
        {"kill,step=2,rank=1,ranks=1", "rank names one, and ranks draws some; leave one of them out"},
        {"kill,step=2,ranks=0", "ranks=0; it must be at least 1"},
        {"kill,step", "step takes a value, as in step=1"},
        {"kill,step=2,lasting=1", "lasting stands alone"},
        {"kill,step=2,every=0", "every=0; it must be at least 1"},
        {"kill,step=2,rank=-1", "rank=-1; ranks begin at 0"},
        {"slow,step=2,seconds=-1", "seconds=-1; it must be at least 0"},
        {"slow,step=2,seconds=nan", "it must be at least 0"},
        {"disk_full,step=2,steps=0", "steps=0; it must be at least 1"},
        {"grad_flip,step=2,bit=32", "bit 32 is none of 0 to 31"},
        {"grad_nan,step=2,tensor=layers.0.qvk", "the model has no tensor layers.0.qvk; did you mean layers.0.qkv?"},
    };
    for (const auto& [fault, message] : cases) {
        const std::string said = refusal(c, fault);
        EXPECT_NE(said.find("--inject.faults " + fault + ": "), std::string::npos) << said;
        EXPECT_NE(said.find(message), std::string::npos) << said;
    }
    Config bf16 = c;
    bf16.model.dtype = "bf16";
    EXPECT_NE(refusal(bf16, "param_flip,step=2,bit=16").find("bit 16 is none of 0 to 15"), std::string::npos);
    EXPECT_NE(refusal(bf16, "grad_flip/param_flip,step=2,bit=16").find("bit 16 is none of 0 to 15"), std::string::npos);
    EXPECT_EQ(refusal(bf16, "grad_flip,step=2,bit=31"), "accepted");
}

TEST_F(Inject, ARankOrTensorThatIsNotThereIsRefused) {
    Config c = config("ranks", {"kill,step=2,rank=2"});
    c.parallel.pp = 2;
    const auto refused = [&] {
        try {
            test::on_ranks(c, [](keel::Run&) {});
        } catch (const Error& e) {
            return std::string(e.what());
        }
        return std::string();
    };
    EXPECT_NE(refused().find("rank 2 is none of the run's 2"), std::string::npos) << refused();
    c.inject.faults = {"kill,step=2,ranks=2"};
    EXPECT_NE(refused().find("ranks=2: besides rank 0 the run has 1"), std::string::npos) << refused();
    c.inject.faults = {"grad_nan,step=2,rank=1,tensor=embed"};
    EXPECT_NE(refused().find("rank 1 holds no part of embed; name a rank that does"), std::string::npos) << refused();
}

TEST_F(Inject, AFlipIsOneBitOfOneParameterOnOneRankBeforeTheForwardPass) {
    for (const char* dtype : {"f32", "bf16"}) {
        Config c = config(std::string("flip") + dtype, {"param_flip,step=1,rank=1,tensor=layers.1.down"});
        c.model.dtype = dtype, c.parallel.dp = 2;
        (void)told(c, [&](keel::Run& run) {
            const std::string before = params_of(run);
            run.inject->begin(1);
            const std::string after = params_of(run);
            int bits = 0;
            std::size_t where = 0;
            for (std::size_t i = 0; i < before.size(); ++i)
                if (const int n = std::popcount(static_cast<unsigned char>(before[i] ^ after[i])); n > 0) bits += n, where = i;
            EXPECT_EQ(bits, run.world.rank() == 1 ? 1 : 0);
            if (bits == 0) return;
            const Param& p = run.model->params().at("layers.1.down");
            const auto element = static_cast<std::int64_t>(where) / size_bytes(run.model->dtype());
            EXPECT_TRUE(element >= p.offset && element < p.offset + p.size()) << element;
            run.inject->begin(1);  // of the same step again: what is in memory is still there
            EXPECT_EQ(params_of(run), after);
        });
    }
}

// With overlap the gradients of a bucket leave while backward still runs; the fault is there before they do.
TEST_F(Inject, AGradientIsSpoiledBeforeItsSumOnAnyLayout) {
    struct Layout {
        int tp, pp, cp, dp;
        const char* sum;
    };
    for (const Layout& l : {Layout{1, 1, 1, 1, "float"}, {2, 1, 1, 1, "float"}, {1, 2, 1, 1, "float"}, {1, 1, 2, 1, "float"},
                            {1, 1, 1, 2, "float"}, {1, 1, 1, 1, "exact"}, {2, 1, 1, 1, "exact"}, {1, 1, 1, 2, "exact"}}) {
        const std::string name = concat(l.tp, l.pp, l.cp, l.dp, l.sum);
        Config c = config(name, {concat("grad_nan,step=3,rank=", l.tp * l.pp * l.cp * l.dp - 1)});
        c.parallel.tp = l.tp, c.parallel.pp = l.pp, c.parallel.cp = l.cp, c.parallel.dp = l.dp;
        c.parallel.vocab_multiple = 1, c.train.micro_batch = 1, c.numerics.grad_sum = l.sum;
        const std::string said = told(c, [&](keel::Run& run) {
            for (int step = 1; step <= 4; ++step) {
                const StepPlan plan = run.schedule.at(run.progress);
                const StepResult result = *train_step(run, plan);
                EXPECT_EQ(result.applied, step != 3) << name << " step " << step;
                run.progress.advance(plan, result);
            }
        });
        EXPECT_NE(said.find("injected at step 3 on rank"), std::string::npos) << said;
        EXPECT_EQ(said.find("injected at"), said.rfind("injected at")) << said;
    }
}

TEST_F(Inject, AFaultStrikesOnceInTheLifeOfARunAndALastingOneAgain) {
    Config c = config("life", {"grad_value,step=2,every=2,value=3", "grad_value,step=3,lasting,value=4"});
    const auto strikes = [&] {
        const std::string said = told(c, [](keel::Run& run) {
            while (!run.schedule.done(run.progress)) test::take_step(run);
        });
        std::string out;
        for (std::size_t at = 0; (at = said.find("injected at step ", at)) != std::string::npos; ++at) out += said[at + 17];
        EXPECT_NE(said.find("warning: faults will be injected into this run (--inject.faults):\n  rank 0: grad_value,step=2,every=2,value=3"),
                  std::string::npos) << said;
        return out;
    };
    EXPECT_EQ(strikes(), "2346");
    EXPECT_EQ(strikes(), "3");  // from the beginning again
    EXPECT_EQ(read_file(fs::path(c.run.dir) / "injected.txt"),
              "0 2 grad_value,step=2,every=2,value=3\n0 3 grad_value,step=3,lasting,value=4\n0 4 grad_value,step=2,every=2,value=3\n"
              "0 6 grad_value,step=2,every=2,value=3\n");
}

TEST_F(Inject, WhatIsLeftOpenIsDrawnBySeed) {
    const auto said = [&](std::uint64_t seed, const char* name) {
        Config c = config(name, {"grad_flip,step=1", "param_flip,step=1"});
        c.inject.seed = seed, c.parallel.dp = 2;
        const std::string all = told(c, [](keel::Run& run) { test::take_step(run); });
        return all.substr(0, all.find("faults will")) + all.substr(all.find("rank "));
    };
    EXPECT_EQ(said(1, "one"), said(1, "same"));
    EXPECT_NE(said(1, "again"), said(2, "two"));
}

// The worked numbers of reference/behaviour.md, T15.1 and T15.2.
TEST_F(Inject, ATimeToFailureIsExponentialAndAKindIsDrawnByItsWeight) {
    EXPECT_NEAR(failure_delay(0.5, 600, 10), 425.89, 0.005);
    EXPECT_EQ(failure_delay(0, 600, 10), 10);
    const double weights[] = {1, 3};
    EXPECT_EQ(draw_by_weight(0, weights), 0u);
    EXPECT_EQ(draw_by_weight(std::nextafter(0.25, 0.0), weights), 0u);
    EXPECT_EQ(draw_by_weight(0.25, weights), 1u);
    EXPECT_EQ(draw_by_weight(std::nextafter(1.0, 0.0), weights), 1u);
    const double zeros[] = {0, 2, 0};
    for (const double u : {0.0, 0.5, std::nextafter(1.0, 0.0)}) EXPECT_EQ(draw_by_weight(u, zeros), 1u);
}

TEST_F(Inject, KindAndTimeAreDrawnBySeedOnAllRanksAlike) {
    Config c = config("drawn", {"kill:1/hang:3,mttf=600,after=10", "kill:1/hang:3,mttf=600,after=10"});
    const int seeds = 4000;
    int hangs = 0;
    double sum = 0;
    for (int seed = 0; seed < seeds; ++seed) {
        c.inject.seed = static_cast<std::uint64_t>(seed);
        const std::vector<InjectedFault> faults = parse_injected_faults(c), again = parse_injected_faults(c);
        EXPECT_EQ(faults[0].delay, again[0].delay);
        EXPECT_EQ(faults[0].kind, again[0].kind);
        EXPECT_NE(faults[0].delay, faults[1].delay);
        hangs += faults[0].kind == FaultKind::hang, sum += faults[0].delay;
    }
    EXPECT_NEAR(hangs, 0.75 * seeds, 5 * std::sqrt(seeds * 0.75 * 0.25));  // five standard deviations, for these seeds
    EXPECT_NEAR(sum / seeds, 610, 5 * 600 / std::sqrt(seeds));
}

// The clock starts with step 2 and is looked at when a step begins, so that any time that is not nothing is over at step 3.
TEST_F(Inject, AFaultWhoseTimeHasComeIsOneOfTheStepThatBegins) {
    Config c = config("timed", {"grad_value/kill:0,step=2,mttf=1e-9,every=2,value=3", "grad_value,after=0,value=4", "kill,after=1e8"});
    const auto strikes = [&] {
        const std::string said = told(c, [](keel::Run& run) {
            while (!run.schedule.done(run.progress)) test::take_step(run);
        });
        std::string out;
        for (std::size_t at = 0; (at = said.find("injected at step ", at)) != std::string::npos; ++at) out += said[at + 17];
        return out + said.substr(said.find("\n  "), said.find("injected at") - said.find("\n  "));
    };
    const std::string first = strikes();
    EXPECT_TRUE(first.starts_with("135\n")) << first;
    EXPECT_NE(first.find("mttf=1e-9,every=2,value=3, drawn: grad_value, 0.00 s after the beginning of step 2 in this start\n"), std::string::npos) << first;
    EXPECT_NE(first.find("kill,after=1e8, 100000000.00 s after the beginning of step 1 in this start\n"), std::string::npos) << first;
    EXPECT_EQ(read_file(fs::path(c.run.dir) / "injected.txt"),
              "0 1 grad_value,after=0,value=4\n0 3 grad_value/kill:0,step=2,mttf=1e-9,every=2,value=3\n"
              "0 5 grad_value/kill:0,step=2,mttf=1e-9,every=2,value=3\n");
    EXPECT_TRUE(strikes().starts_with("\n"));  // from the beginning again: their time was then, and is no other now
    c.inject.faults = {"grad_value,after=0,value=4,lasting"};
    EXPECT_TRUE(strikes().starts_with("1\n"));
    EXPECT_TRUE(strikes().starts_with("1\n"));  // a defect that shows after a time, in every start
}

// After a fall at the first of two kills that are written alike the second is still to come, and one that struck on another rank
// is not.
TEST_F(Inject, FaultsThatAreWrittenAlikeAreToldApartAndWhatHasStruckIsSaidOfEveryRank) {
    Config c = config("alike", {"grad_value,after=0,rank=1", "slow,after=1e8,rank=1", "slow,after=1e8,rank=1"});
    c.parallel.dp = 2;
    fs::create_directories(c.run.dir);
    write_file_atomically(fs::path(c.run.dir) / "injected.txt", "1 2 slow,after=1e8,rank=1 #2\n");
    c.ckpt.interval = 3, c.ckpt.async = false;
    const auto start = [&] {
        return told(c, [](keel::Run& run) {
            for (int i = 0; i < 3; ++i) test::take_step(run);
            save_checkpoint(run);
        });
    };
    const std::string first = start();
    EXPECT_NE(first.find("\n  rank 1: grad_value,after=0,rank=1, 0.00 s after the beginning of step 1 in this start"
                         "\n  rank 1: slow,after=1e8,rank=1, 100000000.00 s after the beginning of step 1 in this start"
                         "\n  rank 1: slow,after=1e8,rank=1, has struck at step 2\n"), std::string::npos) << first;
    const std::string second = start();
    EXPECT_NE(second.find("\n  rank 1: grad_value,after=0,rank=1, has struck at step 1"
                          "\n  rank 1: slow,after=1e8,rank=1, 100000000.00 s after the beginning of step 4 in this start"
                          "\n  rank 1: slow,after=1e8,rank=1, has struck at step 2\n"), std::string::npos) << second;
    EXPECT_EQ(second.find("injected at"), std::string::npos) << second;

    c = config("twice", {"slow,after=0,seconds=0", "slow,after=0,seconds=0"});
    (void)told(c, [](keel::Run& run) { test::take_step(run); });
    EXPECT_EQ(read_file(fs::path(c.run.dir) / "injected.txt"), "0 1 slow,after=0,seconds=0\n0 1 slow,after=0,seconds=0 #2\n");
}

TEST_F(Inject, SeveralRanksAreDrawnWithoutRankZeroOnAllRanksAlike) {
    test::on_ranks(config("several", {}), [](keel::Run& run) {
        std::set<std::string> drawn;
        for (std::uint64_t seed = 1; seed <= 50; ++seed) {
            Config c = run.config;
            c.inject.faults = {"slow/kill,step=1,ranks=2"}, c.inject.seed = seed;
            const std::string said = Injector(c, Backend(run.stream), 0, 4, *run.model).warning(1);
            EXPECT_EQ(said, Injector(c, Backend(run.stream), 3, 4, *run.model).warning(1));
            std::string ranks;
            for (std::size_t at = 0; (at = said.find("rank ", at)) != std::string::npos; ++at) ranks += said[at + 5];
            drawn.insert(ranks);
        }
        EXPECT_EQ(drawn, (std::set<std::string>{"12", "13", "23"}));
    });
}

// A run's checkpoints are written behind it, so that a failed one is told and passed over.
TEST_F(Inject, AFailedWriteAndAFullDiskCostTheCheckpointsTheyStrike) {
    Config c = config("disk", {"write_fail,step=2,rank=1", "disk_full,step=5,steps=2,rank=0"});
    c.train.steps = 8, c.ckpt.interval = 2, c.ckpt.keep_last = 0, c.ckpt.async = true, c.parallel.dp = 2;
    const std::string said = told(c, [](keel::Run& run) {
        while (!run.schedule.done(run.progress)) {
            test::take_step(run);
            if (run.progress.steps % 2 == 0) save_checkpoint(run);
            while (run.saver->under_way()) tend_saves(run, false, false);
        }
    });
    EXPECT_NE(said.find("step 2 failed on rank 1"), std::string::npos) << said;
    EXPECT_NE(said.find("Input/output error"), std::string::npos) << said;
    EXPECT_NE(said.find("No space left on device"), std::string::npos) << said;
    for (const int step : {2, 4, 6, 8})
        EXPECT_EQ(fs::exists(test::checkpoint_of(c.run.dir, step)), step == 4 || step == 8) << step;
}

TEST_F(Inject, ACheckpointIsDamagedByOneBitAndARestartPassesItOver) {
    Config c = config("damage", {"corrupt_checkpoint,step=1", "corrupt_checkpoint,step=5"});
    c.ckpt.interval = 2, c.ckpt.keep_last = 0, c.train.steps = 5;
    std::string said = told(c, [](keel::Run& run) {
        for (int i = 0; i < 5; ++i) {
            test::take_step(run);
            if (run.progress.steps % 2 == 0) save_checkpoint(run);
        }
    });
    EXPECT_NE(said.find("corrupt_checkpoint: there is no checkpoint yet"), std::string::npos) << said;
    EXPECT_NE(said.find("step-00000004/"), std::string::npos) << said;
    EXPECT_THROW(verify_checkpoint(test::checkpoint_of(c.run.dir, 4)), Error);
    (void)verify_checkpoint(test::checkpoint_of(c.run.dir, 2));
    (void)told(c, [](keel::Run& run) { EXPECT_EQ(run.progress.steps, 2); });
}

TEST_F(Inject, ARunThatSuffersNothingHasNoInjector) {
    test::on_ranks(config("none", {}), [](keel::Run& run) {
        EXPECT_FALSE(run.inject.has_value());
        test::take_step(run);
    });
    EXPECT_FALSE(fs::exists(fs::path(config("none", {}).run.dir) / "injected.txt"));
}

}  // namespace
}  // namespace keel
