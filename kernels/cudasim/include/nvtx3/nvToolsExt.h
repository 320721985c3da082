// The part of NVTX that keel uses, under its names; what was said to it can be asked for (kernels/cudasim/profiler.h).
#pragma once

#include "kernels/cudasim/profiler.h"

inline int nvtxRangePushA(const char* name) { return ::sim::push_range(name); }
inline int nvtxRangePop() { return ::sim::pop_range(); }
