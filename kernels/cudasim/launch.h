// kernels/cudasim/launch.h: a grid of blocks, on the calling thread or on a crew of workers.
#pragma once

#include <string>

#include "kernels/cudasim/block.h"

namespace sim {

// Whether a GPU would accept it; reports why not.
bool legal_launch(const Launch& launch, const void* kernel);
// Runs every block, and returns when all are done; false if a finding ended the launch.
bool run_launch(const Launch& launch, const void* kernel);

// cudaFuncAttributeMaxDynamicSharedMemorySize of a kernel.
void allow_dynamic_bytes(const void* kernel, std::size_t bytes);
std::size_t allowed_dynamic_bytes(const void* kernel);

}  // namespace sim
