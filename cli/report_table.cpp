#include "cli/report_table.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace keel {
namespace {

std::string plain(const Report& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

void print_table(const Report& rows, const std::string& indent) {
    std::vector<std::pair<std::string, std::size_t>> columns;
    for (const auto& [key, value] : rows[0].items()) columns.emplace_back(key, key.size());
    for (const Report& row : rows)
        for (auto& [key, width] : columns) width = std::max(width, plain(row[key]).size());
    const auto print_row = [&](auto&& cell, auto&& right) {
        std::string line = indent;
        for (const auto& [key, width] : columns) {
            const std::string text = cell(key);
            const std::string gap(width - text.size(), ' ');
            line += (right(key) ? gap + text : text + gap) + "  ";
        }
        line.erase(line.find_last_not_of(' ') + 1);
        std::printf("%s\n", line.c_str());
    };
    const auto is_number = [&](const std::string& key) { return rows[0][key].is_number(); };
    print_row([](const std::string& key) { return key; }, is_number);
    for (const Report& row : rows) print_row([&](const std::string& key) { return plain(row[key]); }, is_number);
}

void print_values(const Report& report, const std::string& indent) {
    std::size_t width = 0;
    for (const auto& [key, value] : report.items())
        if (!value.is_structured()) width = std::max(width, key.size());
    for (const auto& [key, value] : report.items()) {
        if (value.is_object()) {
            std::printf("%s%s\n", indent.c_str(), key.c_str());
            print_values(value, indent + "  ");
        } else if (value.is_array() && !value.empty() && value[0].is_object()) {
            std::printf("%s%s\n", indent.c_str(), key.c_str());
            print_table(value, indent + "  ");
        } else if (value.is_string() && value.get<std::string>().find('\n') != std::string::npos) {
            std::printf("%s%s\n%s", indent.c_str(), key.c_str(), value.get<std::string>().c_str());
        } else {
            std::printf("%s%-*s  %s\n", indent.c_str(), static_cast<int>(width), key.c_str(), plain(value).c_str());
        }
    }
}

}  // namespace

void print_report(const Report& report) { print_values(report, ""); }

}  // namespace keel
