// cli/train.cpp: `keel train`: trains a model, or goes on with a run.

#include <CLI/App.hpp>
#include <cstdio>
#include <memory>

#include "cli/commands.h"
#include "cli/config_flags.h"
#include "engine/config_io.h"
#include "engine/model_shape.h"
#include "engine/run.h"
#include "engine/train.h"
#include "kernels/matmul.h"

namespace keel {
namespace {

void print_start(const Run& run) {
    const Config& config = run.config;
    std::printf("%s", to_toml(config).c_str());
    std::printf("\n%s\n", run.model->plan().table().c_str());
    std::printf("%lld parameters, %lld samples of %lld tokens per epoch, %d threads, %s matmul\n",
                static_cast<long long>(parameter_count(config.model).total()),
                static_cast<long long>(run.data.samples_per_epoch()), static_cast<long long>(config.data.seq_len),
                run.stream.threads(), config.model.dtype == "f32" ? matmul_isa<float>() : matmul_isa<bf16>());
    if (run.progress.steps > 0)
        std::printf("going on after step %lld, sample %lld\n", static_cast<long long>(run.progress.steps),
                    static_cast<long long>(run.progress.samples));
    std::fflush(stdout);
}

}  // namespace

void add_train(CLI::App& app) {
    CLI::App* command = app.add_subcommand("train", "train a model; run again with the same --run.dir to go on");
    auto flags = std::make_shared<ConfigFlags>(*command);
    command->callback([flags] {
        const auto run = std::make_unique<Run>(flags->read());
        print_start(*run);
        const char* why = train(*run);
        std::printf("report: %s\n", finish(*run, why).c_str());
    });
}

}  // namespace keel
