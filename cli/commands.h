// cli/commands.h: the subcommands of keel. Each add_… puts its options and their help on `app` and a callback that runs it;
// the body lies in the file of the same name. A body throws Error; main.cpp turns that into a message and an exit code.
#pragma once

#include <CLI/App.hpp>

namespace keel {

void add_tokenizer(CLI::App& app);
void add_tokenize(CLI::App& app);
void add_data(CLI::App& app);
void add_train(CLI::App& app);
void add_eval(CLI::App& app);
void add_generate(CLI::App& app);
void add_inspect(CLI::App& app);
void add_convert(CLI::App& app);
void add_verify(CLI::App& app);
void add_estimate(CLI::App& app);
void add_bench(CLI::App& app);
void add_report(CLI::App& app);
void add_devices(CLI::App& app);

}  // namespace keel
