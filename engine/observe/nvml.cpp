#include "engine/observe/nvml.h"

#include <dlfcn.h>

#include "kernels/base/error.h"

namespace keel {
namespace {

// nvml.h of the CUDA toolkit, as far as it is needed: building keel takes no toolkit. nvmlReturn_t is an int, 0 is success,
// and nvmlDevice_t a pointer.
using Init = int (*)();
using ByBusId = int (*)(const char*, void**);
using ErrorString = const char* (*)(int);

template <class Function> Function function(void* library, const char* name) {
    return reinterpret_cast<Function>(dlsym(library, name));
}

}  // namespace

GpuEnergy::GpuEnergy(std::span<const std::string> bus_ids, const char* from) {
    if (bus_ids.empty()) {
        absence_ = "no GPU is used";
        return;
    }
    absence_ = open(bus_ids, from);
    if (!absence_.empty()) counters_.clear();
}

std::string GpuEnergy::open(std::span<const std::string> bus_ids, const char* from) {
    handle_ = dlopen(from, RTLD_NOW | RTLD_LOCAL);
    if (!handle_) return dlerror();
    const auto init = function<Init>(handle_, "nvmlInit_v2");
    const auto by_bus_id = function<ByBusId>(handle_, "nvmlDeviceGetHandleByPciBusId_v2");
    const auto error_string = function<ErrorString>(handle_, "nvmlErrorString");
    const auto shutdown = function<Init>(handle_, "nvmlShutdown");
    energy_ = function<decltype(energy_)>(handle_, "nvmlDeviceGetTotalEnergyConsumption");
    if (!init || !by_bus_id || !error_string || !shutdown || !energy_)
        return concat(from, " has no counters of energy; the driver is too old");
    if (const int result = init(); result != 0) return concat("nvmlInit_v2: ", error_string(result));
    shutdown_ = shutdown;
    for (const std::string& id : bus_ids) {
        Counter counter{};
        int result = by_bus_id(id.c_str(), &counter.device);
        if (result == 0) result = energy_(counter.device, &counter.last);
        if (result != 0) return concat("the GPU at ", id, " has no counter: ", error_string(result));
        counters_.push_back(counter);
    }
    return "";
}

GpuEnergy::~GpuEnergy() {
    if (shutdown_) shutdown_();
    if (handle_) dlclose(handle_);
}

double GpuEnergy::joules() {
    for (Counter& c : counters_) {
        unsigned long long now = 0;
        if (energy_(c.device, &now) != 0) continue;
        if (now > c.last) millijoules_ += now - c.last;  // one that starts again has lost what it counted
        c.last = now;
    }
    return static_cast<double>(millijoules_) / 1e3;
}

}  // namespace keel
