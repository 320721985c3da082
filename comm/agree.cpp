#include "comm/agree.h"

#include <algorithm>
#include <cstring>

namespace keel {
namespace {

// Length first, so that any byte may be in it.
void append(std::string& out, const std::string& text) {
    const std::uint64_t n = text.size();
    out.append(reinterpret_cast<const char*>(&n), sizeof n).append(text);
}

std::vector<std::string> parts_of(const std::string& all) {
    std::vector<std::string> parts;
    for (std::size_t at = 0; at < all.size();) {
        std::uint64_t n;
        std::memcpy(&n, all.data() + at, sizeof n);
        parts.push_back(all.substr(at + sizeof n, n));
        at += sizeof n + n;
    }
    return parts;
}

}  // namespace

std::vector<std::string> gather_strings(Group& group, const std::string& own) {
    Stream stream(1, 64, 64);
    auto longest = static_cast<std::int64_t>(own.size() + sizeof(std::uint64_t));
    group.all_reduce_max(stream, View<std::int64_t>(&longest, {1}));
    std::string mine;
    append(mine, own);
    mine.resize(static_cast<std::size_t>(longest));
    std::string all(static_cast<std::size_t>(longest * group.size()), '\0');
    group.all_gather(stream, View<char>(all.data(), {longest * group.size()}),
                     View<const char>(mine.data(), {longest}));
    std::vector<std::string> strings;
    for (int r = 0; r < group.size(); ++r) {
        const char* at = all.data() + r * longest;
        std::uint64_t n;
        std::memcpy(&n, at, sizeof n);
        strings.emplace_back(at + sizeof n, n);
    }
    return strings;
}

void expect_agreement(Group& group, std::span<const std::pair<std::string, std::string>> facts) {
    std::string own;
    for (const auto& [name, value] : facts) append(own, name), append(own, value);
    const std::vector<std::string> all = gather_strings(group, own);
    if (std::all_of(all.begin(), all.end(), [&](const std::string& other) { return other == all[0]; })) return;

    std::vector<std::vector<std::string>> by_rank;
    for (const std::string& one : all) by_rank.push_back(parts_of(one));
    std::string differences;
    for (std::size_t fact = 0; fact + 1 < by_rank[0].size(); fact += 2) {
        const auto value = [&](std::size_t r) {
            const auto& parts = by_rank[r];
            return fact + 1 < parts.size() && parts[fact] == by_rank[0][fact] ? parts[fact + 1]
                                                                              : std::string("nothing");
        };
        std::vector<std::string> told;
        for (std::size_t r = 0; r < all.size(); ++r) {
            if (std::find(told.begin(), told.end(), value(r)) != told.end()) continue;
            told.push_back(value(r));
        }
        if (told.size() == 1) continue;
        differences += concat("\n  ", by_rank[0][fact], ":");
        for (std::size_t i = 0; i < told.size(); ++i) {
            std::vector<int> same;
            for (std::size_t r = 0; r < all.size(); ++r)
                if (value(r) == told[i]) same.push_back(group.members()[r]);
            differences += concat(i ? "; " : " ", rank_list(same), same.size() == 1 ? " has " : " have ", told[i]);
        }
    }
    fail(concat(
        "ranks differ, and would not train one model:", differences.empty() ? "\n  in what they compare" : differences,
        "\nstart every rank from the same build, configuration and data"));
}

}  // namespace keel
