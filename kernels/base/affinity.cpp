#include "kernels/base/affinity.h"

#include <sched.h>

namespace keel {

std::vector<int> available_processors() {
    std::vector<int> processors;
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0) return processors;
    for (int p = 0; p < CPU_SETSIZE; ++p)
        if (CPU_ISSET(p, &set)) processors.push_back(p);
    return processors;
}

}  // namespace keel
