// kernels/cudasim/findings.h: what the model has to say about a program: the kind of mistake, where, which threads.
//
// Findings are collected until taken. Those after which a block cannot go on (a deadlock, lanes that wait for different
// things) end the launch; later runtime calls then return cudaErrorLaunchFailure until the findings are taken.
#pragma once

#include <cstdint>
#include <source_location>
#include <string>
#include <string_view>
#include <vector>

namespace sim {

using Site = std::source_location;  // of a call in a kernel: file, line, and the kernel's own name

enum class Kind : std::uint8_t {
    divergence,     // one barrier reached from different lines
    barrier_count,  // threads of a block that passed a barrier a different number of times
    deadlock,       // nothing in the block can go on
    warp_mismatch,  // lanes that name each other in masks of different operations
    inactive_lane,  // a value was asked of a lane that takes no part
    out_of_bounds,  // an address outside of every allocation, or damage around one
    misaligned,
    missing_wait,    // asynchronous work that nobody waited for
    missing_fence,   // asynchronous work over what it may not see yet
    mbarrier,        // used before it is made, made twice, overwritten, arrived at or promised too much
    bad_launch,      // a launch that a GPU would refuse
    bad_copy,        // a copy or memset outside of an allocation, or in the wrong direction
    bad_call,        // of the runtime, cublasLt or NCCL
    disagreement,    // ranks that call different collectives
    nondeterminism,  // results that depend on the schedule (found by sweep)
};
std::string_view name(Kind kind);

struct Finding {
    Kind kind;
    std::string text;
};

void report(Kind kind, std::string text);
std::vector<Finding> take_findings();  // and forgets them, also the broken launch
bool broken();                         // a launch was ended since findings were last taken
void mark_broken();

std::string where(const Site& site);  // "kernels/swiglu.cu:41 (swiglu_forward_kernel)"

}  // namespace sim
