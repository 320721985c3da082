// kernels/cudasim/config.h: how a simulated GPU behaves. Every choice here is one a real GPU is free to make, so a
// correct program gives the same result under all of them; sim::sweep (sweep.h) tries many.
#pragma once

#include <cstdint>
#include <string>

namespace sim {

// Which runnable thread goes on when one blocks. A thread runs until it waits: there is no preemption.
enum class Order : std::uint8_t {
    warps_forward,   // a warp as far as it gets, then the next one
    warps_backward,  // the same from the last warp and lane to the first
    lanes_forward,   // a lane of each warp in turn
    lanes_backward,
    random_lanes,  // any runnable lane of any warp, but for one thread of a block that goes seldom, or when nobody else can
    random_warps,  // any warp as far as it gets, its lanes in order
};
constexpr int orders = 6;

// What memory holds before it is written: a NaN in every floating type, or a large finite number. Two, because
// fmaxf(NaN, x) is x: a maximum hides the first, and the second then shows.
enum class Poison : std::uint8_t { nan, finite };

// When asynchronous copies land: at once (a reader of the old contents loses them) or only when waited for (a reader
// who does not wait finds poison).
enum class Async : std::uint8_t { early, late };

// When operations of a stream happen: at the call, or later, in any order that streams and events allow.
enum class Streams : std::uint8_t { immediate, deferred };

struct Config {
    Order order = Order::warps_forward;
    Poison poison = Poison::nan;
    Async async = Async::late;
    Streams streams = Streams::immediate;
    std::uint64_t seed = 1;       // of everything random
    int workers = 1;              // threads of the host that run blocks; 0 takes every processor
    bool shuffle_blocks = false;  // blocks in a seeded order, else by number
    bool early_exit = false;      // threads may leave before others pass a barrier: legal, and often a mistake
    bool host_faults = false;     // code of the host that touches memory of the device dies of it, as on a machine with one
    int patience_ms = 20000;      // a stream that can do nothing for so long is a deadlock
    bool print = false;           // findings go to stderr as they are made, too

    std::string text() const;  // "random_lanes nan late immediate seed 3"
};

Config config();
void configure(const Config& config);

// While one lives, the calling thread works for the model: what it allocates meanwhile a GPU's runtime would not. For tests
// that count the allocations of a program.
class InModel {
public:
    InModel() { ++depth(); }
    ~InModel() { --depth(); }
    InModel(const InModel&) = delete;
    InModel& operator=(const InModel&) = delete;
    static bool here() { return depth() > 0; }

private:
    static int& depth() {
        thread_local int value = 0;
        return value;
    }
};

}  // namespace sim
