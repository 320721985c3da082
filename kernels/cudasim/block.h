// kernels/cudasim/block.h: one block of threads, each a fiber, and what they wait for: barriers, warp collectives,
// addresses.
//
// A thread runs until it waits; then another that can go on is chosen by Config::order. Lanes start late: one that ends
// without having waited hands its stack to the next, so kernels without barriers never switch. A warp collective is
// done once, by the last lane to arrive, over the arguments of all that take part; the others lie on their own stacks
// until then. One mechanism thus serves shuffles, votes, ldmatrix and mma.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cudasim/config.h"
#include "kernels/cudasim/counters.h"
#include "kernels/cudasim/edges.h"
#include "kernels/cudasim/fiber.h"
#include "kernels/cudasim/findings.h"
#include "kernels/cudasim/mbarrier.h"
#include "kernels/cudasim/shared.h"
#include "kernels/cudasim/types.h"
#include "kernels/cudasim/wgmma.h"

namespace sim {

constexpr unsigned warp_lanes = 32, max_threads = 1024, all_lanes = 0xffffffffu;

struct Launch {
    cuda::dim3 grid, block;
    std::size_t dynamic_bytes = 0;
    std::size_t shared_limit = Shared::static_limit;  // what a block may have, static and dynamic together
    void (*call)(const void* arguments) = nullptr;  // the kernel, once, as one thread
    const void* arguments = nullptr;
    Site site;
};

// One lane's part in a collective: a struct on its stack, with what it brings and where it wants its result.
struct Part {
    const struct Collective* what;
    unsigned mask;
    Site site;
};
struct Collective {
    const char* name;
    // parts[lane] is null for lanes that take no part; `mask` are those that do.
    void (*run)(Part* const (&parts)[warp_lanes], unsigned mask);
    bool whole_warp = false;  // ldmatrix, mma: undefined unless all 32 lanes take part
};

std::string hex(unsigned mask);

class Block {
public:
    Block();
    ~Block();
    static Block& current();  // of the calling kernel thread
    static bool in_kernel();

    // Runs every thread to its end, or reports why that cannot be and returns false. What the threads did happens
    // before an acquire of `over` (sanitizers.h), and not before the next block: blocks of a launch are ordered by
    // nothing.
    bool run(const Launch& launch, cuda::uint3 index, const Config& config, std::uint64_t seed, const void* over);

    // ---- called by threads ----
    // Waits at barrier `id` until `count` threads have arrived (0: all that have not left). Returns how many of those
    // that waited brought true.
    unsigned barrier(unsigned id, unsigned count, const Site& site, bool vote = false);
    void arrive(unsigned id, unsigned count, const Site& site);  // counts, and does not wait
    void join(Part& part);
    void wait_at(const void* address, const char* what, const Site& site);  // until somebody wakes it
    void wake(const void* address);
    void yield(const Site& site);
    [[noreturn]] void stop(Kind kind, const std::string& text);  // reports, and ends the launch
    [[noreturn]] void stop_for_shared(std::size_t bytes, const char* name, const Site& site);  // an array finds no room

    Shared& shared() { return shared_; }
    Mbarriers& mbarriers() { return mbarriers_; }
    Products& products() { return products_[running_ / warp_lanes]; }
    std::size_t shared_limit() const { return launch_->shared_limit; }
    Counters& counters() { return counters_; }
    Edges& edges() { return edges_; }
    const Config& config() const { return config_; }
    unsigned thread() const { return running_; }  // linear number in the block
    unsigned lane() const { return running_ % warp_lanes; }
    unsigned alive(unsigned warp) const { return warps_[warp].alive; }
    std::string who() const;         // "thread 5 of block 2"
    std::string block_text() const;  // "block 2 of the launch at …"
    std::uint64_t random();          // seeded

    // Copies the running thread has started and nobody waited for; async.cpp owns the meaning.
    struct Copy {
        void* to;
        const void* from;
        unsigned bytes, zeros;
        Site site;
    };
    struct Copies {
        std::vector<Copy> queue;          // oldest first
        std::vector<std::size_t> groups;  // lengths of the committed groups, oldest first
        std::size_t open = 0;             // copies after the last commit
    };
    Copies& copies() { return lanes_[running_].copies; }

    // Work that nobody's registers take part in (bulk copies), and who started it.
    struct Deferred {
        std::function<void()> run;
        Site site;
    };
    // Of the whole block: done when nothing else can run.
    std::vector<Deferred>& deferred() { return deferred_; }
    // Of the running thread: done when it waits for its group; bulk.cpp owns the meaning.
    struct Stores {
        std::vector<Deferred> queue;      // oldest first
        std::vector<std::size_t> groups;  // where each committed group ends in the queue
    };
    Stores& stores() { return lanes_[running_].stores; }

private:
    enum class Waits : std::uint8_t { nothing, barrier, collective, address, over };
    struct Lane {
        Fiber* fiber;
        Waits waits;
        bool vote;
        unsigned barrier, votes, passed;
        Site site;
        Part* part;
        const void* address;
        const char* what;
        cuda::uint3 index;
        Copies copies;
        Stores stores;
    };
    struct Warp {
        unsigned runnable, alive, parked, last;
    };
    struct Barrier {
        unsigned arrived = 0, count = 0;
        std::array<unsigned, max_threads / warp_lanes> waiting{};  // lanes, per warp
        unsigned ghosts = 0;                                       // arrived without waiting
    };

    static void trampoline();
    void prepare(const Launch& launch, cuda::uint3 index);
    void finish();
    bool leave();       // the running thread is over; true if its stack goes on as another
    void reschedule();  // the running thread waits, or lets the order decide
    int pick();
    bool only_slow_can_run() const;
    int pick_or_stop();
    void set_running(unsigned lane);
    void make_runnable(unsigned lane);
    void complete_if_full(unsigned id);
    bool collective_ready(unsigned lane, unsigned& group) const;
    void do_collective(unsigned warp, unsigned group);
    void check_copies_over();
    void check_stores_over();
    void check_products_over(unsigned warp);
    void check_warpgroups();
    void land_one();  // of deferred_
    std::string waiters() const;
    std::string ranges(const std::vector<bool>& chosen) const;  // "0-15, 32"
    template <class Which>
    std::string ranges_of(Which which) const {
        std::vector<bool> chosen(threads_);
        for (unsigned i = 0; i < threads_; ++i) chosen[i] = which(lanes_[i]);
        return ranges(chosen);
    }

    Config config_;
    std::uint64_t random_ = 0;
    const Launch* launch_ = nullptr;
    const void* over_ = nullptr;
    cuda::uint3 index_{};
    unsigned threads_ = 0, warp_count_ = 0, alive_ = 0, running_ = 0;
    unsigned runnable_warps_ = 0, idle_yields_ = 0;
    unsigned slow_ = 0, slow_turns_ = 0;  // a thread, for Order::random_lanes
    bool stopped_ = false, ignoring_races_ = false;
    unsigned blocks_run_ = 0;
    Fiber main_;
    std::vector<Lane> lanes_;
    std::array<Warp, max_threads / warp_lanes> warps_{};
    std::array<Barrier, 16> barriers_{};
    std::vector<Deferred> deferred_;
    // To the thread sanitizer a fiber is a thread, which knows what it did in an earlier block, and tells the others at a barrier.
    // There blocks take their fibers from several sets in turn, so that none follows but the one that had the same set.
#if SIM_TSAN
    static constexpr unsigned fiber_sets = 3;
#else
    static constexpr unsigned fiber_sets = 1;
#endif
    std::vector<std::unique_ptr<Fiber>>& fibers() { return fibers_[blocks_run_ % fiber_sets]; }
    std::array<std::vector<std::unique_ptr<Fiber>>, fiber_sets> fibers_;
    std::vector<Fiber*> free_;
    Shared shared_;
    Mbarriers mbarriers_;
    std::array<Products, max_threads / warp_lanes> products_;
    Edges edges_;
    Counters counters_;
};

}  // namespace sim
