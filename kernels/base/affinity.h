// kernels/base/affinity.h: the processors this process may run on, as the system numbers them.
#pragma once

#include <vector>

namespace keel {

// Ascending. Empty where the system does not say (it has more processors than a cpu_set_t holds).
std::vector<int> available_processors();

}  // namespace keel
