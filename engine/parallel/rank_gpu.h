// engine/parallel/rank_gpu.h: which GPU is a rank's: its own, the one of its number among the ranks of its machine.
#pragma once

#include <string>

#include "comm/world.h"

namespace keel {

// The index of this rank's GPU, as kernels/gpu.h counts them; 0 on the CPU. A launcher may show each process one GPU alone:
// that is its own. Refuses more ranks on this machine than it has GPUs, and simulated GPUs of several processes.
int gpu_of_rank(Device device, const World& world);

// Collective. Refuses two ranks on one GPU, by their bus (Gpu::bus_id): NCCL would, without saying which.
void expect_own_gpus(Group& world, const std::string& host, const std::string& bus_id);

}  // namespace keel
