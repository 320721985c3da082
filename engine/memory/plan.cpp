#include "engine/memory/plan.h"

#include <algorithm>
#include <cstdio>
#include <numeric>

namespace keel {
namespace {

std::int64_t aligned(std::int64_t bytes) {
    return (bytes + MemoryPlan::alignment - 1) / MemoryPlan::alignment * MemoryPlan::alignment;
}

bool meet(const Life& a, const Life& b) { return a.first <= b.last && b.first <= a.last; }

constexpr std::int64_t most_bytes = std::int64_t{1} << 62;

constexpr Use all_uses[] = {Use::parameter, Use::gradient,      Use::optimizer, Use::saved,
                            Use::temporary, Use::communication, Use::cache,     Use::products};

// Reservations of layers and slots carry their number; a person wants to read them as one line.
std::string without_layer(const std::string& name) {
    const auto slash = name.find('/');
    if (slash == std::string::npos) return name;
    if (name.starts_with("block")) return "block*" + name.substr(slash);
    if (name.starts_with("slot")) return "slot*" + name.substr(name.rfind('/'));
    return name;
}

}  // namespace

const char* name(Use use) {
    switch (use) {
        case Use::parameter: return "parameters";
        case Use::gradient: return "gradients";
        case Use::optimizer: return "optimizer";
        case Use::saved: return "saved for backward";
        case Use::temporary: return "temporaries";
        case Use::communication: return "between ranks";
        case Use::cache: return "KV cache";
        case Use::products: return "workspace of products";
    }
    return "?";
}

std::string human_bytes(std::int64_t bytes) {
    const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double value = static_cast<double>(bytes);
    int unit = 0;
    while (value >= 1024 && unit < 5) value /= 1024, ++unit;
    char text[32];
    std::snprintf(text, sizeof text, unit ? "%.2f %s" : "%.0f %s", value, units[unit]);
    return text;
}

int MemoryPlan::moment(std::string name) {
    moments_.push_back(std::move(name));
    return static_cast<int>(moments_.size()) - 1;
}

int MemoryPlan::add(std::string name, std::int64_t bytes, Life life, Use use) {
    if (life.first < 0 || life.last < life.first)
        fail("memory plan: ", name, " lives from moment ", life.first, " to ", life.last);
    // Offsets and sums of any set of reservations stay below the sum of all.
    if (bytes > most_bytes || __builtin_add_overflow(all_bytes_, aligned(bytes), &all_bytes_) || all_bytes_ > most_bytes)
        fail("memory plan: with ", name, " (", bytes, " bytes) the plan is too large to count");
    items_.push_back({std::move(name), use, life, bytes, -1});
    return static_cast<int>(items_.size()) - 1;
}

void MemoryPlan::assign() {
    std::vector<int> order(items_.size());
    std::iota(order.begin(), order.end(), 0);
    const auto item = [this](int i) -> Item& { return items_[static_cast<std::size_t>(i)]; };
    // What lives longest is the floor; above it the largest go first, since they are hardest to place.
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
        const bool long_a = item(a).life.last == Life::forever, long_b = item(b).life.last == Life::forever;
        return long_a != long_b ? long_a : item(a).bytes > item(b).bytes;
    });
    peak_bytes_ = 0;
    std::vector<const Item*> placed;  // by offset
    for (const int i : order) {
        std::int64_t offset = 0;
        for (const Item* other : placed) {
            if (!meet(other->life, item(i).life)) continue;
            if (offset + aligned(item(i).bytes) <= other->offset) break;
            offset = std::max(offset, other->offset + aligned(other->bytes));
        }
        item(i).offset = offset;
        peak_bytes_ = std::max(peak_bytes_, offset + aligned(item(i).bytes));
        placed.insert(std::upper_bound(placed.begin(), placed.end(), offset,
                                       [](std::int64_t o, const Item* it) { return o < it->offset; }),
                      &item(i));
    }
}

std::int64_t MemoryPlan::live_bytes(int moment) const {
    std::int64_t sum = 0;
    for (const Use use : all_uses) sum += live_bytes(moment, use);
    return sum;
}

std::int64_t MemoryPlan::live_bytes(int moment, Use use) const {
    std::int64_t sum = 0;
    for (const Item& item : items_)
        if (item.use == use && item.life.first <= moment && moment <= item.life.last) sum += aligned(item.bytes);
    return sum;
}

int MemoryPlan::peak_moment() const {
    int best = 0;
    std::int64_t most = -1;
    for (int m = 0; m < static_cast<int>(moments_.size()); ++m)
        if (const std::int64_t bytes = live_bytes(m); bytes > most) most = bytes, best = m;
    return best;
}

std::string MemoryPlan::table() const {
    const int peak = peak_moment();
    std::string out = "memory plan: " + human_bytes(peak_bytes_) + " (" + std::to_string(peak_bytes_) +
                      " bytes) in one arena; fullest at \"" +
                      (moments_.empty() ? std::string("start") : moments_[static_cast<std::size_t>(peak)]) + "\"\n";
    char line[160];
    for (const Use use : all_uses)
        if (const std::int64_t bytes = live_bytes(peak, use)) {
            std::snprintf(line, sizeof line, "  %-22s %12s  %5.1f %%\n", name(use), human_bytes(bytes).c_str(),
                          100.0 * static_cast<double>(bytes) / static_cast<double>(peak_bytes_));
            out += line;
        }
    const std::int64_t gaps = peak_bytes_ - live_bytes(peak);
    std::snprintf(line, sizeof line, "  %-22s %12s  %5.1f %%\n", "gaps", human_bytes(gaps).c_str(),
                  100.0 * static_cast<double>(gaps) / static_cast<double>(std::max<std::int64_t>(1, peak_bytes_)));
    out += line;

    // Reservations of all layers under one name, largest first.
    std::vector<std::pair<std::string, std::int64_t>> groups;
    for (const Item& item : items_) {
        if (peak < item.life.first || item.life.last < peak) continue;
        const std::string group = without_layer(item.name);
        const auto at = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == group; });
        if (at == groups.end()) groups.emplace_back(group, aligned(item.bytes));
        else at->second += aligned(item.bytes);
    }
    std::stable_sort(groups.begin(), groups.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
    out += "  largest at that moment:\n";
    for (std::size_t i = 0; i < groups.size() && i < 8; ++i) {
        std::snprintf(line, sizeof line, "    %-28s %12s\n", groups[i].first.c_str(), human_bytes(groups[i].second).c_str());
        out += line;
    }
    return out;
}

}  // namespace keel
