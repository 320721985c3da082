// kernels/cudasim/memory.h: the table of device and pinned allocations, each between two red zones.
#pragma once

#include <cstddef>
#include <string>

#include "kernels/cudasim/findings.h"

namespace sim {

void* allocate_device(std::size_t bytes);  // 256-byte aligned, poisoned
void* allocate_pinned(std::size_t bytes);
bool release_device(void* data);  // false if it is not the start of such an allocation
bool release_pinned(void* data);
std::size_t device_bytes();  // allocated now

// The memory of devices is open to the host's code, which runs the kernels, as long as one of these lives. It matters
// under Config::host_faults only.
class OpenMemory {
public:
    OpenMemory();
    ~OpenMemory();
    OpenMemory(const OpenMemory&) = delete;
    OpenMemory& operator=(const OpenMemory&) = delete;
};

enum class Place : unsigned char { device, pinned, unknown };
struct Found {
    Place place = Place::unknown;
    std::byte* data = nullptr;  // of the allocation
    std::size_t bytes = 0;
    int device = 0;  // that was the calling thread's when it was allocated
};
Found find_allocation(const void* address);

// Reports if a kernel's access does not lie within one device or pinned allocation, or is not aligned.
void check_global(const void* address, std::size_t bytes, const Site& site);
// Reports damaged red zones, once each: `after` says what came before, "launch at kernels/x.cu:12".
void check_red_zones(const std::string& after);

}  // namespace sim
