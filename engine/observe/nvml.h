// engine/observe/nvml.h: what GPUs have used, by the counters of NVIDIA's management library (NVML), which comes with the
// driver and is looked for at run time.
//
// A counter counts millijoules since the driver was loaded, whoever uses the GPU; GPUs before Volta have none. NVML numbers
// the GPUs of the machine its own way, so they are named by their PCI bus, as CUDA tells it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace keel {

class GpuEnergy {
public:
    static constexpr const char* library = "libnvidia-ml.so.1";

    // `bus_ids`: of the GPUs to measure, such as "0000:3b:00.0"; none: nothing is loaded. One that cannot be measured leaves
    // all of them unmeasured: a sum without it would be taken for the whole.
    explicit GpuEnergy(std::span<const std::string> bus_ids, const char* from = library);
    ~GpuEnergy();
    GpuEnergy(const GpuEnergy&) = delete;
    GpuEnergy& operator=(const GpuEnergy&) = delete;

    int devices() const { return static_cast<int>(counters_.size()); }  // 0: nothing is measured
    const std::string& absence() const { return absence_; }             // why nothing is; empty if something is

    // Of all devices since the meter was made. Allocates nothing. A counter that cannot be read any more stands still.
    double joules();

private:
    struct Counter {
        void* device;
        unsigned long long last;
    };
    std::string open(std::span<const std::string> bus_ids, const char* from);  // returns what went wrong

    void* handle_ = nullptr;  // of the library
    int (*shutdown_)() = nullptr;
    int (*energy_)(void*, unsigned long long*) = nullptr;
    std::vector<Counter> counters_;
    std::uint64_t millijoules_ = 0;
    std::string absence_;
};

}  // namespace keel
