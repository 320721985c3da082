// kernels/cudasim/counters.h: what kernels did, counted: for tests that say how much work a kernel should be.
#pragma once

#include <cstdint>

namespace sim {

struct Counters {
    std::uint64_t launches = 0, blocks = 0;
    std::uint64_t allocations = 0;  // of device and pinned memory
    std::uint64_t barriers = 0;  // completed, of any number
    std::uint64_t mma = 0;       // m16n8k16
    std::uint64_t wgmma = 0;     // m64nNk16, of a whole warpgroup
    std::uint64_t ldmatrix = 0;  // matrices of 8 x 8 loaded
    std::uint64_t ldmatrix_conflicts =
        0;  // extra passes over the banks: 0 if the 8 rows of every matrix lie in different ones
    std::uint64_t copied_bytes = 0;  // by cp.async
    std::uint64_t bulk_copies = 0;   // of boxes of tensors, either way
    std::uint64_t bulk_bytes = 0;    // by them

    Counters& operator+=(const Counters& other);
};
Counters take_counters();  // since they were last taken, of every thread of the host
void add_counters(const Counters& counters);

}  // namespace sim
