// engine/fault/skip_list.h: steps that a run passes over (--fault.skip): their data is consumed, and nothing else happens.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace keel {

class SkipList {
public:
    // "7" or "10-12", counted from 1. Refuses anything else, by name.
    explicit SkipList(const std::vector<std::string>& steps);
    bool contains(std::int64_t step) const;

private:
    std::vector<std::pair<std::int64_t, std::int64_t>> ranges_;  // [first, last]
};

}  // namespace keel
