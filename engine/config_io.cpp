#include "engine/config_io.h"

#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>
#include <toml++/toml.h>
#include <type_traits>

#include "engine/config_names.h"
#include "engine/presets.h"
#include "kernels/base/error.h"
#include "kernels/base/hex.h"
#include "kernels/base/file.h"

namespace keel {
namespace {

template <class T> struct is_vector : std::false_type {};
template <class T> struct is_vector<std::vector<T>> : std::true_type {};

// A setting's type in the words of a message.
template <class T> constexpr const char* type_words() {
    if constexpr (std::is_same_v<T, bool>) return "true or false";
    else if constexpr (std::is_same_v<T, std::uint64_t>) return "a whole number from 0 to 9223372036854775807";
    else if constexpr (std::is_same_v<T, std::int64_t>) return "a whole number";
    else if constexpr (std::is_same_v<T, double>) return "a number";
    else if constexpr (std::is_same_v<T, std::string>) return "a string";
    else if constexpr (std::is_same_v<T, std::vector<std::string>>) return "a list of strings";
    else if constexpr (std::is_same_v<T, std::vector<double>>) return "a list of numbers";
    else return "a list of whole numbers";
}

// ---- words to values

bool parse(const std::string& word, std::string& out) { return out = word, true; }
bool parse(const std::string& word, bool& out) {
    if (word != "true" && word != "false") return false;
    return out = word == "true", true;
}
bool parse(const std::string& word, double& out) {
    const char* begin = word.data() + (word.starts_with('+') ? 1 : 0);
    const auto [end, status] = std::from_chars(begin, word.data() + word.size(), out);
    return status == std::errc() && end == word.data() + word.size() && !word.empty();
}
// Whole numbers may be written 1e6 as long as a double holds them exactly.
bool parse(const std::string& word, std::int64_t& out) {
    const char* begin = word.data() + (word.starts_with('+') ? 1 : 0);
    const auto [end, status] = std::from_chars(begin, word.data() + word.size(), out);
    if (status == std::errc() && end == word.data() + word.size()) return true;
    double value = 0;
    if (!parse(word, value) || value != std::floor(value) || std::fabs(value) > 9007199254740992.0) return false;
    return out = static_cast<std::int64_t>(value), true;
}
bool parse(const std::string& word, std::uint64_t& out) {
    std::int64_t value = 0;
    if (!parse(word, value) || value < 0) return false;
    return out = static_cast<std::uint64_t>(value), true;
}

template <class T> void set_from_words(const std::string& key, T& member, const std::vector<std::string>& words) {
    if constexpr (is_vector<T>::value) {
        T values;
        for (const std::string& word : words) {
            typename T::value_type value{};
            if (!parse(word, value)) fail_usage("--", key, " ", word, ": this is ", type_words<T>());
            values.push_back(std::move(value));
        }
        member = std::move(values);
    } else {
        if (words.size() != 1)
            fail_usage("--", key, " takes one value, but ", words.size(), " were given; give it once, with one value");
        T value{};
        if (!parse(words[0], value)) fail_usage("--", key, " ", words[0], ": this must be ", type_words<T>());
        member = std::move(value);
    }
}

// ---- TOML to values

std::string at(std::string_view name, const toml::source_region& region) {
    return concat(name, ":", region.begin.line, ":", region.begin.column, ": ");
}

template <class T> bool take(const toml::node& node, T& out) {
    if constexpr (is_vector<T>::value) {
        const toml::array* array = node.as_array();
        if (!array) return false;
        T values;
        for (const toml::node& element : *array) {
            typename T::value_type value{};
            if (!take(element, value)) return false;
            values.push_back(std::move(value));
        }
        return out = std::move(values), true;
    } else if constexpr (std::is_same_v<T, std::string>) {
        const auto* value = node.as_string();
        return value ? (out = value->get(), true) : false;
    } else if constexpr (std::is_same_v<T, bool>) {
        const auto* value = node.as_boolean();
        return value ? (out = value->get(), true) : false;
    } else if constexpr (std::is_same_v<T, double>) {
        if (const auto* whole = node.as_integer()) return out = static_cast<double>(whole->get()), true;
        const auto* value = node.as_floating_point();
        return value ? (out = value->get(), true) : false;
    } else {
        std::int64_t whole = 0;
        if (const auto* integer = node.as_integer()) whole = integer->get();
        else if (const auto* real = node.as_floating_point();
                 real && real->get() == std::floor(real->get()) && std::fabs(real->get()) <= 9007199254740992.0)
            whole = static_cast<std::int64_t>(real->get());
        else return false;
        if (std::is_unsigned_v<T> && whole < 0) return false;
        return out = static_cast<T>(whole), true;
    }
}

std::string shown(const toml::node& node) {
    std::ostringstream out;
    node.visit([&](const auto& n) {
        using N = std::remove_cvref_t<decltype(n)>;
        if constexpr (toml::is_table<N>) out << "a table";
        else if constexpr (toml::is_array<N>) out << "the list " << n;
        else if constexpr (toml::is_string<N>) out << "the string \"" << n.get() << '"';
        else out << n;
    });
    return out.str();
}

// Each part of a dotted name becomes a table inside of the one before, and the parser frees them recursively: a hundred
// thousand dots in one name run out of stack. The parser limits brackets and braces only.
void refuse_deep_names(std::string_view text, std::string_view name) {
    constexpr int most_dots = 64;
    int dots = 0, line = 1;
    char inside = 0;  // the quote of the string, or '#' of the comment, that we are in
    for (std::size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if (c == '\n') ++line, inside = 0, dots = 0;
        else if (inside == '"' && c == '\\') ++i;
        else if (inside != 0) inside = c == inside && c != '#' ? '\0' : inside;
        else if (c == '"' || c == '\'' || c == '#') inside = c;
        else if (std::string_view("=,[]{}").find(c) != std::string_view::npos) dots = 0;
        else if (c == '.' && ++dots > most_dots)
            fail_usage(concat(name, ":", line, ": "), "a name of more than ", most_dots, " parts; a setting has two, as in optim.lr");
    }
}

toml::table parse_toml(std::string_view text, std::string_view name) {
    refuse_deep_names(text, name);
    try {
        return toml::parse(text, name);
    } catch (const toml::parse_error& error) {
        fail_usage(at(name, error.source()), error.description());
    }
}

void apply_toml(Config& config, const toml::table& document, std::string_view name) {
    for (const auto& [section_key, section_node] : document) {
        const std::string section(section_key.str());
        const toml::table* table = section_node.as_table();
        bool known = false;
        config.sections([&](const char* s, auto&) { known |= section == s; });
        const std::string where = at(name, section_key.source());
        if (known && !table) fail_usage(where, "\"", section, "\" is a section: write [", section, "] on its own line");
        if (!table) {  // a setting above the first [section]
            const auto hint = nearest_name(section, setting_names());
            fail_usage(where, "\"", section, "\" stands outside of any section",
                       hint ? "; did you mean " + *hint + "?" : "; sections are " + join(section_names(), ", "));
        }
        if (!known) {
            const auto hint = nearest_name(section, section_names());
            fail_usage(where, "unknown section [", section, "]",
                       hint ? "; did you mean [" + *hint + "]?" : "; sections are " + join(section_names(), ", "));
        }
        for (const auto& [field_key, node] : *table) {
            const std::string key = section + "." + std::string(field_key.str());
            bool found = false;
            for_each_setting(config, [&](const std::string& candidate, auto& member, const char*) {
                if (candidate != key) return;
                found = true;
                using T = std::remove_reference_t<decltype(member)>;
                if (!take(node, member))
                    fail_usage(at(name, node.source()), key, " is ", shown(node), "; it must be ", type_words<T>());
            });
            if (found) continue;
            const auto hint = nearest_name(key, setting_names());
            fail_usage(at(name, field_key.source()), "unknown setting ", key,
                       hint ? "; did you mean " + *hint + "?" : "; `keel train --help` lists them all");
        }
    }
}

std::string preset_of(const toml::table& document) {
    return document["model"]["preset"].value_or(std::string());
}

// ---- values to text

std::string text_of(const std::string& value) {
    std::string out = "\"";
    for (const char c : value) {
        const auto byte = static_cast<unsigned char>(c);
        if (c == '"' || c == '\\') out += {'\\', c};
        else if (byte < 0x20 || byte == 0x7f) {
            char escape[8];
            std::snprintf(escape, sizeof escape, "\\u%04X", byte);
            out += escape;
        } else out += c;
    }
    return out + "\"";
}
std::string text_of(bool value) { return value ? "true" : "false"; }
std::string text_of(std::int64_t value) { return std::to_string(value); }
std::string text_of(std::uint64_t value) { return std::to_string(value); }
std::string text_of(double value) {
    char buffer[40];
    std::string out(buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr);
    if (out.find_first_not_of("0123456789-") == std::string::npos) out += ".0";
    return out;
}
template <class T> std::string text_of(const std::vector<T>& values) {
    std::string out = "[";
    for (std::size_t i = 0; i < values.size(); ++i) out += (i ? ", " : "") + text_of(values[i]);
    return out + "]";
}

}  // namespace

std::vector<std::string> setting_names() {
    Config config;
    std::vector<std::string> names;
    for_each_setting(config, [&](const std::string& key, auto&, const char*) { names.push_back(key); });
    return names;
}

std::string to_toml(const Config& config) {
    Config copy = config;
    std::string out;
    copy.sections([&](const char* section, auto& members) {
        out += concat(out.empty() ? "" : "\n", "[", section, "]\n");
        members.fields([&](const char* name, auto& member, const char*) {
            out += concat(name, " = ", text_of(member), "\n");
        });
    });
    return out;
}

Config from_toml(std::string_view text, std::string_view name) {
    const toml::table document = parse_toml(text, name);
    Config config;
    if (const std::string preset = preset_of(document); !preset.empty()) apply_preset(config.model, preset);
    apply_toml(config, document, name);
    return config;
}

Config read_config(const std::string& path, const std::vector<Assignment>& flags) {
    const toml::table document = path.empty() ? toml::table() : parse_toml(read_file(path), path);
    std::string preset = preset_of(document);
    for (const Assignment& flag : flags)
        if (flag.key == "model.preset" && flag.values.size() == 1) preset = flag.values[0];
    Config config;
    if (!preset.empty()) apply_preset(config.model, preset);
    apply_toml(config, document, path);
    for (const Assignment& flag : flags) assign(config, flag);
    return config;
}

void assign(Config& config, const Assignment& assignment) {
    bool found = false;
    for_each_setting(config, [&](const std::string& key, auto& member, const char*) {
        if (key != assignment.key) return;
        found = true;
        set_from_words(key, member, assignment.values);
    });
    if (found) return;
    const auto hint = nearest_name(assignment.key, setting_names());
    fail_usage("unknown setting --", assignment.key, hint ? "; did you mean --" + *hint + "?" : "");
}

std::string value_text(const Config& config, std::string_view key) {
    Config copy = config;
    std::string out;
    for_each_setting(copy, [&](const std::string& candidate, auto& member, const char*) {
        if (candidate == key) out = text_of(member);
    });
    return out;
}

std::string config_hash(const Config& config) {
    Config copy = config;
    copy.run = RunSection(), copy.observe = ObserveSection(), copy.exit = ExitSection(), copy.watch = WatchSection();
    const std::string text = to_toml(copy);
    return hex(XXH3_64bits(text.data(), text.size()));
}

}  // namespace keel
