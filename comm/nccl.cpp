#include "comm/nccl.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace keel {

std::int64_t nccl_buffer_bytes(std::int64_t largest_bytes, std::int64_t ranks) {
    constexpr std::int64_t enough = 32 << 20;
    // A part of each rank, and as many elements of each as there are ranks: what is left of a sum over equal parts.
    const std::int64_t least = ranks * std::max(nccl_alignment, ranks * 8) + nccl_small_bytes;
    return std::max(std::min(largest_bytes, enough), least);
}

#if KEEL_NCCL
namespace on_cuda {
std::optional<std::string> why_no_nccl();
std::string nccl_version();
std::unique_ptr<World> nccl_world(World& control, int gpu, const NcclOptions& options);
}  // namespace on_cuda
#endif
namespace on_cudasim {
std::optional<std::string> why_no_nccl();
std::string nccl_version();
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

std::string nccl_version(Device device) {
    if (const auto why = why_no_nccl(device)) return concat("no NCCL: ", *why);
#if KEEL_NCCL
    if (device == Device::cuda) return on_cuda::nccl_version();
#endif
    return on_cudasim::nccl_version();
}

std::unique_ptr<World> nccl_world(World& control, Device device, int gpu, const NcclOptions& options) {
    if (const auto why = why_no_nccl(device)) fail("no NCCL for ", name(device), ": ", *why);
#if KEEL_NCCL
    if (device == Device::cuda) return on_cuda::nccl_world(control, gpu, options);
#endif
    return on_cudasim::nccl_world(control, gpu, options);
}

}  // namespace keel
