#include "comm/world.h"

#include <unistd.h>

#include <algorithm>
#include <numeric>

namespace keel {

const std::string& World::host() const {
    static const std::string name = [] {
        char text[256] = {};
        return std::string(gethostname(text, sizeof text - 1) == 0 && text[0] ? text : "localhost");
    }();
    return name;
}

std::unique_ptr<Group> World::group(const std::string& name, std::span<const int> members) {
    std::vector<int> sorted(members.begin(), members.end());
    std::sort(sorted.begin(), sorted.end());
    const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
    if (sorted.empty()) fail("group ", name, ": it has no members");
    if (twice != sorted.end()) fail("group ", name, ": rank ", *twice, " is a member twice");
    if (sorted.front() < 0 || sorted.back() >= size())
        fail("group ", name, ": rank ", sorted.front() < 0 ? sorted.front() : sorted.back(), " is not in 0…",
             size() - 1);
    const auto self = std::find(members.begin(), members.end(), rank());
    if (self == members.end())
        fail("group ", name, " of ", rank_list(members), ": rank ", rank(), " is no member, and must not make it");
    auto made = make_group(name, {members.begin(), members.end()}, static_cast<int>(self - members.begin()));
    made->note_in(&under_way_);
    return made;
}

std::unique_ptr<Group> World::everyone(const std::string& name) {
    std::vector<int> all(static_cast<std::size_t>(size()));
    std::iota(all.begin(), all.end(), 0);
    return group(name, all);
}

}  // namespace keel
