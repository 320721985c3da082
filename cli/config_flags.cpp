#include "cli/config_flags.h"

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <type_traits>

#include "engine/config_names.h"
#include "kernels/base/error.h"

namespace keel {
namespace {

template <class T> constexpr const char* type_label() {
    if constexpr (std::is_same_v<T, bool>) return "true|false";
    else if constexpr (std::is_same_v<T, double>) return "NUMBER";
    else if constexpr (std::is_integral_v<T>) return "COUNT";
    else if constexpr (std::is_same_v<T, std::string>) return "TEXT";
    else if constexpr (std::is_same_v<T, std::vector<std::string>>) return "TEXT";
    else return "NUMBER";
}

}  // namespace

ConfigFlags::ConfigFlags(CLI::App& command, const std::vector<std::string_view>& sections) {
    command.add_option("--config", file_, "TOML file with these settings; flags win over it")->type_name("FILE")
        ->check([](const std::string& file) {  // what an unset variable of a script leaves of --config "$FILE"
            return std::string(file.empty() ? "the name of the file is empty; name one, or leave --config out" : "");
        });
    const Config defaults;
    Config shape;
    for_each_setting(shape, [&](const std::string& key, auto& member, const char* help) {
        const std::string section = key.substr(0, key.find('.'));
        if (!sections.empty() && std::ranges::count(sections, section) == 0) return;
        using T = std::remove_reference_t<decltype(member)>;
        constexpr bool many = !std::is_arithmetic_v<T> && !std::is_same_v<T, std::string>;
        const std::string_view in_short = short_flag(key);
        CLI::Option* option = command.add_option_function<std::vector<std::string>>(
            concat("--", key, in_short.empty() ? "" : ",--", in_short), [this, key](const std::vector<std::string>& values) { given_.push_back({key, values}); }, help);
        option->type_name(type_label<T>())->group("[" + section + "]");
        if (many) option->expected(1, -1);
        else option->expected(1);
        const std::string shown = value_text(defaults, key);
        if (shown != "\"\"" && shown != "[]") option->default_str(shown);
    });
}

Config ConfigFlags::read() const { return read_config(file_, given_); }

}  // namespace keel
