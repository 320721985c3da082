// Energy by the counters of Linux's powercap, in a folder that looks like it.
#include "engine/observe/energy.h"

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
