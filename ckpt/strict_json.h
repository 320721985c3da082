// ckpt/strict_json.h: JSON text to a tree, without what the library forgives: a key given twice, a byte order mark, a
// zero byte, nesting deep enough to exhaust the stack. Only sources include this; headers of ckpt stay free of the JSON
// library.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace keel {

using Json = nlohmann::json;  // sorted keys: a file with many of them is still read in reasonable time

// The text must be one JSON object. `file` starts every message.
Json parse_strict_json(std::string_view text, const std::string& file);

// What both the tree and the header parser demand of the raw bytes.
void check_json_bytes(std::string_view text, const std::string& file);

// Depth beyond which a file is refused. config.json nests four deep.
constexpr int max_json_depth = 64;

}  // namespace keel
