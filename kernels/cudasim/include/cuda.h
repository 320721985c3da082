#pragma once

#include "kernels/cudasim/tensor_map.h"

using namespace sim::cuda;
