// A library with those of NVML's functions that energy is read by, over three GPUs that a test plays.
namespace {

constexpr int not_supported = 3, not_found = 6;  // of nvmlReturn_t
unsigned long long counters[3];
int users;

}  // namespace

extern "C" {

int nvmlInit_v2() { return ++users, 0; }
int nvmlShutdown() { return --users, 0; }

const char* nvmlErrorString(int result) { return result == not_supported ? "Not Supported" : "Not Found"; }

int nvmlDeviceGetHandleByPciBusId_v2(const char* id, void** device) {
    const int gpu = id[6] - '1';  // 0000:01:00.0
    if (gpu < 0 || gpu > 2) return not_found;
    *device = &counters[gpu];
    return 0;
}

int nvmlDeviceGetTotalEnergyConsumption(void* device, unsigned long long* millijoules) {
    if (device == &counters[2]) return not_supported;
    *millijoules = *static_cast<unsigned long long*>(device);
    return 0;
}

void false_nvml_use(int gpu, long long millijoules) { counters[gpu] += static_cast<unsigned long long>(millijoules); }
void false_nvml_reset() { counters[0] = counters[1] = counters[2] = 0; }
int false_nvml_users() { return users; }
}
