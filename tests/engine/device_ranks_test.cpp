// Runs whose ranks are simulated GPUs, a thread each, which meet over the model of NCCL: against the same layouts of ranks on
// the CPU, within what rounding does; against one GPU bit for bit, where no sum has another order.
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>

#include "engine/parallel/rank_gpu.h"
#include "kernels/cudasim/config.h"
#include "kernels/cudasim/findings.h"
#include "kernels/cudasim/profiler.h"
#include "tests/engine/rank_runs.h"

namespace keel {
namespace {

struct Layout {
    const char* name;
    int tp = 1, pp = 1, chunks = 1, cp = 1, dp = 1;
    const char* context = "gather";
};

struct Outcome {
    std::vector<double> losses, norms;
    std::map<std::string, std::string> tensors;  // of the checkpoint after the last step
    bool operator==(const Outcome&) const = default;
};
void PrintTo(const Outcome& x, std::ostream* out) {
    *out << "losses " << testing::PrintToString(x.losses) << ", norms " << testing::PrintToString(x.norms);
}

class DeviceRanks : public testing::Test {
protected:
    DeviceRanks() {
        test::write_token_file(dir.path() / "a.tok", 31, 1500, 1);
        sim::Config sim;
        sim.host_faults = true;
        sim::configure(sim);
    }
    ~DeviceRanks() override {
        sim::configure({});
        for (const sim::Finding& finding : sim::take_findings()) ADD_FAILURE() << finding.text;
    }
    Config config(const Layout& l, const std::string& device = "cudasim") const {
        Config c;
        c.model.dtype = "f32";
        c.model.vocab = 31, c.model.hidden = 16, c.model.layers = 2, c.model.heads = 2, c.model.kv_heads = 2;
        c.model.head_dim = 8, c.model.ffn = 24, c.model.init_std = 0.2, c.model.tied = true;
        c.data.seq_len = 8;
        c.data.train = {(dir.path() / "a.tok").string()};
        c.train.micro_batch = 1, c.train.global_batch = 2, c.train.steps = 20;
        c.optim.lr = 1e-2, c.optim.schedule = "constant";
        c.optim.eps = 1e-4;  // an element that is all rounding must not move by a whole lr
        c.parallel.tp = l.tp, c.parallel.pp = l.pp, c.parallel.chunks = l.chunks, c.parallel.cp = l.cp, c.parallel.dp = l.dp;
        c.parallel.context = l.context, c.parallel.vocab_multiple = 1, c.parallel.bucket = 1500;
        c.run.dir = (dir.path() / concat(l.name, " ", device)).string();
        c.run.threads = 1, c.run.device = device;
        return c;
    }
    Outcome train(const Config& c, int steps) const {
        Outcome out;
        test::on_ranks(c, [&](keel::Run& run) {
            std::vector<double> losses, norms;
            for (int i = 0; i < steps; ++i) {
                const StepPlan plan = run.schedule.at(run.progress);
                const StepResult step = *train_step(run, plan);
                run.progress.advance(plan, step);
                losses.push_back(step.loss.mean()), norms.push_back(step.grad_norm);
            }
            save_checkpoint(run);
            if (run.world.rank() == 0) out.losses = losses, out.norms = norms;
        });
        out.tensors = test::tensors_of(test::checkpoint_of(c.run.dir, steps));
        return out;
    }
    test::TempFolder dir;
};

// The largest distance of two runs on the CPU up to each step: what another order of sums does.
std::vector<double> spread(const std::vector<Outcome>& runs, std::vector<double> Outcome::*of) {
    std::vector<double> out;
    for (std::size_t step = 0; step < (runs[0].*of).size(); ++step) {
        double most = out.empty() ? 0 : out.back();
        for (const Outcome& a : runs)
            for (const Outcome& b : runs) most = std::max(most, std::abs((a.*of)[step] - (b.*of)[step]));
        out.push_back(most);
    }
    return out;
}

// A GPU's run is one more that differs from the CPU's in the order of its sums (and in its exponentials, by as little): twice
// as far from its counterpart as the furthest two of the CPU's are. In the first steps these differ by the last bit of a
// float, or by nothing: four of those bits are granted.
TEST_F(DeviceRanks, TwentyStepsOverNcclStayWithTheThreadsOfTheCpu) {
    const Layout layouts[] = {{.name = "tp2", .tp = 2}, {.name = "pp2", .pp = 2}, {.name = "cp2", .cp = 2}, {.name = "ring2", .cp = 2, .context = "ring"},
                              {.name = "dp2", .dp = 2}};
    std::vector<Outcome> cpu = {train(config({.name = "one"}, "cpu"), 20)};
    for (const Layout& l : layouts) cpu.push_back(train(config(l, "cpu"), 20));
    const std::vector<double> loss = spread(cpu, &Outcome::losses), norm = spread(cpu, &Outcome::norms);
    for (std::size_t i = 0; i < std::size(layouts); ++i) {
        const Outcome gpu = train(config(layouts[i]), 20);
        for (std::size_t step = 0; step < 20; ++step) {
            const double bits = std::ldexp(4, -24);
            EXPECT_LE(std::abs(gpu.losses[step] - cpu[i + 1].losses[step]), 2 * loss[step] + bits * gpu.losses[step])
                << layouts[i].name << " step " << step;
            EXPECT_LE(std::abs(gpu.norms[step] - cpu[i + 1].norms[step]), 2 * norm[step] + bits * gpu.norms[step])
                << layouts[i].name << " step " << step;
        }
        EXPECT_LT(gpu.losses.back() + 100 * loss.back(), gpu.losses.front()) << layouts[i].name;  // it has learned
    }
}

// No sum of these has another order.
TEST_F(DeviceRanks, PipelinesHaveTheBitsOfOneGpu) {
    const Outcome one = train(config({.name = "one"}), 3);
    EXPECT_EQ(one, train(config({.name = "pp2", .pp = 2}), 3));
    Config passes_on = config({.name = "a stage without blocks", .pp = 2, .chunks = 2});
    passes_on.parallel.layers = "E|tt||L";
    EXPECT_EQ(one, train(passes_on, 3));
}

// In deferred streams nothing happens before somebody waits, and what no event orders comes in any order: buckets on their way
// beside backward, gathers beside forward, collectives as nodes of a graph.
TEST_F(DeviceRanks, OverlapAndGraphsChangeNoBit) {
    for (const Layout& l : {Layout{.name = "dp2", .dp = 2}, {.name = "tp2 dp2", .tp = 2, .dp = 2}, {.name = "cp2", .cp = 2}}) {
        Config c = config(l);
        c.run.graph = c.parallel.overlap = false;
        const Outcome plain = train(c, 4);
        sim::Config deferred;
        deferred.streams = sim::Streams::deferred, deferred.seed = 3, deferred.host_faults = true;
        const sim::Config before = sim::config();
        sim::configure(deferred);
        c.parallel.overlap = true;
        for (const bool graph : {false, true}) {
            c.run.dir += "+", c.run.graph = graph;
            EXPECT_EQ(plain, train(c, 4)) << l.name << " graph " << graph;
        }
        sim::configure(before);
    }
}

// A profiler is told of what ranks do together, within the step and layer it belongs to.
TEST_F(DeviceRanks, AProfilerSeesTheirCollectives) {
    Config c = config({.name = "profiled", .tp = 2, .dp = 2});
    c.parallel.overlap = c.run.graph = false;
    c.profile.start = 2, c.profile.stop = 3;
    (void)sim::take_profile();
    train(c, 3);
    const std::vector<std::string> seen = sim::take_profile();
    for (const char* range : {"step 2/forward 0/layer 1/all_gather", "step 2/backward 0/layer 0/reduce_scatter", "step 2/reduce_scatter"})
        EXPECT_EQ(std::ranges::count(seen, range) > 0, true) << range << " in " << testing::PrintToString(seen);
}

// A rank as a launcher describes it.
class Described final : public World {
public:
    Described(const char* transport, int local_rank, int local_size) : transport_(transport), local_rank_(local_rank), local_size_(local_size) {}
    int rank() const override { return local_rank_; }
    int size() const override { return local_size_; }
    const char* transport() const override { return transport_; }
    int local_rank() const override { return local_rank_; }
    int local_size() const override { return local_size_; }
    void abort(const std::string&) noexcept override {}
    bool aborted() override { return false; }
    std::string departure() override { return ""; }

protected:
    std::unique_ptr<Group> make_group(const std::string& name, std::vector<int>, int) override { return std::make_unique<SoloGroup>(name); }

private:
    const char* transport_;
    int local_rank_, local_size_;
};
template <class Body> std::string error_of(Body body) {
    try {
        body();
    } catch (const Error& e) {
        return e.what();
    }
    return "";
}

TEST(RankGpu, IsTheOneOfItsNumberOnItsMachine) {
    EXPECT_EQ(gpu_of_rank(Device::cpu, Described("mpi", 3, 4)), 0);
    EXPECT_EQ(gpu_of_rank(Device::cudasim, Described("threads", 3, 8)), 3);
    const std::string many = error_of([] { gpu_of_rank(Device::cudasim, Described("threads", 0, 9)); });
    EXPECT_NE(many.find("--run.device cudasim: 9 ranks on "), std::string::npos) << many;
    EXPECT_NE(many.find(", which shows 8 GPUs; every rank needs one of its own"), std::string::npos) << many;
    const std::string processes = error_of([] { gpu_of_rank(Device::cudasim, Described("mpi", 0, 2)); });
    EXPECT_NE(processes.find("simulated GPUs meet as threads of one process; start keel without mpirun or srun"), std::string::npos) << processes;
}

TEST(RankGpu, IsNobodyElses) {
    const auto meet = [](const char* first, const char* second) {
        return error_of([&] {
            run_threads(2, {}, [&](World& world) { expect_own_gpus(*world.everyone(), "node7", world.rank() ? second : first); });
        });
    };
    EXPECT_EQ(meet("0000:3b:00.0", "0000:3c:00.0"), "");
    EXPECT_EQ(meet("", ""), "");  // simulated ones have no place
    EXPECT_NE(meet("0000:3b:00.0", "0000:3b:00.0").find("ranks 0 and 1 have the same GPU, 0000:3b:00.0 of node7"), std::string::npos);
}

}  // namespace
}  // namespace keel
