// engine/memory/plan.h: every byte of a step, reserved by name and lifetime before anything is allocated.
//
// Time is a row of named moments, the order in which the executor works (engine/model/timeline.h). A reservation lives
// from its first to its last moment; two that never live together may share memory. `assign` gives each an offset:
// largest first, into the lowest gap where nobody it meets in time lies. The peak is then known to the byte, and an
// Arena of exactly that size holds everything. docs/memory.md works one example.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "kernels/base/view.h"

namespace keel {

// First and last moment, both included.
struct Life {
    int first, last;
    static constexpr int forever = 1 << 30;
    static Life always() { return {0, forever}; }
};

enum class Use : std::uint8_t { parameter, gradient, optimizer, saved, temporary, communication, cache, products };
const char* name(Use use);

// A reservation's handle; Arena::view turns it into memory.
template <class T> struct Reserved {
    int index = -1;
    std::array<std::int64_t, 4> dims{};
    int rank = 0;
};

class MemoryPlan {
public:
    static constexpr std::int64_t alignment = 256;  // of cuBLASLt's workspace; and cache lines, vectors of AVX-512

    struct Item {
        std::string name;
        Use use;
        Life life;
        std::int64_t bytes;   // as asked for
        std::int64_t offset;  // set by assign
    };

    // Moments are numbered from 0 in the order they are named.
    int moment(std::string name);

    template <class T>
    Reserved<T> reserve(std::string name, std::initializer_list<std::int64_t> dims, Life life, Use use) {
        Reserved<T> r;
        std::int64_t n = 1;
        for (const std::int64_t d : dims) {
            r.dims[static_cast<std::size_t>(r.rank++)] = d;
            if (d < 0 || __builtin_mul_overflow(n, d, &n)) fail("memory plan: ", name, " is too large to count");
        }
        if (__builtin_mul_overflow(n, static_cast<std::int64_t>(sizeof(T)), &n))
            fail("memory plan: ", name, " is too large to count");
        r.index = add(std::move(name), n, life, use);
        return r;
    }

    void assign();

    std::int64_t peak_bytes() const { return peak_bytes_; }     // what the Arena allocates
    std::int64_t live_bytes(int moment) const;                  // sum of what lives then; no packing can go below its maximum
    int peak_moment() const;                                    // where that maximum is
    std::int64_t live_bytes(int moment, Use use) const;
    const std::vector<Item>& items() const { return items_; }
    const std::vector<std::string>& moments() const { return moments_; }

    // Who makes the peak, at which moment: one line per use, then the largest reservations alive at the peak.
    std::string table() const;

private:
    int add(std::string name, std::int64_t bytes, Life life, Use use);

    std::vector<Item> items_;
    std::vector<std::string> moments_;
    std::int64_t peak_bytes_ = 0, all_bytes_ = 0;
};

// "1.25 GiB"; exact bytes stand beside it where they matter.
std::string human_bytes(std::int64_t bytes);

}  // namespace keel
