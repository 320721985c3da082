// engine/config_names.h: the other names of settings. keel's own short flags; what people type who come from Megatron-LM,
// the HF trainer, torchtitan or llm.c, and what they meant; and the distance between two words, for typing errors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace keel {

std::vector<std::string> section_names();

// The flag that a setting also has in short ("run.device" -> "device"), or "": for what is typed by hand from run to run.
std::string_view short_flag(std::string_view setting);

// keel's name for another system's spelling ("clip-grad" -> "optim.clip"), or "" if the word is not known.
std::string_view known_alias(std::string_view word);

// "did you mean --optim.clip?", or nothing if no known name is near. `word` is as typed, with or without dashes;
// `known` are names without dashes.
std::optional<std::string> nearest_name(std::string_view word, const std::vector<std::string>& known);

// Aliases whose setting is not among `known`: a table that has gone stale. For the test.
std::vector<std::string> dangling_aliases(const std::vector<std::string>& known);

// Letters to insert, delete, change or swap with their neighbour to get from a to b.
std::int64_t edit_distance(std::string_view a, std::string_view b);

std::string join(const std::vector<std::string>& words, std::string_view between);

}  // namespace keel
