// engine/observe/matmul_peak.h: what this machine reaches in a large matrix product: the ceiling a training step is
// measured against in the log. `keel bench` measures more, and longer.
#pragma once

#include "kernels/base/dtype.h"
#include "kernels/base/stream.h"

namespace keel {

// FLOP/s on all threads of `stream`, best of a few products of 1024 x 1024 x 1024. Takes about a fifth of a second.
double matmul_peak(Stream& stream, Dtype dtype);

}  // namespace keel
