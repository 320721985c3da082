// The name under which CUDA sources look for the runtime; only the simulator's build finds this one.
#pragma once

#include <assert.h>

#include "kernels/cudasim/intrinsics.h"
#include "kernels/cudasim/runtime.h"
#include "kernels/cudasim/types.h"
#include "kernels/cudasim/warp.h"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)

using namespace sim::cuda;
