// A run of four ranks that is disturbed at random, again and again, until its time is over. It must recover or stop with the
// verdict that the fault deserves, and what survives must be the undisturbed run, bit for bit: every loss and every weight.
//
//     soak --seconds 1800 --seed 7 [--steps 3000] [--dir DIR]
//
// Round by round: the same run in a new folder, started again after every blow, until all of its steps are done; what is left when
// the time is over is not disturbed. Blows come from outside (a rank is killed, stopped, or told to stop), troubles from inside
// (--inject.faults: a write that fails, a full disk, a damaged checkpoint, a slow rank, a gradient that is not finite or has a
// turned bit). One line per start; exit code 1 and the run's own words where something was not as it must be.
#include <csignal>
#include <cstdio>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <utility>

#include "tests/cli/job.h"
#include "tests/engine/rank_runs.h"

namespace keel {
namespace {

namespace fs = std::filesystem;
using test::Job, test::checkpoint_of, test::differing, test::logged, test::tensors_of;

constexpr int ranks = 4;
constexpr double patience = 120;  // seconds: nothing may take longer, or it hangs; --watch.start_s, for checkpoints too, is half of it

struct Options {
    double seconds = 20;
    std::uint64_t seed = 1;
    int steps = 300;
    fs::path dir;
};

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

[[noreturn]] void wrong(const std::string& what, const std::string& said) {
    fail(what, said.empty() ? "" : "\nwhat the run said:\n", said);
}

std::string ended_why(const fs::path& run) {
    std::ifstream in(run / "log.jsonl");
    std::string why;
    for (std::string line; std::getline(in, line);)
        if (const auto at = line.find("\"why\":\""); line.starts_with("{\"event\":\"end\"") && at != std::string::npos)
            why = line.substr(at + 7, line.find('"', at + 7) - at - 7);
        else if (line.starts_with("{\"event\":\"step\""))
            why.clear();
    return why;
}

// What is done to a random rank from outside, and whether the run may then end with this code.
struct Blow {
    const char* name;
    int signal;
    bool (*right)(int code);
};
const Blow blows[] = {
    {"a rank is killed", SIGKILL, [](int code) { return code > 0; }},
    {"a rank hangs", SIGSTOP,
     [](int code) { return code == static_cast<int>(ExitCode::hang) || code == static_cast<int>(ExitCode::peer); }},
    {"a rank is told to stop", SIGTERM, [](int code) { return code == 0; }},
};

// What goes wrong inside, and does not end a run by itself.
const char* const troubles[] = {"write_fail", "disk_full", "corrupt_checkpoint", "slow", "grad_nan", "grad_flip"};

class Soak {
public:
    explicit Soak(Options o) : o_(std::move(o)), random_(o_.seed), end_(now() + o_.seconds) {
        test::write_token_file(o_.dir / "a.tok", 61, 4000, 1);
        Job job(command("undisturbed", "", false), o_.dir / "said");
        if (job.wait(patience + o_.steps) != 0) wrong("the undisturbed run failed", job.said());
        curve_ = logged(o_.dir / "undisturbed", "loss");
        weights_ = tensors_of(checkpoint_of(o_.dir / "undisturbed", o_.steps));
        std::printf("soak: the undisturbed run took %.1f s for %d steps\n", now() - end_ + o_.seconds, o_.steps);
    }

    void run() {
        int rounds = 0;
        do round(++rounds);
        while (now() < end_);
        std::printf("soak: %d rounds of %d steps on %d ranks, %d starts: every loss and every weight is the undisturbed one\n",
                    rounds, o_.steps, ranks, starts_);
        for (const auto& [name, n] : counts_) std::printf("soak: %6d times %s\n", n, name.c_str());
    }

private:
    std::string command(const std::string& run, const std::string& more, bool processes) const {
        const std::string train = concat(
            "'" KEEL_BINARY "' train --model.dtype bf16 --model.vocab 61 --model.hidden 32 --model.layers 2 --model.heads 4 ",
            "--model.ffn 40 --data.seq_len 16 --data.train '", (o_.dir / "a.tok").string(), "' --train.global_batch 8 ",
            "--train.micro_batch 1 --optim.schedule constant --run.threads 1 --parallel.tp 2 --parallel.dp 2 ",
            "--parallel.vocab_multiple 1 --train.log_interval 1000 --train.steps ", o_.steps, " --run.dir '",
            (o_.dir / run).string(), "' --ckpt.interval 40 --ckpt.async true --ckpt.local_interval 15 --ckpt.local_dir '",
            (o_.dir / "local").string(), "' --watch.step_s 2 --watch.start_s 60 --watch.leave true --watch.heartbeat_s 0.5 ",
            "--watch.self_test_interval 100 --fault.mode validate --fault.interval 1 --fault.tolerate 1000 ", more);
        return processes ? concat(KEEL_MPIEXEC " --allow-run-as-root --oversubscribe --bind-to none --mca pml ob1 ",
                                  "--mca btl self,vader -np ", ranks, " ", train)
                         : train;
    }
    int draw(std::size_t n) { return static_cast<int>(random_() % n); }

    void round(int number) {
        const std::string name = concat("round ", number);
        const fs::path run = o_.dir / name;
        corrupted_ = false;
        while (ended_why(run) != "done") start(name, run);
        if (logged(run, "loss") != curve_) wrong(name + ": the losses differ from those of the undisturbed run", "");
        if (const auto names = differing(tensors_of(checkpoint_of(run, o_.steps)), weights_); !names.empty())
            wrong(name + ": tensors differ from those of the undisturbed run:\n" + names, "");
        fs::remove_all(run);
    }

    // One start of the run: it goes on until a blow, or is done before that comes. Every other start has trouble inside, too.
    void start(const std::string& name, const fs::path& run) {
        const auto steps_logged = [&] { return static_cast<int>(logged(run, "loss").size()); };
        const int before = steps_logged();
        const bool calm = now() >= end_;  // what is left of the last round is not disturbed
        std::string trouble;
        if (!calm && before + 40 < o_.steps && draw(2) == 0) trouble = troubles[draw(std::size(troubles))];
        if (trouble == "corrupt_checkpoint" && std::exchange(corrupted_, true)) trouble.clear();  // two could leave none
        const bool cannot_write = trouble == "write_fail" || trouble == "disk_full";
        if (!trouble.empty()) ++counts_[trouble];
        const std::string inject = trouble.empty() ? "" : concat("--inject.faults ", trouble, ",step=", before + 1 + draw(40));
        Job job(command(name, inject, true), o_.dir / "said");
        ++starts_;
        const double begun = now();
        while (job.wait(0.02) == -1 && steps_logged() <= before)  // still starting
            if (now() - begun > patience) wrong(name + ": the start takes too long", job.said());
        const Blow& blow = blows[draw(std::size(blows))];
        pid_t rank = 0;
        if (!calm && job.wait(0.2 + 0.1 * draw(20)) == -1) rank = job.ranks(ranks)[static_cast<std::size_t>(draw(ranks))];
        const bool struck = rank > 1 && kill(rank, blow.signal) == 0;
        const int code = job.wait(patience);
        const std::string why = ended_why(run), what = struck ? blow.name : "nothing is done to it";
        std::printf("soak: %7.1f s, step %4d: %s%s%s: code %d%s%s\n", now() - end_ + o_.seconds, steps_logged(), what.c_str(),
                    trouble.empty() ? "" : ", and ", trouble.c_str(), code, why.empty() ? "" : ", ", why.c_str());
        std::fflush(stdout);
        ++counts_[what];
        // Only the last checkpoint must be written, or the run has failed.
        const bool right = why == "done" || (struck ? blow.right(code) : code == 0) || (cannot_write && code == 1);
        if (!right) wrong(concat(name, ": ", what, ", and it ended with code ", code), job.said());
    }

    Options o_;
    std::mt19937_64 random_;
    double end_;
    std::map<std::int64_t, double> curve_;
    std::map<std::string, std::string> weights_;
    int starts_ = 0;
    bool corrupted_ = false;  // a checkpoint, in this round
    std::map<std::string, int> counts_;
};

int main_of(int argc, char** argv) {
    Options o;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string name = argv[i], value = argv[i + 1];
        if (name == "--seconds") o.seconds = std::stod(value);
        else if (name == "--seed") o.seed = std::stoull(value);
        else if (name == "--steps") o.steps = std::stoi(value);
        else if (name == "--dir") o.dir = value;
        else return std::fprintf(stderr, "soak: %s is no option; there are --seconds, --seed, --steps and --dir\n", name.c_str()), 2;
    }
    const test::TempFolder temporary;
    if (o.dir.empty()) o.dir = temporary.path();
    fs::create_directories(o.dir);
    Soak(o).run();
    return 0;
}

}  // namespace
}  // namespace keel

int main(int argc, char** argv) {
    try {
        return keel::main_of(argc, argv);
    } catch (const std::exception& e) {
        std::printf("soak: WRONG: %s\n", e.what());
        return 1;
    }
}
