#pragma once

#include "kernels/cudasim/nccl.h"

using namespace sim::cuda;
