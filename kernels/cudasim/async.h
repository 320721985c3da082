// kernels/cudasim/async.h: cp.async, as each thread sees it. A copy lands when it is issued (Async::early), or when the
// thread waits for its group (Async::late); until then its destination holds poison.
#pragma once

#include <cstddef>

#include "kernels/cudasim/findings.h"

namespace sim {

// Copies `bytes` (4, 8 or 16), of which the last `zeros` become zero without being read.
void copy_async(void* shared, const void* global, unsigned bytes, unsigned zeros, const Site& site);
void commit_copies();
void wait_copies(unsigned groups_left);  // all but the last groups have landed
void wait_all_copies();

}  // namespace sim
