// kernels/cudasim/profiler.h: what a profiler beside the simulated GPU would be told: ranges, and when to look.
#pragma once

#include <string>
#include <vector>

namespace sim {

// Ranges of the calling thread, as deep as they are nested; -1 if none was open.
int push_range(const char* name);
int pop_range();
void profile(bool on);

// Names of the ranges that were opened while the profiler was on, in order, with their outer ones: "step 3/forward 0".
// Forgets them.
std::vector<std::string> take_profile();

}  // namespace sim
