// cli/config_flags.h: --config FILE and one flag per setting of engine/config.h, on a subcommand.
//
//     auto flags = std::make_shared<ConfigFlags>(*sub);
//     sub->callback([flags] { Config config = flags->read(); resolve_and_validate(config); … });
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/config_io.h"

namespace keel {

class ConfigFlags {
public:
    // Adds the flags of `sections`, all of them if empty, to `command`, one help group per section.
    explicit ConfigFlags(CLI::App& command, const std::vector<std::string_view>& sections = {});

    // Defaults, preset, file, flags; not yet resolved. Call it from the command's callback.
    Config read() const;

private:
    std::string file_;
    std::vector<Assignment> given_;
};

}  // namespace keel
