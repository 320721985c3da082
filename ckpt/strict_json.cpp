#include "ckpt/strict_json.h"

#include <set>
#include <vector>

#include "kernels/base/error.h"

namespace keel {

void check_json_bytes(std::string_view text, const std::string& file) {
    // The library takes a zero byte for the end of the text, and skips a byte order mark.
    if (const auto at = text.find('\0'); at != std::string_view::npos)
        fail(file, ": byte ", at, " of the JSON text is zero");
    if (text.starts_with("\xef\xbb\xbf")) fail(file, ": the JSON text starts with a byte order mark");
}

Json parse_strict_json(std::string_view text, const std::string& file) {
    check_json_bytes(text, file);
    std::vector<std::set<std::string>> keys;
    const auto check = [&](int depth, Json::parse_event_t event, Json& value) {
        if (depth > max_json_depth) fail(file, ": JSON nested more than ", max_json_depth, " deep");
        if (event == Json::parse_event_t::object_start) keys.emplace_back();
        if (event == Json::parse_event_t::object_end) keys.pop_back();
        if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second)
            fail(file, ": key \"", value.get<std::string>(), "\" is given twice");
        return true;
    };
    Json tree;
    try {
        tree = Json::parse(text, check);
    } catch (const Json::exception& e) {
        fail(file, " is not valid JSON: ", e.what());
    }
    if (!tree.is_object()) fail(file, ": expected a JSON object, found ", tree.type_name());
    return tree;
}

}  // namespace keel
