// tests/sim/conformance.h: one fixed computation for every wrapper of mma.cuh and async.cuh and what kernels use beside
// them, and, apart, of hopper.cuh and wgmma.cuh; and a hash of its result. Inputs are such that results are exact: cudasim
// and a GPU must agree bit for bit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace keel {

struct Conformance {
    std::string name;
    std::uint64_t hash;
};
namespace on_cuda {
std::vector<Conformance> conformance();  // throws Error where there is no GPU
std::vector<Conformance> conformance_hopper();
}
namespace on_cudasim {
std::vector<Conformance> conformance();
std::vector<Conformance> conformance_hopper();
}

}  // namespace keel
