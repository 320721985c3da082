// cli/report_table.h: a tree of named values, printed for people: scalars as lines, lists of alike objects as tables.
#pragma once

#include <nlohmann/json.hpp>

namespace keel {

using Report = nlohmann::ordered_json;  // printed in the order in which it was filled

void print_report(const Report& report);

}  // namespace keel
