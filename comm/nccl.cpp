#include "comm/nccl.h"

#include "kernels/base/error.h"

namespace keel {

#if KEEL_NCCL
namespace on_cuda {
std::optional<std::string> why_no_nccl();
std::unique_ptr<World> nccl_world(World& control, int gpu, const NcclOptions& options);
}  // namespace on_cuda
#endif
namespace on_cudasim {
std::optional<std::string> why_no_nccl();
std::unique_ptr<World> nccl_world(World& control, int gpu, const NcclOptions& options);
}  // namespace on_cudasim

std::optional<std::string> why_no_nccl(Device device) {
    switch (device) {
        case Device::cpu:
            return "NCCL moves the memory of GPUs";
        case Device::cuda:
#if KEEL_NCCL
            return on_cuda::why_no_nccl();
#else
            return "this keel was built without NCCL";
#endif
        case Device::cudasim:
            return on_cudasim::why_no_nccl();
    }
    return "no such device";
}

std::unique_ptr<World> nccl_world(World& control, Device device, int gpu, const NcclOptions& options) {
    if (const auto why = why_no_nccl(device)) fail("no NCCL for ", name(device), ": ", *why);
#if KEEL_NCCL
    if (device == Device::cuda) return on_cuda::nccl_world(control, gpu, options);
#endif
    return on_cudasim::nccl_world(control, gpu, options);
}

}  // namespace keel
