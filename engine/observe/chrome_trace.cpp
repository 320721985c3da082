#include "engine/observe/chrome_trace.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/observe/print.h"
#include "kernels/base/error.h"
#include "kernels/base/file.h"

namespace keel {
namespace {

// Streams of work. What one thread does on a lane nests; two threads never share one.
enum Lane : int { compute = 1, pp_send, pp_recv, tp_comm, dp_beside, host, data, saver, dp_here, cp_comm };
constexpr std::pair<Lane, const char*> lanes[] = {
    {compute, "compute"},           {pp_send, "pp send"}, {pp_recv, "pp recv"}, {tp_comm, "tp comm"},
    {dp_beside, "dp comm, beside"}, {host, "host"},       {data, "data"},       {saver, "checkpoint"},
    {dp_here, "dp comm"},           {cp_comm, "cp comm"}};

std::int64_t ns(Clock::time_point at) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(at.time_since_epoch()).count();
}

Lane lane_of(std::string_view span, bool beside) {
    if (span == "reduce" || span == "gather") return beside ? dp_beside : dp_here;
    return span == "data" ? data : compute;
}
Lane lane_of(const CallTime& call, bool beside) {
    const std::string_view group = call.group;
    if (beside) return dp_beside;
    if (group == "tp") return tp_comm;
    if (group == "cp") return cp_comm;
    if (group == "pp") return std::string_view(call.what) == "send" ? pp_send : pp_recv;
    return group == "world" ? host : dp_here;
}

}  // namespace

double TraceClock::microseconds(Clock::time_point at) const {
    return static_cast<double>(ns(at) - offset_ns - origin_ns) / 1e3;
}

TraceClock clock_from(std::span<const BarrierTimes> rank0, std::span<const BarrierTimes> here) {
    TraceClock clock;
    if (rank0.empty()) return clock;
    clock.origin_ns = rank0[0].entered_ns;
    std::int64_t low = here[0].entered_ns - rank0[0].left_ns, high = here[0].left_ns - rank0[0].entered_ns;
    for (std::size_t i = 1; i < rank0.size(); ++i) {
        low = std::max(low, here[i].entered_ns - rank0[i].left_ns);
        high = std::min(high, here[i].left_ns - rank0[i].entered_ns);
    }
    if (low <= 0 && high >= 0) return clock;
    clock.offset_ns = low + (high - low) / 2, clock.error_ns = (high - low) / 2;
    return clock;
}

TraceClock meet(Group& world, Stream& stream) {
    constexpr std::int64_t rounds = 16;
    std::vector<BarrierTimes> mine;
    for (std::int64_t i = 0; i < rounds; ++i) {
        const std::int64_t entered = ns(Clock::now());
        world.barrier();
        mine.push_back({entered, ns(Clock::now())});
    }
    std::vector<BarrierTimes> first = mine;  // of rank 0
    world.broadcast(
        stream,
        View<std::byte>(reinterpret_cast<std::byte*>(first.data()), {rounds * std::int64_t{sizeof(BarrierTimes)}}), 0);
    return clock_from(first, mine);
}

ChromeTrace::ChromeTrace(const std::filesystem::path& path, int rank, const std::string& name, const TraceClock& clock,
                         std::vector<std::pair<std::string, std::string>> about)
    : path_(path), rank_(rank), clock_(clock), file_(std::fopen(path.c_str(), "w")) {
    if (!file_) fail(path.string(), " cannot be opened for writing: ", std::strerror(errno), "; check --run.dir");
    about.emplace_back(concat("rank ", rank, " clock"),
                       concat("offset ", clock.offset_ns, " ns, error at most ", clock.error_ns, " ns"));
    line(concat("{\"displayTimeUnit\":\"ms\",\"otherData\":",
                nlohmann::json(std::map<std::string, std::string>(about.begin(), about.end())).dump(),
                ",\"traceEvents\":["));
    line(concat("{\"ph\":\"M\",\"pid\":", rank,
                ",\"name\":\"process_name\",\"args\":{\"name\":", nlohmann::json(name).dump(), "}},"));
    line(print("{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_sort_index\",\"args\":{\"sort_index\":%d}},", rank, rank));
    for (const auto& [lane, title] : lanes) {
        line(print("{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_name\",\"args\":{\"name\":\"%s\"}},", rank,
                   lane, title));
        line(print("{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":%d}},",
                   rank, lane, lane));
    }
}

ChromeTrace::~ChromeTrace() { (void)close(); }

void ChromeTrace::step(const Step& s) {
    if (std::exchange(latest_step_, s.step) != s.step) messages_.clear();
    spans(s.here, false, s.step), spans(s.beside, true, s.step);
    calls(s.calls_here, false, s.step), calls(s.calls_beside, true, s.step);
    dropped_ += s.here.dropped() + s.beside.dropped() + s.calls_here.dropped() + s.calls_beside.dropped();
    const auto now = Clock::now();
    line(
        print("{\"ph\":\"i\",\"s\":\"p\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"name\":\"gradients "
              "done\",\"args\":{\"step\":%lld}},",
              rank_, host, clock_.microseconds(now), static_cast<long long>(s.step)));
}

void ChromeTrace::spans(const Spans& all, bool beside, std::int64_t step) {
    for (const Span& s : all.all()) {
        const std::string_view name = s.name;
        if (name == "receive") continue;  // the call says more
        const bool bucket = name == "reduce" || name == "gather";
        std::string args = concat("\"step\":", step);
        if (s.index >= 0) args += concat(bucket ? ",\"bucket\":" : ",\"mb\":", s.index);
        if (s.chunk >= 0) args += concat(",\"chunk\":", s.chunk);
        event(lane_of(name, beside), bucket ? "dp" : s.name, s.name, s.begin, s.end, args);
    }
}

// Messages of one sender, receiver and channel arrive in the order sent, and a step's are all received within it: its
// number on its channel is what a send and its receive have in common. In a pipeline that is the
// micro-batch, and the channel the chunk and the direction (engine/parallel/pipeline.h).
void ChromeTrace::calls(const Calls& all, bool beside, std::int64_t step) {
    for (const CallTime& c : all.all()) {
        const Lane lane = lane_of(c, beside);
        if (c.from < 0) {
            event(lane, "collective", concat(c.group, " ", c.what), c.begin, c.end,
                  concat("\"step\":", step, ",\"number\":", c.number, ",\"bytes\":", c.bytes));
            continue;
        }
        const bool send = std::string_view(c.what) == "send";
        const std::int64_t index = messages_[{c.group, c.what, c.from, c.to, c.channel}]++;
        const char* what = std::string_view(c.group) != "pp" ? "keys" : c.channel % 2 ? "gradient" : "activation";
        event(lane, "p2p", concat(c.what, " ", what), c.begin, c.end,
              concat("\"step\":", step, ",\"mb\":", index, ",\"chunk\":", c.channel / 2, ",\"bytes\":", c.bytes,
                     ",\"peer\":", send ? c.to : c.from));
        // The arrow leaves when the send begins and arrives just before the receive ends.
        const double at = send ? clock_.microseconds(c.begin)
                               : std::max(clock_.microseconds(c.begin), clock_.microseconds(c.end) - 0.1);
        line(
            print("{\"ph\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"cat\":\"p2p\",\"name\":\"%s\",\"id\":\"s%lld.%s%"
                  "d.m%lld.%d-%d\"},",
                  send ? "s" : "f\",\"bp\":\"e", rank_, lane, at, what, static_cast<long long>(step), c.group,
                  c.channel, static_cast<long long>(index), c.from, c.to));
    }
}

void ChromeTrace::checkpoint(std::int64_t step, Clock::time_point begin, Clock::time_point end) {
    event(saver, "checkpoint", "write checkpoint", begin, end, concat("\"step\":", step));
}

void ChromeTrace::event(int lane, const char* category, const std::string& name, Clock::time_point begin,
                        Clock::time_point end, const std::string& args) {
    const double ts = clock_.microseconds(begin);
    line(print(
        "{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"cat\":\"%s\",\"name\":\"%s\",\"args\":{%s}},",
        rank_, lane, ts, clock_.microseconds(end) - ts, category, name.c_str(), args.c_str()));
}

void ChromeTrace::line(const std::string& text) {
    if (file_) std::fputs((text + "\n").c_str(), file_);
}

std::string ChromeTrace::close() {
    if (!file_) return {};
    const std::string label = dropped_ > 0 ? concat(dropped_, " events had no room") : "";
    line(print("{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_labels\",\"args\":{\"labels\":\"%s\"}}", rank_,
               label.c_str()));
    line("]}");
    errno = 0;
    const bool whole = std::ferror(file_) == 0 && std::fflush(file_) == 0, closed = std::fclose(file_) == 0;
    file_ = nullptr;
    return whole && closed ? "" : concat(path_.string(), ": ", std::strerror(errno));
}

void merge_traces(std::span<const std::filesystem::path> parts, const std::filesystem::path& merged) {
    nlohmann::json about = nlohmann::json::object();
    AtomicFile out(merged);
    std::string events;
    for (const auto& part : parts) {
        std::ifstream in(part);
        std::string line;
        if (!std::getline(in, line)) continue;
        const auto head = nlohmann::json::parse(line + "]}", nullptr, false);
        if (head.is_object()) about.update(head["otherData"]);
        while (std::getline(in, line)) {
            if (line.ends_with(',')) line.pop_back();
            if (!line.starts_with("{\"ph\"") || !line.ends_with('}')) continue;  // the end, or a line that was cut off
            events += (events.empty() ? "" : ",\n") + line;
        }
    }
    out.write(concat("{\"displayTimeUnit\":\"ms\",\"otherData\":", about.dump(), ",\"traceEvents\":[\n"));
    out.write(events);
    out.write("\n]}\n");
    out.commit();
}

}  // namespace keel
