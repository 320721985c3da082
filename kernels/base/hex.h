// kernels/base/hex.h: a 64-bit hash as people compare it.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

namespace keel {

// Sixteen digits, the leading zeros too.
inline std::string hex(std::uint64_t value) {
    char text[17];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
    return text;
}

}  // namespace keel
