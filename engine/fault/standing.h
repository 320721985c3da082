// engine/fault/standing.h: where a rank stands: written by its loop, read by the threads that watch it.
//
// A sign of life is whatever the loop says here: it begins a step, a micro-batch, an evaluation, a save. Nothing allocates.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "comm/world.h"
#include "engine/observe/ledger.h"

namespace keel {

class Standing {
public:
    explicit Standing(const World& world) : world_(world) {}  // at "start-up"; the world outlives it

    // The loop begins `what` (a literal), in or after step `step`.
    void enter(const char* what, std::int64_t step) {
        what_.store(what), step_.store(step), micro_batch_.store(-1);
        since_.store(Clock::now());
    }
    void micro_batch(std::int64_t index, std::int64_t of) {
        micro_batch_.store(index), micro_batches_.store(of);
        since_.store(Clock::now());
    }

    const char* what() const { return what_.load(); }
    std::int64_t step() const { return step_.load(); }  // 0 until the first began
    std::int64_t micro_batch() const { return micro_batch_.load(); }  // -1: in none
    bool started() const { return step() > 0; }
    Clock::time_point since() const { return since_.load(); }  // the last sign of life
    const World& world() const { return world_; }

    // "step 17, micro-batch 3 of 8; in dp_cp group of ranks 0,1: all_reduce of 64 float32 (#12), for 31.0 s", ends with '\0'.
    void describe(char* text, std::size_t size) const;

private:
    const World& world_;
    std::atomic<const char*> what_{"start-up"};
    std::atomic<std::int64_t> step_{0}, micro_batch_{-1}, micro_batches_{0};
    std::atomic<Clock::time_point> since_{Clock::now()};
};

}  // namespace keel
