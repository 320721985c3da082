// The body of kernels/hopper.h, once over the CUDA runtime and once over the simulated one.
#include "kernels/hopper.h"

#include "kernels/device.cuh"

namespace keel::KEEL_DEVICE {

std::optional<std::string> why_no_hopper() {
    int device = 0, major = 0, minor = 0;
    check(cudaGetDevice(&device));
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
    const int architecture = 10 * major + minor;
    if (architecture == 90) return std::nullopt;
    return concat("the GPU is sm_", architecture, ", and they are for sm_90 alone");
}

}  // namespace keel::KEEL_DEVICE
