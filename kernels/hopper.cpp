#include "kernels/hopper.h"

#include "kernels/base/error.h"

namespace keel {

namespace on_cuda {
std::optional<std::string> why_no_hopper();
}
namespace on_cudasim {
std::optional<std::string> why_no_hopper();
}

std::optional<std::string> why_no_hopper(Device device) {
    switch (device) {
        case Device::cpu:
            return "the CPU is no GPU";
        case Device::cuda:
#if KEEL_CUDA && KEEL_HOPPER
            return on_cuda::why_no_hopper();
#else
            return "this keel was built without kernels for sm_90a (KEEL_HOPPER)";
#endif
        case Device::cudasim:
#if KEEL_CUDASIM
            return on_cudasim::why_no_hopper();
#else
            return "this library of kernels was built without cudasim";
#endif
    }
    return "no such device";
}

void allow_hopper(Stream& stream) {
    if (const auto why = why_no_hopper(stream.device())) fail("no kernels for Hopper: ", *why);
    stream.allow_hopper();
}

}  // namespace keel
