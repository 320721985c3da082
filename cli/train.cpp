// cli/train.cpp: `keel train`: trains a model, or goes on with a run.

#include <CLI/App.hpp>
#include <cstdio>
#include <memory>

#include "cli/commands.h"
#include "cli/config_flags.h"
#include "cli/ranks.h"
#include "cli/supervise.h"
#include "comm/launch.h"
#include "engine/config_io.h"
#include "engine/model_shape.h"
#include "engine/parallel/layout.h"
#include "engine/run.h"
#include "engine/train.h"
#include "kernels/matmul.h"

namespace keel {
namespace {

// Of a blend: how often `samples` samples go through each source.
void print_sources(const Dataset& data, std::int64_t samples, const char* what) {
    for (std::int64_t i = 0; i < data.sources() && data.sources() > 1; ++i) {
        const Dataset::Use use = data.use(i, samples);
        std::printf("%s %lld samples of %s: %.3f epochs\n", what, static_cast<long long>(use.samples), use.name.c_str(), use.epochs);
    }
}

void print_start(const Run& run, const std::string& map) {
    const Config& config = run.config;
    std::printf("%s", to_toml(config).c_str());
    std::printf("\n%s\n", run.model->plan().table().c_str());
    const std::string who = run.gpu ? run.gpu->describe()
                                    : concat(run.stream.threads() * run.world.size(), " threads, ",
                                             with_type(run.model->dtype(), []<class T>() { return matmul_isa<T>(); }), " matmul");
    std::printf("%lld parameters, %lld samples of %lld tokens per epoch, %s\n",
                static_cast<long long>(parameter_count(config.model).total()),
                static_cast<long long>(run.data.samples_per_epoch()), static_cast<long long>(config.data.seq_len), who.c_str());
    print_sources(run.data, config.train.samples, "will take");
    if (!map.empty()) std::printf("%d ranks (%s):\n%s", run.world.size(), run.world.transport(), map.c_str());
    if (run.progress.steps > 0)
        std::printf("going on after step %lld, sample %lld\n", static_cast<long long>(run.progress.steps),
                    static_cast<long long>(run.progress.samples));
    std::fflush(stdout);
}

void train_to_end(Run& run) {
    const char* why = train(run);
    const bool first = run.world.rank() == 0;
    std::filesystem::path report;
    try {
        report = finish(run, why);
    } catch (const std::exception& e) {
        if (!run.findings->stop()) throw;  // the exit code of a fault is worth more than its report
        std::fprintf(stderr, "keel: warning: %s\n", e.what());
    }
    if (first) print_sources(run.data, run.progress.samples, "took");
    if (!report.empty()) std::printf("report: %s\n", report.c_str());
    if (run.findings->stop()) run.ranks.world.barrier();  // until rank 0 has told all of it
}

}  // namespace

void add_train(CLI::App& app) {
    CLI::App* command = app.add_subcommand("train", "train a model; run again with the same --run.dir to go on");
    auto flags = std::make_shared<ConfigFlags>(*command);
    auto restarts = std::make_shared<int>(0);
    command->add_option("--restart.max", *restarts, "start the run again when it falls, from its newest good checkpoint, this often")
        ->check(CLI::Range(0, 1'000'000));
    command->callback([flags, restarts] {
        const Config config = flags->read();
        if (*restarts > 0) {
            if (read_launch(environment()).world > 1)
                fail_usage("--restart.max starts ranks again that are threads of one process; under mpirun or srun let the job "
                           "script start the command again: it goes on from the newest checkpoint");
            const Supervised run = supervise({.checkpoints = std::filesystem::path(config.run.dir) / "checkpoints",
                                              .local = config.ckpt.local_dir,
                                              .ranks = static_cast<int>(ranks_asked(config.parallel)),
                                              .max = *restarts});
            if (!run.child) throw CLI::RuntimeError(run.code);
        }
        run_ranks(config, [&](World& world) {
            const auto run = std::make_unique<Run>(config, &world);
            const std::string map = world.size() > 1 ? run->mesh.map() : std::string();
            if (world.rank() == 0) print_start(*run, map);
            try {
                train_to_end(*run);
            } catch (const std::exception& e) {
                run->world.abort(e.what());  // while the run lives: its GPU may wait for ranks that wait for this one
                throw;
            }
            run->findings->leave();  // all ranks do, if any
        });
    });
}

}  // namespace keel
