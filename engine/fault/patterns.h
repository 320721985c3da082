// engine/fault/patterns.h: what the self-tests write to memory and must read again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace keel {

constexpr std::size_t memory_patterns = 3;

// Alternating bits, their opposite, and a word that depends on its place, so that cells that answer for one another differ.
constexpr std::uint64_t pattern_word(std::size_t pattern, std::int64_t i) {
    constexpr std::array<std::uint64_t, memory_patterns> words{0x5555555555555555, 0xaaaaaaaaaaaaaaaa, 0x9e3779b97f4a7c15};
    return pattern == 2 ? words[2] * static_cast<std::uint64_t>(i + 1) : words[pattern];
}

}  // namespace keel
