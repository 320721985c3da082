// tests/engine/trace_check.h: what every trace must be: spans of a lane nest or are disjoint, each arrow has one
// beginning and one end, inside of a span, in this order in time; nothing is before the beginning.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace keel::test {

struct TraceCount {
    std::set<int> ranks;
    int spans = 0, arrows = 0;
};

inline TraceCount check_trace(const nlohmann::json& trace) {
    struct Slice {
        double begin, end;
    };
    struct Arrow {
        int begins = 0, ends = 0;
        double from = 0, to = 0;
    };
    TraceCount count;
    std::map<std::pair<int, int>, std::vector<Slice>> lanes;
    std::map<std::string, Arrow> arrows;
    for (const auto& e : trace["traceEvents"]) {
        count.ranks.insert(e["pid"].get<int>());
        if (e["ph"] != "X") continue;
        EXPECT_GE(e["dur"].get<double>(), 0) << e;
        EXPECT_TRUE(e["args"].contains("step")) << e;
        lanes[{e["pid"], e["tid"]}].push_back({e["ts"], e["ts"].get<double>() + e["dur"].get<double>()});
        ++count.spans;
    }
    constexpr double rounding = 0.0015;  // microseconds: ts and dur are each rounded to a nanosecond
    for (auto& [lane, slices] : lanes) {
        std::ranges::sort(slices, [](const Slice& a, const Slice& b) {
            return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
        });
        std::vector<Slice> open;
        for (const Slice& s : slices) {
            while (!open.empty() && open.back().end <= s.begin + rounding) open.pop_back();
            const double limit = open.empty() ? s.end : open.back().end + rounding;
            EXPECT_LE(s.end, limit) << "rank " << lane.first << " lane " << lane.second << " at " << s.begin;
            open.push_back(s);
        }
    }
    for (const auto& e : trace["traceEvents"]) {
        if (e["ph"] != "s" && e["ph"] != "f") continue;
        const double ts = e["ts"];
        const auto& slices = lanes[{e["pid"], e["tid"]}];
        EXPECT_TRUE(std::ranges::any_of(slices, [&](const Slice& s) {
            return s.begin - rounding <= ts && ts <= s.end + rounding;
        })) << e;
        Arrow& arrow = arrows[e["id"]];
        if (e["ph"] == "s") ++arrow.begins, arrow.from = ts;
        else ++arrow.ends, arrow.to = ts;
    }
    for (const auto& [id, arrow] : arrows) {
        EXPECT_EQ(arrow.begins, 1) << id;
        EXPECT_EQ(arrow.ends, 1) << id;
        EXPECT_LE(arrow.from, arrow.to) << id;
    }
    count.arrows = static_cast<int>(arrows.size());
    return count;
}

}  // namespace keel::test
