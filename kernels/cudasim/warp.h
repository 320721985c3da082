// kernels/cudasim/warp.h: CUDA's warp functions, each a collective of block.h: shuffles, votes, match, redux,
// __syncwarp.
#pragma once

#include <bit>
#include <cstring>

#include "kernels/cudasim/block.h"
#include "kernels/cudasim/sanitizers.h"

namespace sim {

// The lanes of `mask`, one after another.
template <class F>
void for_lanes(unsigned mask, F&& f) {
    for (; mask; mask &= mask - 1) f(static_cast<unsigned>(std::countr_zero(mask)));
}

enum class Source : unsigned char { index, up, down, exclusive_or };
template <class T>
struct ShufflePart : Part {
    T value, result;
    unsigned operand, width;
};
// A lane that the source does not reach keeps its own value; one that reads a lane which takes no part gets poison.
void report_inactive(const Part& part, unsigned lane, unsigned source);

template <class T, Source how>
void run_shuffle(Part* const (&parts)[warp_lanes], unsigned mask) {
    for_lanes(mask, [&](unsigned lane) {
        auto& part = static_cast<ShufflePart<T>&>(*parts[lane]);
        const unsigned width = part.width, base = lane & ~(width - 1);
        unsigned source = lane;
        switch (how) {
            case Source::index:
                source = base + (part.operand & (width - 1));
                break;
            case Source::up:
                source = lane - base >= part.operand ? lane - part.operand : lane;
                break;
            case Source::down:
                source = lane - base + part.operand < width ? lane + part.operand : lane;
                break;
            case Source::exclusive_or:
                // A lane of an earlier segment may be read, one of a later segment may not.
                source = (lane ^ part.operand) < base + width ? (lane ^ part.operand) : lane;
                break;
        }
        if (source < warp_lanes && parts[source]) {
            part.result = static_cast<ShufflePart<T>&>(*parts[source]).value;
        } else {
            report_inactive(part, lane, source);
            fill_poison(static_cast<void*>(&part.result), sizeof(T), Block::current().config().poison);
        }
    });
}

template <Source how>
constexpr const char* shuffle_name = how == Source::index  ? "__shfl_sync"
                                     : how == Source::up   ? "__shfl_up_sync"
                                     : how == Source::down ? "__shfl_down_sync"
                                                           : "__shfl_xor_sync";
template <class T, Source how>
constexpr Collective shuffle_of{shuffle_name<how>, &run_shuffle<T, how>};

template <Source how, class T>
T shuffle(unsigned mask, T value, unsigned operand, int width, const Site& site) {
    static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8, "a shuffle moves 2, 4 or 8 bytes");
    ShufflePart<T> part{{&shuffle_of<T, how>, mask, site}, value, value, operand, static_cast<unsigned>(width)};
    Block& block = Block::current();
    if (width < 1 || width > 32 || (width & (width - 1)) != 0)
        block.stop(Kind::warp_mismatch, std::string(shuffle_name<how>) + " at " + where(site) + " has width " +
                                            std::to_string(width) + ", which is no power of two up to 32");
    block.join(part);
    return part.result;
}

template <class T, class R>
struct VotePart : Part {
    T value;
    R result;
};
using Ballot = VotePart<bool, unsigned>;
void run_ballot(Part* const (&parts)[warp_lanes], unsigned mask);
constexpr Collective ballot_collective{"a vote", &run_ballot};
inline unsigned ballot(unsigned mask, bool value, const Site& site) {
    Ballot part{{&ballot_collective, mask, site}, value, 0};
    Block::current().join(part);
    return part.result;
}

template <class T>
void run_match(Part* const (&parts)[warp_lanes], unsigned mask) {
    for_lanes(mask, [&](unsigned lane) {
        auto& part = static_cast<VotePart<T, unsigned>&>(*parts[lane]);
        part.result = 0;
        for_lanes(mask, [&](unsigned other) {
            if (std::memcmp(&static_cast<VotePart<T, unsigned>&>(*parts[other]).value, &part.value, sizeof(T)) == 0)
                part.result |= 1u << other;
        });
    });
}
template <class T>
constexpr Collective match_collective{"__match_any_sync", &run_match<T>};

struct Sum {
    template <class T>
    static T of(T a, T b) {
        return static_cast<T>(a + b);
    }
};
struct Min {
    template <class T>
    static T of(T a, T b) {
        return a < b ? a : b;
    }
};
struct Max {
    template <class T>
    static T of(T a, T b) {
        return a < b ? b : a;
    }
};
struct And {
    template <class T>
    static T of(T a, T b) {
        return a & b;
    }
};
struct Or {
    template <class T>
    static T of(T a, T b) {
        return a | b;
    }
};
struct Xor {
    template <class T>
    static T of(T a, T b) {
        return a ^ b;
    }
};
template <class T, class F>
void run_redux(Part* const (&parts)[warp_lanes], unsigned mask) {
    T total{};
    bool first = true;
    for_lanes(mask, [&](unsigned lane) {
        const T value = static_cast<VotePart<T, T>&>(*parts[lane]).value;
        total = first ? value : F::template of<T>(total, value);
        first = false;
    });
    for_lanes(mask, [&](unsigned lane) { static_cast<VotePart<T, T>&>(*parts[lane]).result = total; });
}
template <class T, class F>
constexpr Collective redux_collective{"__reduce_sync", &run_redux<T, F>};
template <class F, class T>
T redux(unsigned mask, T value, const Site& site) {
    VotePart<T, T> part{{&redux_collective<T, F>, mask, site}, value, value};
    Block::current().join(part);
    return part.result;
}

void sync_warp(unsigned mask, const Site& site);

namespace cuda {

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, Site site = Site::current()) {
    return shuffle<Source::index>(mask, value, static_cast<unsigned>(source), width, site);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, Site site = Site::current()) {
    return shuffle<Source::up>(mask, value, delta, width, site);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, Site site = Site::current()) {
    return shuffle<Source::down>(mask, value, delta, width, site);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, Site site = Site::current()) {
    return shuffle<Source::exclusive_or>(mask, value, static_cast<unsigned>(lanes), width, site);
}
inline unsigned __ballot_sync(unsigned mask, int value, Site site = Site::current()) {
    return ballot(mask, value != 0, site);
}
inline int __any_sync(unsigned mask, int value, Site site = Site::current()) {
    return ballot(mask, value != 0, site) != 0;
}
inline int __all_sync(unsigned mask, int value, Site site = Site::current()) {
    return ballot(mask, value == 0, site) == 0;
}
template <class T>
unsigned __match_any_sync(unsigned mask, T value, Site site = Site::current()) {
    VotePart<T, unsigned> part{{&match_collective<T>, mask, site}, value, 0};
    Block::current().join(part);
    return part.result;
}
template <class T>
T __reduce_add_sync(unsigned mask, T v, Site site = Site::current()) {
    return redux<Sum>(mask, v, site);
}
template <class T>
T __reduce_min_sync(unsigned mask, T v, Site site = Site::current()) {
    return redux<Min>(mask, v, site);
}
template <class T>
T __reduce_max_sync(unsigned mask, T v, Site site = Site::current()) {
    return redux<Max>(mask, v, site);
}
template <class T>
T __reduce_and_sync(unsigned mask, T v, Site site = Site::current()) {
    return redux<And>(mask, v, site);
}
template <class T>
T __reduce_or_sync(unsigned mask, T v, Site site = Site::current()) {
    return redux<Or>(mask, v, site);
}
template <class T>
T __reduce_xor_sync(unsigned mask, T v, Site site = Site::current()) {
    return redux<Xor>(mask, v, site);
}
inline void __syncwarp(unsigned mask = all_lanes, Site site = Site::current()) { sync_warp(mask, site); }
inline unsigned __activemask() { return Block::current().alive(Block::current().thread() / warp_lanes); }

inline void __syncthreads(Site site = Site::current()) { Block::current().barrier(0, 0, site); }
inline int __syncthreads_or(int value, Site site = Site::current()) {
    return Block::current().barrier(0, 0, site, value != 0) != 0;
}
inline int __syncthreads_and(int value, Site site = Site::current()) {
    return Block::current().barrier(0, 0, site, value == 0) == 0;
}
inline int __syncthreads_count(int value, Site site = Site::current()) {
    return static_cast<int>(Block::current().barrier(0, 0, site, value != 0));
}
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
inline void __nanosleep(unsigned, Site site = Site::current()) { Block::current().yield(site); }
[[noreturn]] inline void __trap(Site site = Site::current()) {
    Block& block = Block::current();
    block.stop(Kind::bad_launch, block.who() + " called __trap at " + where(site));
}

}  // namespace cuda
}  // namespace sim
