#include "engine/parallel/rank_gpu.h"

#include <map>
#include <string_view>

#include "comm/agree.h"
#include "kernels/base/error.h"
#include "kernels/gpu.h"

namespace keel {

int gpu_of_rank(Device device, const World& world) {
    if (device == Device::cpu || world.size() == 1) return 0;
    const bool processes = std::string_view(world.transport()) == "mpi";
    if (device == Device::cudasim && processes)
        fail_usage("--run.device cudasim: simulated GPUs meet as threads of one process; start keel without mpirun or srun, and it starts ",
                   world.size(), " ranks itself");
    const int gpus = gpu_count(device);
    if (world.local_size() <= gpus) return world.local_rank();
    if (processes && gpus == 1) return 0;
    fail_usage("--run.device ", name(device), ": ", world.local_size(), " ranks on ", world.host(), ", which shows ", gpus,
               gpus == 1 ? " GPU" : " GPUs", "; every rank needs one of its own: start fewer, or lower --parallel.tp, pp, cp or dp");
}

void expect_own_gpus(Group& world, const std::string& host, const std::string& bus_id) {
    if (world.size() == 1) return;
    const std::vector<std::string> all = gather_strings(world, bus_id.empty() ? "" : concat(bus_id, " of ", host));
    std::map<std::string, int> owner;
    for (int r = 0; r < world.size(); ++r)
        if (const auto [at, is_new] = owner.emplace(all[static_cast<std::size_t>(r)], r); !is_new && !at->first.empty())
            fail_usage("ranks ", at->second, " and ", r, " have the same GPU, ", at->first,
                       "; every rank needs one of its own: let the launcher show each all GPUs, or each another one");
}

}  // namespace keel
