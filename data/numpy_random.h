// data/numpy_random.h: the random numbers and the shuffle of NumPy's RandomState, bit for bit, for orders that other programs
// made with it. keel's own randomness is kernels/base/random.h.
#pragma once

#include <bit>
#include <cstdint>
#include <random>
#include <span>
#include <utility>

namespace keel {

class NumpyRandom {
public:
    explicit NumpyRandom(std::uint32_t seed) : generator_(seed) {}

    std::uint32_t bits() { return static_cast<std::uint32_t>(generator_()); }

    // 0…last, by masked rejection.
    std::uint32_t below_or_equal(std::uint32_t last) {
        if (last == 0) return 0;
        const std::uint32_t mask = ~std::uint32_t{0} >> std::countl_zero(last);
        while (true)
            if (const std::uint32_t value = bits() & mask; value <= last) return value;
    }

    // Fisher and Yates from the end; fewer than 2^32 elements.
    template <class T> void shuffle(std::span<T> all) {
        for (std::size_t i = all.size(); i-- > 1;) std::swap(all[i], all[below_or_equal(static_cast<std::uint32_t>(i))]);
    }

private:
    std::mt19937 generator_;
};

}  // namespace keel
