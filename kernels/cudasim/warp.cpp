#include "kernels/cudasim/warp.h"

namespace sim {
namespace {

// __syncwarp orders memory between the lanes; shuffles and votes do not, and so tell the thread sanitizer nothing.
unsigned edge_of(const Part& part) { return Edges::of_warp(Block::current().thread() / warp_lanes, part.mask); }
void run_sync(Part* const (&parts)[warp_lanes], unsigned mask) {
    Block::current().edges().next(edge_of(*parts[std::countr_zero(mask)]));
}
constexpr Collective sync_collective{"__syncwarp", &run_sync};

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
    const void* const edge = block.edges().now(edge_of(part));
    happens_before(edge);
    block.join(part);
    happens_after(edge);
}

}  // namespace sim
