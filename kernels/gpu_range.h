// kernels/gpu_range.h: named stretches of a thread's time for a profiler of GPUs (NVTX), one inside of the other; nothing on the CPU.
#pragma once

#include <cstdint>

#include "kernels/base/stream.h"

namespace keel {

// Until the end of the scope, on the thread that began it. `index` < 0 is none: "layer 3", "all_reduce".
class GpuRange {
public:
    explicit GpuRange(Device device, const char* name, std::int64_t index = -1) : device_(device) {
        if (device_ != Device::cpu) push(name, index);
    }
    ~GpuRange() {
        if (device_ != Device::cpu) pop();
    }
    GpuRange(const GpuRange&) = delete;
    GpuRange& operator=(const GpuRange&) = delete;

private:
    void push(const char* name, std::int64_t index) const;
    void pop() const;
    Device device_;
};

}  // namespace keel
