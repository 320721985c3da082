#include "kernels/cudasim/findings.h"

#include <atomic>
#include <cstdio>
#include <mutex>
#include <utility>

#include "kernels/cudasim/config.h"
#include "kernels/cudasim/counters.h"

namespace sim {
namespace {

// A mistake in a loop says the same thing a thousand times: a report with the same text is kept once, and there is a
// limit.
constexpr std::size_t max_findings = 64;

std::mutex mutex;
std::vector<Finding> findings;
std::atomic<bool> launch_broken{false};
Config current;
Counters counters;

constexpr std::string_view order_names[] = {"warps_forward",  "warps_backward", "lanes_forward",
                                            "lanes_backward", "random_lanes",   "random_warps"};

}  // namespace

Config config() {
    const std::lock_guard lock(mutex);
    return current;
}

void configure(const Config& config) {
    const std::lock_guard lock(mutex);
    current = config;
}

std::string Config::text() const {
    std::string text(order_names[static_cast<int>(order)]);
    text += poison == Poison::nan ? " nan" : " finite";
    text += async == Async::early ? " early" : " late";
    text += streams == Streams::immediate ? " immediate" : " deferred";
    text += shuffle_blocks ? " shuffled" : " in-order";
    return text + " seed " + std::to_string(seed);
}

std::string_view name(Kind kind) {
    switch (kind) {
        case Kind::divergence:
            return "divergence";
        case Kind::barrier_count:
            return "barrier count";
        case Kind::deadlock:
            return "deadlock";
        case Kind::warp_mismatch:
            return "warp mismatch";
        case Kind::inactive_lane:
            return "inactive lane";
        case Kind::out_of_bounds:
            return "out of bounds";
        case Kind::misaligned:
            return "misaligned";
        case Kind::missing_wait:
            return "missing wait";
        case Kind::missing_fence:
            return "missing fence";
        case Kind::mbarrier:
            return "mbarrier";
        case Kind::bad_launch:
            return "bad launch";
        case Kind::bad_copy:
            return "bad copy";
        case Kind::bad_call:
            return "bad call";
        case Kind::disagreement:
            return "disagreement";
        case Kind::nondeterminism:
            return "nondeterminism";
    }
    return "?";
}

void report(Kind kind, std::string text) {
    const std::lock_guard lock(mutex);
    for (const Finding& f : findings)
        if (f.kind == kind && f.text == text) return;
    if (findings.size() >= max_findings) return;
    if (current.print) {
        const std::string_view kind_name = name(kind);
        std::fprintf(stderr, "cudasim: %.*s: %s\n", static_cast<int>(kind_name.size()), kind_name.data(), text.c_str());
    }
    findings.push_back({kind, std::move(text)});
}

std::vector<Finding> take_findings() {
    launch_broken = false;
    const std::lock_guard lock(mutex);
    return std::exchange(findings, {});
}

Counters& Counters::operator+=(const Counters& other) {
    launches += other.launches;
    allocations += other.allocations;
    blocks += other.blocks;
    barriers += other.barriers;
    mma += other.mma;
    wgmma += other.wgmma;
    ldmatrix += other.ldmatrix;
    ldmatrix_conflicts += other.ldmatrix_conflicts;
    copied_bytes += other.copied_bytes;
    bulk_copies += other.bulk_copies;
    bulk_bytes += other.bulk_bytes;
    return *this;
}
Counters take_counters() {
    const std::lock_guard lock(mutex);
    return std::exchange(counters, {});
}
void add_counters(const Counters& more) {
    const std::lock_guard lock(mutex);
    counters += more;
}

bool broken() { return launch_broken; }
void mark_broken() { launch_broken = true; }

std::string where(const Site& site) {
    std::string_view file = site.file_name();
    for (const std::string_view root : {"/kernels/", "/tests/"})
        if (const auto at = file.rfind(root); at != std::string_view::npos) {
            file.remove_prefix(at + 1);
            break;
        }
    // "void keel::{anonymous}::kernel(float*, int) [with T = float]" reads better as "kernel [with T = float]".
    std::string_view function = site.function_name();
    std::string_view with;
    if (const auto at = function.find(" [with"); at != std::string_view::npos) {
        with = function.substr(at);
        function = function.substr(0, at);
    }
    if (const auto at = function.find('('); at != std::string_view::npos) function = function.substr(0, at);
    if (const auto at = function.find_last_of(" :"); at != std::string_view::npos) function.remove_prefix(at + 1);
    std::string text(file);
    text += ":" + std::to_string(site.line());
    if (!function.empty()) text.append(" (").append(function).append(with).append(")");
    return text;
}

}  // namespace sim
