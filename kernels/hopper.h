// kernels/hopper.h: kernels for sm_90a alone (attention_hopper*.cu), which stand beside those for every GPU from sm_80
// on. A stream takes them where it is allowed to: nothing has shown yet that a GPU runs them as cudasim does.
//
// An op's result then comes from other sums in another order: not the same bits as without, but the same on every run.
#pragma once

#include <optional>
#include <string>

#include "kernels/base/stream.h"

namespace keel {

// Why this device, the calling thread's own, cannot run them, in one line; nothing if it can.
std::optional<std::string> why_no_hopper(Device device);
// From now on. Throws Error where they cannot run.
void allow_hopper(Stream& stream);

}  // namespace keel
