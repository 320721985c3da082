#include "engine/fault/skip_list.h"

#include <algorithm>
#include <charconv>

#include "kernels/base/error.h"

namespace keel {

SkipList::SkipList(const std::vector<std::string>& steps) {
    for (const std::string& text : steps) {
        const char *at = text.data(), *end = at + text.size();
        std::int64_t first = 0, last = 0;
        auto read = std::from_chars(at, end, first);
        bool good = read.ec == std::errc();
        last = first;
        if (good && read.ptr != end) {
            good = *read.ptr == '-';
            if (good) read = std::from_chars(read.ptr + 1, end, last);
            good = good && read.ec == std::errc() && read.ptr == end;
        }
        if (!good) fail_usage("--fault.skip ", text, ": this is no step, as in 7, and no range of them, as in 10-12");
        if (first < 1) fail_usage("--fault.skip ", text, ": steps begin at 1");
        if (last < first) fail_usage("--fault.skip ", text, ": the range ends before it begins");
        ranges_.emplace_back(first, last);
    }
}

bool SkipList::contains(std::int64_t step) const {
    return std::ranges::any_of(ranges_, [&](const auto& r) { return r.first <= step && step <= r.second; });
}

}  // namespace keel
