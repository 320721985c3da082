#pragma once

#include "kernels/cudasim/cub.h"

using namespace sim::cuda;
