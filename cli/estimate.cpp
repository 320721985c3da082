// cli/estimate.cpp: `keel estimate`: what a configuration needs and costs, without allocating any of it.

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdio>
#include <memory>

#include "cli/commands.h"
#include "cli/config_flags.h"
#include "engine/config_check.h"
#include "engine/model_shape.h"
#include "engine/observe/flops.h"
#include "engine/presets.h"

namespace keel {
namespace {

// 6'738'415'616 as a person reads it.
std::string grouped(std::int64_t n) {
    std::string digits = std::to_string(n), out;
    for (std::size_t i = 0; i < digits.size(); ++i) {
        if (i > 0 && (digits.size() - i) % 3 == 0) out += ' ';
        out += digits[i];
    }
    return out;
}

void print_presets() {
    std::printf("%-17s %15s %7s %7s %6s %9s %6s %6s  %s\n", "preset", "parameters", "vocab", "hidden", "layers",
                "heads/kv", "dim", "ffn", "about");
    for (const Preset& p : presets())
        std::printf("%-17s %15s %7lld %7lld %6lld %9s %6lld %6lld  %s\n", std::string(p.name).c_str(),
                    grouped(p.parameters).c_str(), static_cast<long long>(p.vocab), static_cast<long long>(p.hidden),
                    static_cast<long long>(p.layers),
                    (std::to_string(p.heads) + "/" + std::to_string(p.kv_heads)).c_str(),
                    static_cast<long long>(p.head_dim), static_cast<long long>(p.ffn), std::string(p.about).c_str());
}

}  // namespace

void add_estimate(CLI::App& app) {
    CLI::App* command = app.add_subcommand("estimate", "show parameters, memory plan and FLOPs of a run, allocating nothing");
    auto flags = std::make_shared<ConfigFlags>(*command, std::vector<std::string_view>{"model", "data", "train", "memory"});
    auto list = std::make_shared<bool>(false);
    command->add_flag("--presets", *list, "list the shapes that --model.preset knows");
    command->callback([flags, list] {
        if (*list) return print_presets();
        Config config = flags->read();
        resolve_model(config.model);
        const ParameterCount count = parameter_count(config.model);
        std::printf("parameters %s\n", grouped(count.total()).c_str());
    });
}

}  // namespace keel
