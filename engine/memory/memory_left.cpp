#include "engine/memory/memory_left.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace keel {
namespace {

namespace fs = std::filesystem;

// The number after `key` in a file of lines "key number"; an empty key takes the first number there is.
std::optional<std::int64_t> number_in(const fs::path& path, const std::string& key = {}) {
    std::ifstream in(path);
    std::string word;
    while (in >> word) {
        if (!key.empty() && word != key) continue;
        if (!key.empty() && !(in >> word)) break;
        if (word.empty() || word.find_first_not_of("0123456789") != std::string::npos || word.size() > 18)
            return std::nullopt;  // "max", or as good as none
        return std::stoll(word);
    }
    return std::nullopt;
}

// What one group may still take. Version 1 and 2 of the interface name their files differently.
std::optional<std::int64_t> left_in_group(const fs::path& group) {
    for (const auto& [limit_file, used_file] : {std::pair{"memory.max", "memory.current"},
                                                std::pair{"memory.limit_in_bytes", "memory.usage_in_bytes"}}) {
        const auto limit = number_in(group / limit_file), used = number_in(group / used_file);
        if (!limit || !used) continue;
        const std::int64_t cached = number_in(group / "memory.stat", "inactive_file").value_or(0) +
                                    number_in(group / "memory.stat", "active_file").value_or(0);
        return std::max<std::int64_t>(0, *limit - std::max<std::int64_t>(0, *used - cached));
    }
    return std::nullopt;
}

}  // namespace

std::optional<std::int64_t> memory_left_bytes(const fs::path& root) {
    std::optional<std::int64_t> least;
    const auto take = [&](const std::optional<std::int64_t>& left) {
        if (left) least = std::min(least.value_or(*left), *left);
    };
    if (const auto kib = number_in(root / "proc/meminfo", "MemAvailable:")) take(*kib * 1024);

    // Lines "number:controllers:path": "0::/job" is version 2, "4:memory:/job" version 1. Every group above has a limit too.
    // Inside of a container the path may be one that only the host sees; the mount's own root is then the container's.
    std::ifstream groups(root / "proc/self/cgroup");
    for (std::string line; std::getline(groups, line);) {
        const auto first = line.find(':'), second = line.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos) continue;
        const std::string controllers = line.substr(first + 1, second - first - 1);
        if (!controllers.empty() && controllers != "memory") continue;
        const fs::path mount = root / (controllers.empty() ? "sys/fs/cgroup" : "sys/fs/cgroup/memory");
        fs::path group = mount;
        take(left_in_group(group));
        for (const fs::path& part : fs::path(line.substr(second + 1)).relative_path()) take(left_in_group(group /= part));
    }
    return least;
}

}  // namespace keel
