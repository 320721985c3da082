// Traces for Perfetto: JSON that parses, lanes that nest, arrows that pair, ranks on one clock.
#include "engine/observe/chrome_trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "tests/engine/trace_check.h"
#include "tests/temp_folder.h"

using namespace keel;
using test::check_trace;
using Json = nlohmann::json;
using std::chrono::microseconds;

namespace {

constexpr Clock::time_point t0{std::chrono::seconds(1000)};

Span span(const char* name, int begin, int end, int index = -1, int chunk = -1) {
    return {
        .name = name, .index = index, .chunk = chunk, .begin = t0 + microseconds(begin), .end = t0 + microseconds(end)};
}
CallTime call(const char* group, const char* what, int begin, int end, int from = -1, int to = -1, int channel = 0) {
    return {group, what, from < 0 ? 7 : 0, 4096, from, to, channel, t0 + microseconds(begin), t0 + microseconds(end)};
}

struct Recorded {
    Spans here, beside;
    Calls calls_here, calls_beside;
    Recorded() {
        for (Spans* s : {&here, &beside}) s->reserve(64);
        for (Calls* c : {&calls_here, &calls_beside}) c->reserve(64);
    }
    ChromeTrace::Step at(std::int64_t step) const { return {step, here, beside, calls_here, calls_beside}; }
};

// Two pipeline stages and two micro-batches; the second stage's clock is 5 ms ahead.
std::vector<std::filesystem::path> two_ranks(const test::TempFolder& folder) {
    const std::int64_t origin = 1000'000'000'000;
    std::vector<std::filesystem::path> parts;
    for (int rank = 0; rank < 2; ++rank) {
        Recorded r;
        const int late = 5000 * rank;
        for (int mb = 0; mb < 2; ++mb) {
            const int at = late + 100 * mb;
            if (rank == 0) {
                r.here.add(span("data", at, at + 5, -1));
                r.here.add(span("forward", at + 10, at + 60, mb, 0));
                r.calls_here.add(call("tp", "all_reduce", at + 20, at + 30));
                r.calls_here.add(call("pp", "send", at + 59, at + 60, 0, 1, 0));
                r.calls_here.add(call("pp", "receive", at + 61, at + 95, 1, 0, 1));
            } else {
                r.here.add(span("receive", at + 40, at + 70, mb, 0));  // told by the call
                r.calls_here.add(call("pp", "receive", at + 40, at + 70, 0, 1, 0));
                r.here.add(span("forward", at + 70, at + 80, mb, 0));
                r.here.add(span("backward", at + 80, at + 94, mb, 0));
                r.calls_here.add(call("pp", "send", at + 93, at + 94, 1, 0, 1));
            }
        }
        r.beside.add(span("reduce", late + 150, late + 190, 3));
        r.calls_beside.add(call("dp_cp", "reduce_scatter", late + 151, late + 189));
        parts.push_back(folder.path() / concat("rank", rank, ".json"));
        ChromeTrace trace(parts.back(), rank, concat("rank ", rank, " \"quoted\""),
                          {.offset_ns = rank * 5'000'000, .error_ns = 40, .origin_ns = origin},
                          {{"run", "a \"run\"\n"}});
        trace.step(r.at(10));
        trace.checkpoint(10, t0 + microseconds(late + 200), t0 + microseconds(late + 900));
        EXPECT_EQ(trace.close(), "");
    }
    return parts;
}

const Json& the(const Json& events, const std::string& name, int pid) {
    static const Json none;
    for (const Json& e : events)
        if (e["name"] == name && e["pid"] == pid && e["ph"] == "X") return e;
    ADD_FAILURE() << "no " << name << " of " << pid;
    return none;
}

}  // namespace

TEST(ChromeTrace, OfARankNestsAndSaysWhatEachCallWas) {
    const test::TempFolder folder;
    const auto parts = two_ranks(folder);
    const Json trace = Json::parse(read_file(parts[0]));
    EXPECT_EQ(trace["displayTimeUnit"], "ms");
    EXPECT_EQ(trace["otherData"]["run"], "a \"run\"\n");
    const Json& events = trace["traceEvents"];
    const Json reduce = the(events, "tp all_reduce", 0);
    EXPECT_EQ(reduce["args"], Json({{"step", 10}, {"number", 7}, {"bytes", 4096}}));
    EXPECT_EQ(reduce["tid"], 4);
    EXPECT_EQ(reduce["ts"], 20.0);
    EXPECT_EQ(reduce["dur"], 10.0);
    EXPECT_EQ(the(events, "forward", 0)["args"], Json({{"step", 10}, {"mb", 0}, {"chunk", 0}}));
    EXPECT_EQ(the(events, "reduce", 0)["args"], Json({{"step", 10}, {"bucket", 3}}));
    EXPECT_EQ(the(events, "reduce", 0)["tid"], the(events, "dp_cp reduce_scatter", 0)["tid"]);
    EXPECT_EQ(the(events, "data", 0)["tid"], 7);
    EXPECT_EQ(the(events, "write checkpoint", 0)["tid"], 8);
}

TEST(ChromeTrace, OfAllRanksIsOneFileOnOneClockWithAnArrowPerMessage) {
    const test::TempFolder folder;
    const auto parts = two_ranks(folder);
    merge_traces(parts, folder.path() / "trace.json");
    const Json trace = Json::parse(read_file(folder.path() / "trace.json"));
    const test::TraceCount count = check_trace(trace);
    EXPECT_EQ(count.ranks, (std::set<int>{0, 1}));
    EXPECT_EQ(count.arrows, 4);  // two micro-batches, both ways
    EXPECT_EQ(the(trace["traceEvents"], "receive activation", 1)["ts"], 40.0);
    EXPECT_EQ(trace["otherData"]["rank 1 clock"], "offset 5000000 ns, error at most 40 ns");
    std::set<std::string> ids;
    for (const Json& e : trace["traceEvents"])
        if (e["ph"] == "s") ids.insert(e["id"]);
    EXPECT_EQ(ids, (std::set<std::string>{"s10.pp0.m0.0-1", "s10.pp0.m1.0-1", "s10.pp1.m0.1-0", "s10.pp1.m1.1-0"}));
}

TEST(ChromeTrace, ThatWasCutOffGivesItsWholeLinesToTheMergedOne) {
    const test::TempFolder folder;
    auto parts = two_ranks(folder);
    const std::string text = read_file(parts[1]);
    folder.write("cut.json", text.substr(0, text.find("receive activation") + 30));
    parts[1] = folder / "cut.json";
    parts.push_back(folder / "missing.json");
    merge_traces(parts, folder.path() / "trace.json");
    const Json trace = Json::parse(read_file(folder.path() / "trace.json"));
    EXPECT_GT(trace["traceEvents"].size(), 40u);
}

TEST(ChromeTrace, TellsHowMuchHadNoRoom) {
    const test::TempFolder folder;
    Recorded r;
    for (int i = 0; i < 70; ++i) r.here.add(span("forward", 10 * i, 10 * i + 5, i, 0));
    ChromeTrace trace(folder.path() / "t.json", 0, "rank 0", {}, {});
    trace.step(r.at(1));
    EXPECT_EQ(trace.close(), "");
    EXPECT_NE(read_file(folder.path() / "t.json").find("6 events had no room"), std::string::npos);
}

TEST(ChromeTrace, ThatCannotBeWrittenSaysSo) {
    ChromeTrace trace("/dev/full", 0, "rank 0", {}, {});
    EXPECT_EQ(trace.close(), "/dev/full: No space left on device");
    EXPECT_THROW(ChromeTrace("/nowhere/t.json", 0, "rank 0", {}, {}), Error);
}

// Both left each barrier after the other had come, whatever their clocks say.
TEST(TraceClock, IsKnownToWithinWhatBarriersTell) {
    const std::int64_t ahead = 1'000'000;
    std::vector<BarrierTimes> first, here;
    for (const auto& [late, wait] : {std::pair{300, 900}, std::pair{20, 60}, std::pair{-500, 800}}) {
        const std::int64_t at = 10'000 + 5'000 * static_cast<std::int64_t>(first.size());
        first.push_back({at, at + wait});
        here.push_back({at + late + ahead, at + wait + 30 + ahead});
    }
    const TraceClock clock = clock_from(first, here);
    EXPECT_LE(std::abs(clock.offset_ns - ahead), clock.error_ns);
    EXPECT_EQ(clock.error_ns,
              (90 + 40) / 2);  // of the second: entered 40 ns before the first left, left 90 ns after it came
    EXPECT_EQ(clock.origin_ns, 10'000);
    EXPECT_EQ(clock.microseconds(Clock::time_point(std::chrono::nanoseconds(clock.offset_ns + 12'500))), 2.5);
}

TEST(TraceClock, ThatMayBeTheSameIsTheSame) {
    const std::vector<BarrierTimes> first{{1000, 2000}, {3000, 4000}}, here{{1100, 2010}, {3500, 3990}};
    EXPECT_EQ(clock_from(first, here).offset_ns, 0);
    EXPECT_EQ(clock_from(first, here).error_ns, 0);
}
