// kernels/cudasim/mbarrier.h: mbarriers (PTX ISA, "mbarrier"): objects of 8 bytes in shared memory that count arrivals
// and bytes of bulk copies. A phase is over when both counts are: as many arrivals as it was made for, and as many
// bytes landed as were expected. Then the next phase begins.
//
// The model keeps the counts beside the block and marks the 8 bytes, so that an object which was overwritten is
// noticed.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "kernels/cudasim/findings.h"

namespace sim {

class Block;

class Mbarriers {
public:
    void begin() { all_.clear(); }  // a block's
    // Bytes of a bulk copy have landed.
    void complete(Block& block, const std::uint64_t* barrier, std::int64_t bytes, const Site& site);
    // Bulk copies see the objects that were made so far (fence.mbarrier_init, fence.proxy.async).
    void publish();
    // What a thread waits for at this address; nothing if it is no mbarrier.
    std::string text(const void* address) const;

private:
    friend void mbarrier_init(std::uint64_t*, unsigned, const Site&);
    friend void mbarrier_invalidate(std::uint64_t*, const Site&);
    friend void mbarrier_arrive(std::uint64_t*, std::int64_t, bool, const Site&);
    friend bool mbarrier_wait(std::uint64_t*, unsigned, const Site&);

    struct One {
        const std::uint64_t* at;
        unsigned count;    // arrivals of a phase
        unsigned pending;  // arrivals still to come in this one
        std::int64_t tx;   // bytes expected and not landed; below 0: landed and not expected
        unsigned phase;    // number of phases over
        bool published;
        Site made;
    };
    One* find(const void* address);
    One& checked(Block& block, const std::uint64_t* barrier, const char* what, const Site& site);
    void advance_if_over(Block& block, One& one);

    std::deque<One> all_;  // whose elements stay where they are
};

void mbarrier_init(std::uint64_t* barrier, unsigned count, const Site& site);
void mbarrier_invalidate(std::uint64_t* barrier, const Site& site);
// Expects `bytes` more in this phase, and then arrives, if it is to.
void mbarrier_arrive(std::uint64_t* barrier, std::int64_t bytes, bool arrive, const Site& site);
// Returns true when the phase of this parity is over. mbarrier.try_wait may also return false for no reason; a program
// must call it again then, so nothing is lost by waiting here.
bool mbarrier_wait(std::uint64_t* barrier, unsigned parity, const Site& site);
void fence_mbarrier_init();
void fence_async();  // and what lies in shared memory

}  // namespace sim
