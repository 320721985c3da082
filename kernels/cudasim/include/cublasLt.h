#pragma once

#include "kernels/cudasim/blaslt.h"

using namespace sim::cuda;
