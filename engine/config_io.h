// engine/config_io.h: Config to and from TOML, and single settings by name. One table (Config::sections, fields) feeds
// all of it. Precedence: defaults, then the preset, then the file, then the flags.
//
// Unknown names are errors that name their nearest neighbour; the spellings of Megatron, the HF trainer and others are
// answered with keel's. A number is written with the fewest digits that read back to the same bits.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/config.h"

namespace keel {

// One `--section.field value...` of the command line, or one line of a file.
struct Assignment {
    std::string key;                  // "optim.lr"
    std::vector<std::string> values;  // as written
};

// Calls visit(key, member, help) for every setting, in the order of the tables: visit("optim.lr", config.optim.lr, …).
template <class Visit> void for_each_setting(Config& config, Visit&& visit) {
    config.sections([&](const char* section, auto& members) {
        members.fields([&](const char* name, auto& member, const char* help) {
            visit(std::string(section) + "." + name, member, help);
        });
    });
}
std::vector<std::string> setting_names();

// The whole configuration as a TOML document; from_toml(to_toml(c)) == c, to the bit.
std::string to_toml(const Config& config);

// `name` stands for the text in messages: name:line:column: what is wrong.
Config from_toml(std::string_view text, std::string_view name = "config");

// Defaults, preset, file (empty: none), flags. Not yet resolved: see config_check.h.
Config read_config(const std::string& path, const std::vector<Assignment>& flags);

// Sets one setting from words. Fails, naming the flag, if it is unknown or the words do not fit its type.
void assign(Config& config, const Assignment& assignment);

// The value of one setting as TOML writes it: 0.0003, "cosine", [1.0, 0.0].
std::string value_text(const Config& config, std::string_view key);

// Sixteen hex digits over every setting that can change a result: all but [run], [observe], [exit] and [watch] (where, on how
// many threads, until when, and what is told of it).
std::string config_hash(const Config& config);

}  // namespace keel
