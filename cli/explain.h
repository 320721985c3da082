// cli/explain.h: what was wrong with a command line, in a sentence that ends with the fix.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <vector>

namespace keel {

// `app` is the root that parsed `words`; `error` is what CLI11 threw.
std::string explain(const CLI::App& app, const CLI::ParseError& error);

// The chain of subcommands that the command line named: "keel tokenizer train".
const CLI::App& innermost(const CLI::App& app);

}  // namespace keel
