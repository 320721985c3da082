#include "cli/explain.h"

#include <CLI/Option.hpp>
#include <algorithm>

#include "engine/config_io.h"
#include "engine/config_names.h"
#include "kernels/base/error.h"

namespace keel {
namespace {

std::string path_of(const CLI::App& app) {
    return app.get_parent() ? path_of(*app.get_parent()) + " " + app.get_name() : app.get_name();
}

std::vector<std::string> option_names(const CLI::App& app) {
    std::vector<std::string> names;
    for (const CLI::Option* option : app.get_options())
        for (const std::string& name : option->get_lnames()) names.push_back(name);
    return names;
}

std::vector<std::string> command_names(const CLI::App& app) {
    std::vector<std::string> names;
    for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) names.push_back(sub->get_name());
    return names;
}

std::string unknown_word(const CLI::App& app, const std::string& word) {
    const std::string path = path_of(app);
    if (word.starts_with('-')) {
        const std::string name = word.substr(0, word.find('='));
        const auto hint = nearest_name(name, option_names(app));
        return concat("unknown option ", name, hint ? "; did you mean --" + *hint + "?" : ";", " `",
                      path, " --help` lists the options");
    }
    const auto commands = command_names(app);
    if (!commands.empty()) {
        const auto hint = nearest_name(word, commands);
        return concat("unknown command ", word, hint ? "; did you mean `" + path + " " + *hint + "`?" : "",
                      " Commands of ", path, " are ", join(commands, ", "));
    }
    return concat("`", path, "` does not take \"", word, "\" here; `", path, " --help` shows what it takes");
}

}  // namespace

const CLI::App& innermost(const CLI::App& app) {
    const auto chosen = app.get_subcommands();
    return chosen.empty() ? app : innermost(*chosen.back());
}

std::string explain(const CLI::App& app, const CLI::ParseError& error) {
    const CLI::App& command = innermost(app);
    // A word that nobody took explains most of the other complaints, so it comes first.
    const auto left = command.remaining();
    const auto above = app.remaining();
    for (const auto* words : {&left, &above})
        if (!words->empty()) return unknown_word(words == &left ? command : app, words->front());
    const std::string name = error.get_name();
    const std::string path = path_of(command);
    if (name == "RequiredError") {
        const auto commands = command_names(command);
        if (!commands.empty())
            return concat("which command? `", path, "` has ", join(commands, ", "), "; `", path, " --help` tells more");
        for (const CLI::Option* option : command.get_options())
            if (std::string(error.what()) == option->get_name() + " is required")
                return concat(option->get_name(), " is missing: ", option->get_description(), "; see `", path, " --help`");
    }
    return concat(error.what(), "; see `", path, " --help`");
}

}  // namespace keel
