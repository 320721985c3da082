// kernels/cudasim/edges.h: the places by which the thread sanitizer is told what a barrier or a __syncwarp orders: who arrives
// releases one, who goes on acquires it.
//
// A place has two addresses in turn: a thread that is already at the next barrier must not order what it did since for those that
// are still leaving the last one. And none outlives a block: two blocks do not meet at one address (the sanitizer forgets it when it
// is unmapped). Without the sanitizer nothing here does anything.
#pragma once

#include <sys/mman.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <new>

#include "kernels/cudasim/fiber.h"

namespace sim {

class Edges {
public:
    static unsigned of_barrier(unsigned id) { return id; }  // 0 … 15
    // Masks of one warp that share no lane differ in their lowest.
    static unsigned of_warp(unsigned warp, unsigned mask) {
        return 16 + warp * 32 + static_cast<unsigned>(std::countr_zero(mask));
    }

#if SIM_TSAN
    Edges() = default;
    Edges(const Edges&) = delete;
    Edges& operator=(const Edges&) = delete;
    ~Edges() { forget(); }
    void begin() {  // of a block
        forget();
        void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) throw std::bad_alloc();
        memory_ = static_cast<std::byte*>(memory);
        turns_ = {};
    }
    const void* now(unsigned place) const { return memory_ + 2 * place + turns_[place] % 2; }
    void next(unsigned place) { ++turns_[place]; }

private:
    static constexpr unsigned places = 16 + 32 * 32;
    static constexpr std::size_t bytes = 4096;
    static_assert(2 * places <= bytes);
    void forget() {
        if (memory_) munmap(memory_, bytes);
    }
    std::byte* memory_ = nullptr;
    std::array<std::uint8_t, places> turns_{};
#else
    void begin() {}
    const void* now(unsigned) const { return nullptr; }
    void next(unsigned) {}
#endif
};

}  // namespace sim
