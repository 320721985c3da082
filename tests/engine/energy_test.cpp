// Energy by the counters of Linux's powercap, in a folder that looks like it, and by NVML, of a library that looks like it.
#include "engine/observe/energy.h"

#include <dlfcn.h>

#include <gtest/gtest.h>

#include "tests/temp_folder.h"

using namespace keel;
namespace fs = std::filesystem;

namespace {

struct Powercap : test::TempFolder {
    void domain(const std::string& name, const std::string& kind, const std::string& microjoules,
                const std::string& range = "262143328850") {
        fs::create_directories(path() / name);
        write(name + "/name", kind + "\n");
        write(name + "/energy_uj", microjoules + "\n");
        write(name + "/max_energy_range_uj", range + "\n");
    }
    void count(const std::string& name, const std::string& microjoules) {
        write(name + "/energy_uj", microjoules + "\n");
    }
};

}  // namespace

TEST(Energy, IsThatOfPackagesAndTheirMemory) {
    Powercap sys;
    sys.domain("intel-rapl:0", "package-0", "1000000");
    sys.domain("intel-rapl:0:0", "core", "5");           // a part of its package
    sys.domain("intel-rapl:0:1", "dram", "0");
    sys.domain("intel-rapl:1", "package-1", "7");
    sys.domain("intel-rapl:2", "psys", "9");             // the whole machine
    sys.domain("intel-rapl-mmio:0", "package-0", "11");  // the first package once more
    sys.domain("dtpm", "package-9", "13");
    EnergyMeter meter(sys.path());
    EXPECT_EQ(meter.devices(), 2);
    EXPECT_EQ(meter.absence(), "");
    EXPECT_EQ(meter.joules(), 0);
    sys.count("intel-rapl:0", "3500000"), sys.count("intel-rapl:0:0", "9999999"), sys.count("intel-rapl:0:1", "500000");
    sys.count("intel-rapl:1", "1000007"), sys.count("intel-rapl:2", "9999999");
    EXPECT_EQ(meter.joules(), 2.5 + 0.5 + 1.0);
    EXPECT_EQ(meter.joules(), 4.0) << "asking uses nothing";
}

TEST(Energy, GoesOnWhereACounterStartsAgain) {
    Powercap sys;
    sys.domain("intel-rapl:0", "package-0", "900", "1000");
    EnergyMeter meter(sys.path());
    sys.count("intel-rapl:0", "50");
    EXPECT_EQ(meter.joules(), 150e-6);
    sys.count("intel-rapl:0", "60");
    EXPECT_EQ(meter.joules(), 160e-6);
}

TEST(Energy, OfACounterThatGoesAwayStandsStill) {
    Powercap sys;
    sys.domain("intel-rapl:0", "package-0", "100");
    EnergyMeter meter(sys.path());
    sys.count("intel-rapl:0", "2000100");
    EXPECT_EQ(meter.joules(), 2.0);
    sys.count("intel-rapl:0", "");
    EXPECT_EQ(meter.joules(), 2.0);
}

TEST(Energy, ThatIsNotMeasuredSaysWhy) {
    const EnergyMeter none("/nowhere/at/all");
    EXPECT_EQ(none.devices(), 0);
    EXPECT_EQ(none.absence(), "/nowhere/at/all has no counter of a processor package");
    Powercap sys;
    sys.domain("intel-rapl:0", "package-0", "what");
    EnergyMeter unreadable(sys.path());
    EXPECT_EQ(unreadable.devices(), 0);
    EXPECT_EQ(unreadable.absence(), sys / "intel-rapl:0/energy_uj" + " cannot be read");
    EXPECT_EQ(unreadable.joules(), 0);
}

namespace {

// The GPUs that false_nvml.cpp plays: the two at 0000:01:00.0 and 0000:02:00.0 have counters, the one at 0000:03:00.0 is old.
struct FalseNvml {
    void* library = dlopen(KEEL_FALSE_NVML, RTLD_NOW);
    FalseNvml() { function<void()>("false_nvml_reset")(); }
    ~FalseNvml() { dlclose(library); }
    template <class F> F* function(const char* name) { return reinterpret_cast<F*>(dlsym(library, name)); }
    void use(int gpu, long long millijoules) { function<void(int, long long)>("false_nvml_use")(gpu, millijoules); }
    int users() { return function<int()>("false_nvml_users")(); }
};

}  // namespace

TEST(Energy, OfARunOnGpusIsTheirs) {
    FalseNvml nvml;
    Powercap sys;
    sys.domain("intel-rapl:0", "package-0", "100");
    const std::vector<std::string> gpus = {"0000:01:00.0", "0000:02:00.0"};
    {
        nvml.use(0, 123456), nvml.use(1, 5);
        EnergyMeter meter(sys.path(), gpus, KEEL_FALSE_NVML);
        EXPECT_EQ(meter.devices(), 2);
        EXPECT_EQ(meter.absence(), "");
        EXPECT_EQ(nvml.users(), 1);
        EXPECT_EQ(meter.joules(), 0) << "what was used before is nobody's";
        nvml.use(0, 1500), nvml.use(1, 250), sys.count("intel-rapl:0", "9000000");
        EXPECT_EQ(meter.joules(), 1.75);
        nvml.use(1, -255);  // the driver was loaded again
        EXPECT_EQ(meter.joules(), 1.75);
        nvml.use(1, 1000);
        EXPECT_EQ(meter.joules(), 2.75);
    }
    EXPECT_EQ(nvml.users(), 0) << "and NVML is given back";
    const std::vector<std::string> one = {"0000:02:00.0"};
    EXPECT_EQ(EnergyMeter(sys.path(), one, KEEL_FALSE_NVML).devices(), 1);
}

TEST(Energy, OfGpusThatIsNotMeasuredSaysWhy) {
    FalseNvml nvml;
    const std::vector<std::string> old = {"0000:01:00.0", "0000:03:00.0"}, unknown = {"0000:09:00.0"};
    EnergyMeter meter("/none", old, KEEL_FALSE_NVML);
    EXPECT_EQ(meter.devices(), 0);
    EXPECT_EQ(meter.absence(), "the GPU at 0000:03:00.0 has no counter: Not Supported");
    nvml.use(0, 1000);
    EXPECT_EQ(meter.joules(), 0) << "half of the GPUs is not the run";
    EXPECT_EQ(EnergyMeter("/none", unknown, KEEL_FALSE_NVML).absence(), "the GPU at 0000:09:00.0 has no counter: Not Found");
    const EnergyMeter no_library("/none", old, "/none/libnvidia-ml.so.1");
    EXPECT_TRUE(no_library.absence().starts_with("/none/libnvidia-ml.so.1: cannot open")) << no_library.absence();
    const EnergyMeter other_library("/none", old, "libm.so.6");
    EXPECT_EQ(other_library.absence(), "libm.so.6 has no counters of energy; the driver is too old");
}
