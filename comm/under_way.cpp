#include "comm/under_way.h"

#include <algorithm>
#include <cstdio>

namespace keel {

UnderWay::Scope::Scope(UnderWay* where, const Call& call) : where_(where) {
    if (!where_) return;
    const std::lock_guard lock(where_->mutex_);
    const auto free = std::ranges::find(where_->entries_, false, &Entry::used);
    if (free == where_->entries_.end()) {
        where_ = nullptr;
        return;
    }
    entry_ = static_cast<std::size_t>(free - where_->entries_.begin());
    *free = {true, call, Clock::now()};
}

UnderWay::Scope::~Scope() {
    if (!where_) return;
    const std::lock_guard lock(where_->mutex_);
    where_->entries_[entry_].used = false;
}

void UnderWay::describe(char* text, std::size_t size) const {
    if (size == 0) return;
    text[0] = '\0';
    std::size_t end = 0;
    const auto add = [&](const char* format, auto... values) {
        if (end + 1 >= size) return;
        const int n = std::snprintf(text + end, size - end, format, values...);
        end = std::min(size - 1, end + static_cast<std::size_t>(std::max(n, 0)));
    };
    const std::lock_guard lock(mutex_);
    for (const Entry& e : entries_) {
        if (!e.used) continue;
        add("%s%s: %s", end > 0 ? "; " : "", e.call.group, e.call.what);
        if (e.call.count > 0) add(" of %lld %s", static_cast<long long>(e.call.count), e.call.unit);
        if (e.call.peer >= 0) add(" with the group's rank %d", e.call.peer);
        if (e.call.number > 0) add(" (#%lld)", static_cast<long long>(e.call.number));
        add(", for %.1f s", std::chrono::duration<double>(Clock::now() - e.since).count());
    }
}

}  // namespace keel
