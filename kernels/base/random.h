// kernels/base/random.h: counter-based random numbers. Philox4x32-10: Salmon et al. 2011, "Parallel random numbers".
//
// A number is a pure function of (seed, purpose, name, index): never of a rank, a thread or a call order, so the same
// model is initialised and the same data is drawn on any layout. `index` is an element or a sample number.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace keel {

// What a number is for. Values are part of the meaning of a seed: never renumber, only append.
enum class Purpose : std::uint32_t { init = 1, shuffle = 2, blend = 3, sample = 4, test = 5 };

class Random {
public:
    Random(std::uint64_t seed, Purpose purpose, std::string_view name);

    std::array<std::uint32_t, 4> bits(std::uint64_t index) const;
    std::uint64_t bits64(std::uint64_t index) const;
    double uniform(std::uint64_t index) const;  // [0, 1), 53 bits
    double normal(std::uint64_t index) const;   // mean 0, variance 1 (Box-Muller, in double)

private:
    std::uint64_t key_;
    std::uint64_t stream_;
};

}  // namespace keel
