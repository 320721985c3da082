#include "kernels/base/random.h"

#include <cmath>
#include <numbers>

namespace keel {
namespace {

// FNV-1a: names are short, and the value is frozen by the meaning of a seed.
std::uint64_t hash_name(std::string_view name) {
    std::uint64_t h = 0xcbf29ce484222325u;
    for (const char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    return h;
}

}  // namespace

Random::Random(std::uint64_t seed, Purpose purpose, std::string_view name)
    : key_(seed), stream_(hash_name(name) ^ (static_cast<std::uint64_t>(purpose) << 56)) {}

std::array<std::uint32_t, 4> Random::bits(std::uint64_t index) const {
    std::array<std::uint32_t, 4> x{static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
                                   static_cast<std::uint32_t>(stream_), static_cast<std::uint32_t>(stream_ >> 32)};
    auto k0 = static_cast<std::uint32_t>(key_), k1 = static_cast<std::uint32_t>(key_ >> 32);
    for (int round = 0; round < 10; ++round) {
        const std::uint64_t p0 = 0xD2511F53ull * x[0], p1 = 0xCD9E8D57ull * x[2];
        x = {static_cast<std::uint32_t>(p1 >> 32) ^ x[1] ^ k0, static_cast<std::uint32_t>(p1),
             static_cast<std::uint32_t>(p0 >> 32) ^ x[3] ^ k1, static_cast<std::uint32_t>(p0)};
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return x;
}

std::uint64_t Random::bits64(std::uint64_t index) const {
    const auto x = bits(index);
    return x[0] | static_cast<std::uint64_t>(x[1]) << 32;
}

double Random::uniform(std::uint64_t index) const { return static_cast<double>(bits64(index) >> 11) * 0x1p-53; }

double Random::normal(std::uint64_t index) const {
    const auto x = bits(index);
    const std::uint64_t a = x[0] | static_cast<std::uint64_t>(x[1]) << 32;
    const std::uint64_t b = x[2] | static_cast<std::uint64_t>(x[3]) << 32;
    const double radius = std::sqrt(-2.0 * std::log((static_cast<double>(a >> 11) + 1.0) * 0x1p-53));
    return radius * std::cos(2.0 * std::numbers::pi * (static_cast<double>(b >> 11) * 0x1p-53));
}

}  // namespace keel
