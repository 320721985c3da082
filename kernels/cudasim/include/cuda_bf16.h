#pragma once

#include "kernels/cudasim/bf16.h"

using namespace sim::cuda;
