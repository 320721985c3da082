#include "kernels/cudasim/profiler.h"

#include <mutex>
#include <utility>

#include "kernels/cudasim/config.h"

namespace sim {
namespace {

thread_local std::vector<std::string> open_ranges;
std::mutex mutex;
bool on = false;
std::vector<std::string> seen;

}  // namespace

int push_range(const char* name) {
    const InModel in_model;
    open_ranges.push_back(open_ranges.empty() ? name : open_ranges.back() + "/" + name);
    const std::lock_guard lock(mutex);
    if (on) seen.push_back(open_ranges.back());
    return static_cast<int>(open_ranges.size()) - 1;
}

int pop_range() {
    if (open_ranges.empty()) return -1;
    open_ranges.pop_back();
    return static_cast<int>(open_ranges.size());
}

void profile(bool now) {
    const std::lock_guard lock(mutex);
    on = now;
}

std::vector<std::string> take_profile() {
    const std::lock_guard lock(mutex);
    return std::exchange(seen, {});
}

}  // namespace sim
