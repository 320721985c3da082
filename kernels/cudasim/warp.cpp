#include "kernels/cudasim/warp.h"

namespace sim {
namespace {

// __syncwarp orders memory between the lanes; shuffles and votes do not, and so tell the thread sanitizer nothing.
void run_sync(Part* const (&)[warp_lanes], unsigned) {}
constexpr Collective sync_collective{"__syncwarp", &run_sync};
thread_local char warp_edges[max_threads / warp_lanes][2];

}  // namespace

void report_inactive(const Part& part, unsigned lane, unsigned source) {
    Block& block = Block::current();
    report(Kind::inactive_lane, "lane " + std::to_string(lane) + " of the warp of " + block.who() + " reads lane " +
                                    std::to_string(source) + ", which takes no part in " + part.what->name +
                                    " with mask " + hex(part.mask) + " at " + where(part.site));
}

void run_ballot(Part* const (&parts)[warp_lanes], unsigned mask) {
    unsigned result = 0;
    for_lanes(mask, [&](unsigned lane) {
        if (static_cast<Ballot&>(*parts[lane]).value) result |= 1u << lane;
    });
    for_lanes(mask, [&](unsigned lane) { static_cast<Ballot&>(*parts[lane]).result = result; });
}

void sync_warp(unsigned mask, const Site& site) {
    Part part{&sync_collective, mask, site};
    Block& block = Block::current();
    const void* const edge = &warp_edges[block.thread() / warp_lanes];
    happens_before(edge);
    block.join(part);
    happens_after(edge);
}

}  // namespace sim
