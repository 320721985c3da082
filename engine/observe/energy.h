// engine/observe/energy.h: what the devices of this machine have used: the GPUs of a run that has some (nvml.h), else the
// processors, by the counters of Linux's powercap (RAPL).
//
// A processor's device is a package; its memory counts with it where that has a counter of its own. The counters are of
// the machine, whoever uses it, and count microjoules up to a range, then start again at 0: they must be asked more
// often than they can go round, about every twenty minutes at 200 W, and a step does that.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "engine/observe/nvml.h"

namespace keel {

class EnergyMeter {
public:
    // `gpus`: PCI bus ids; empty: the processors are measured.
    explicit EnergyMeter(const std::filesystem::path& powercap = "/sys/class/powercap", std::span<const std::string> gpus = {},
                         const char* nvml = GpuEnergy::library);
    ~EnergyMeter();
    EnergyMeter(const EnergyMeter&) = delete;
    EnergyMeter& operator=(const EnergyMeter&) = delete;

    int devices() const { return devices_; }              // 0: nothing is measured
    const std::string& absence() const { return absence_; }  // why nothing is; empty if something is

    // Of all devices since the meter was made. Allocates nothing. A counter that cannot be read any more stands still.
    double joules();

private:
    struct Counter {
        int fd;
        std::uint64_t range, last;
    };
    void open(const std::filesystem::path& domain);

    GpuEnergy gpus_;
    std::vector<Counter> counters_;
    std::uint64_t microjoules_ = 0;
    int devices_ = 0;
    std::string absence_;
};

}  // namespace keel
