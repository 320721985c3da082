// kernels/products.h: which of cuBLASLt's algorithms computes which product of the calling thread's GPU. One is chosen when a
// product is first met; as text the choices can be read, and kept for another run.
//
// Errors  throw Error with the library's name for what went wrong.
#pragma once

#include <string>

#include "kernels/base/stream.h"

namespace keel {

// Whose they are, then a line for each product met so far; nothing on the CPU.
std::string chosen_products(Device device);

// Products that are met from now on take what `chosen`, of an earlier chosen_products, says. What was chosen by another library
// or for another GPU, and what the library does not take, is chosen anew.
void prefer_products(Device device, const std::string& chosen);

}  // namespace keel
