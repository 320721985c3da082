#include "engine/bench/parallel.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "comm/threads.h"
#include "engine/bench/random_batch.h"
#include "engine/config_check.h"
#include "engine/observe/timeline.h"
#include "engine/parallel/executor.h"
#include "engine/parallel/volume.h"

namespace keel::bench {
namespace {

std::map<std::string, Traffic> less(std::map<std::string, Traffic> now, const std::map<std::string, Traffic>& before) {
    for (auto& [name, t] : now)
        if (const auto at = before.find(name); at != before.end()) {
            const Traffic& b = at->second;
            t = {t.all_reduce - b.all_reduce, t.reduce_scatter - b.reduce_scatter, t.all_gather - b.all_gather,
                 t.broadcast - b.broadcast, t.all_to_all - b.all_to_all, t.send - b.send};
        }
    return now;
}

// What the formula counts: the groups of the model, with the thread beside counted to its own group.
std::map<std::string, Traffic> of_model(const Mesh& mesh) {
    std::map<std::string, Traffic> out;
    for (const auto& [name, t] : mesh.traffic()) {
        if (name != "tp" && name != "cp" && name != "pp" && name != "dp_cp" && name != "embd" && name != "beside") continue;
        Traffic& to = out[name == "beside" ? "dp_cp" : name];
        to.all_reduce += t.all_reduce, to.reduce_scatter += t.reduce_scatter, to.all_gather += t.all_gather;
        to.broadcast += t.broadcast, to.all_to_all += t.all_to_all, to.send += t.send;
    }
    return out;
}

}  // namespace

struct ParallelStep::State {
    std::mutex mutex;
    std::condition_variable changed;
    std::int64_t asked = 0, done = 0;
    bool leave = false;
    std::exception_ptr error;
    std::map<std::string, Traffic> traffic;
    double hidden = 0, exposed = 0;
    std::vector<Spans> spans;  // two per rank
    std::thread host;

    void rank(World& world, const Config& config, int threads) {
        ParallelSection parallel = config.parallel;
        const Mesh mesh(world, resolve_mesh(parallel, world.size()), config.model.tied);
        const Ranks ranks = ranks_of(mesh);
        Stream stream(threads);
        const auto model = make_model(config, stream, training_use(config, ranks.place), ranks);
        Executor executor(config, stream, ranks, *model);
        Spans *here = &spans[static_cast<std::size_t>(2 * world.rank())], *beside = here + 1;
        executor.record(here);
        model->gradients().record(here, beside);
        model->init(1);
        const RandomBatch data(config);
        const Batch batch = data.batch();
        const std::int64_t count = micro_batches(config, config.train.global_batch);
        const double targets = static_cast<double>(config.train.global_batch * config.data.seq_len);
        for (std::int64_t step = 1;; ++step) {
            {
                std::unique_lock lock(mutex);
                changed.wait(lock, [&] { return asked >= step || leave; });
                if (leave) return;
            }
            here->clear(), beside->clear();
            const auto before = of_model(mesh);
            const double hidden_before = model->gradients().hidden_seconds(), exposed_before = model->gradients().exposed_seconds();
            model->zero_grads();
            executor.train(count, [&](std::int64_t) -> const Batch& { return batch; }, {});
            model->reduce_grads();
            const double norm = model->grad_norm() / targets;
            model->update({.lr = 1e-4f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f,
                           .grad_scale = static_cast<float>(std::min(1.0, 1.0 / norm) / targets), .step = step});
            model->gradients().need_all();
            const ParallelSection& p = config.parallel;
            model->gradients().overlap(p.overlap && p.overlap_reduce, p.overlap && p.overlap_gather);
            ranks.world.barrier();
            if (world.rank() != 0) continue;
            const std::lock_guard lock(mutex);
            traffic = less(of_model(mesh), before);
            hidden = std::max(0.0, model->gradients().hidden_seconds() - hidden_before), exposed = model->gradients().exposed_seconds() - exposed_before;
            done = step;
            changed.notify_all();
        }
    }
};

ParallelStep::ParallelStep(const ParallelCase& c, int threads) : state_(std::make_unique<State>()) {
    const auto ranks = static_cast<int>(ranks_asked(c.config.parallel));
    state_->spans.resize(static_cast<std::size_t>(2 * ranks));
    for (Spans& s : state_->spans) s.reserve(4096);
    state_->host = std::thread([state = state_.get(), config = c.config, ranks, threads] {
        try {
            run_threads(ranks, {}, [&](World& world) { state->rank(world, config, threads); });
        } catch (...) {
            const std::lock_guard lock(state->mutex);
            state->error = std::current_exception();
            state->changed.notify_all();
        }
    });
}

ParallelStep::~ParallelStep() {
    {
        const std::lock_guard lock(state_->mutex);
        state_->leave = true;
    }
    state_->changed.notify_all();
    state_->host.join();
}

void ParallelStep::operator()() {
    std::unique_lock lock(state_->mutex);
    const std::int64_t step = ++state_->asked;
    state_->changed.notify_all();
    state_->changed.wait(lock, [&] { return state_->done >= step || state_->error; });
    if (state_->error) std::rethrow_exception(state_->error);
}

std::map<std::string, Traffic> ParallelStep::traffic() const { return state_->traffic; }
double ParallelStep::hidden_seconds() const { return state_->hidden; }
double ParallelStep::exposed_seconds() const { return state_->exposed; }

std::string ParallelStep::timeline() const {
    std::vector<TimelineLane> lanes;
    for (std::size_t i = 0; i < state_->spans.size(); ++i)
        if (i % 2 == 0 || !state_->spans[i].all().empty())
            lanes.push_back({concat("rank ", i / 2, i % 2 ? " beside" : ""), &state_->spans[i]});
    return timeline_svg(lanes);
}

std::vector<ParallelCase> parallel_cases(const std::string& dtype) {
    Config b = standard_case("b", dtype).config;
    b.data.train = {"any"}, b.run.dir = "any";
    std::vector<ParallelCase> cases;
    const auto add = [&](const char* name, std::int64_t micro_batch, auto&& change) {
        Config c = b;
        c.train.micro_batch = micro_batch;
        change(c.parallel);
        resolve_and_validate(c);
        cases.push_back({name, c});
    };
    add("1 rank", 4, [](ParallelSection& p) { p.dp = 1; });
    add("dp 2", 2, [](ParallelSection& p) { p.dp = 2, p.bucket = 4'000'000; });
    add("tp 2", 4, [](ParallelSection& p) { p.tp = 2; });
    add("cp 2", 4, [](ParallelSection& p) { p.cp = 2; });
    // The head costs as much as 1.3 blocks: the stage that has it gets fewer.
    add("pp 2", 1, [](ParallelSection& p) { p.pp = 2, p.chunks = 2, p.layers = "Et*3|tt|tt|tL"; });
    return cases;
}

std::vector<ParallelTime> measure_parallel(const std::string& dtype, int threads, int rounds) {
    const std::vector<ParallelCase> cases = parallel_cases(dtype);
    std::vector<std::unique_ptr<ParallelStep>> steps;
    std::vector<std::function<void()>> bodies;
    for (const ParallelCase& c : cases) {
        const int ranks = static_cast<int>(ranks_asked(c.config.parallel));
        steps.push_back(std::make_unique<ParallelStep>(c, std::max(1, threads / ranks)));
        bodies.emplace_back([step = steps.back().get()] { (*step)(); });
    }
    (*steps[1])();  // the first step of all runs without overlap, and is warmed up apart
    const std::vector<Sample> samples = measure(bodies, rounds);
    std::vector<ParallelTime> out;
    for (std::size_t i = 0; i < cases.size(); ++i)
        out.push_back({cases[i], samples[i], steps[i]->traffic(), step_traffic(cases[i].config, {}), steps[i]->hidden_seconds(),
                       steps[i]->exposed_seconds(), steps[i]->timeline()});
    return out;
}

}  // namespace keel::bench
