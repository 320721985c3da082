// kernels/products.h: which of cuBLASLt's algorithms computes which product of the calling thread's GPU. One is chosen
// when a product is first met; as text the choices can be read, and kept for another run.
//
// Errors  throw Error with the library's name for what went wrong.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/base/stream.h"

namespace keel {

// What a stream that computes products is lent (Stream::lend). 32 MiB is what cuBLAS takes for itself on Hopper; older
// GPUs ask for 4, but a plan is made where nobody knows on which it will run. The simulator's library cuts small products.
constexpr std::int64_t product_workspace_bytes(Device device) {
    return device == Device::cuda ? 32 << 20 : device == Device::cudasim ? 256 << 10 : 0;
}

// Whose they are, then a line for each product met so far; nothing on the CPU.
std::string chosen_products(Device device);

// Products that are met from now on take what `chosen`, of an earlier chosen_products, says. What was chosen by another
// library or for another GPU, what the library does not take, what needs more workspace than the stream has, and what
// rounds sums in between, is chosen anew.
void prefer_products(Device device, const std::string& chosen);

}  // namespace keel
