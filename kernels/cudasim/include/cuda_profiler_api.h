// The profiler's switch, which the simulator's runtime has already.
#pragma once

#include "kernels/cudasim/runtime.h"
