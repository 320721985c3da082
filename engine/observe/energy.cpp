#include "engine/observe/energy.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <optional>

#include "kernels/base/error.h"

namespace keel {
namespace fs = std::filesystem;
namespace {

std::string first_line(const fs::path& path) {
    std::string line;
    std::ifstream in(path);
    std::getline(in, line);
    return line;
}

std::optional<std::uint64_t> counter_value(int fd) {
    char digits[32];
    const ssize_t n = pread(fd, digits, sizeof digits, 0);
    std::uint64_t value = 0;
    if (n <= 0 || std::from_chars(digits, digits + n, value).ec != std::errc()) return std::nullopt;
    return value;
}

}  // namespace

EnergyMeter::EnergyMeter(const fs::path& powercap, std::span<const std::string> gpus, const char* nvml) : gpus_(gpus, nvml) {
    if (!gpus.empty()) {
        devices_ = gpus_.devices();
        absence_ = gpus_.absence();
        return;
    }
    std::error_code error;
    std::vector<fs::path> domains;
    // intel-rapl:0 is a package and intel-rapl:0:1 a part of it, on AMD's processors too; intel-rapl-mmio:0 is the
    // package again.
    for (const auto& entry : fs::directory_iterator(powercap, error))
        if (entry.path().filename().string().starts_with("intel-rapl:")) domains.push_back(entry.path());
    std::ranges::sort(domains);
    for (const fs::path& domain : domains) open(domain);
    if (devices_ > 0) absence_.clear();
    else if (absence_.empty()) absence_ = powercap.string() + " has no counter of a processor package";
}

void EnergyMeter::open(const fs::path& domain) {
    const std::string name = first_line(domain / "name");
    const bool package = name.starts_with("package-");
    if (!package && name != "dram") return;  // cores are a part of their package, and so is psys of everything
    const fs::path path = domain / "energy_uj";
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC), why = errno;
    const auto now = fd < 0 ? std::nullopt : counter_value(fd);
    const std::string range_text = first_line(domain / "max_energy_range_uj");
    std::uint64_t range = 0;
    std::from_chars(range_text.data(), range_text.data() + range_text.size(), range);
    if (!now || range == 0) {
        if (absence_.empty())
            absence_ = path.string() + " cannot be read" + (fd < 0 ? concat(": ", std::strerror(why)) : "");
        if (fd >= 0) close(fd);
        return;
    }
    counters_.push_back({fd, range, *now});
    if (package) ++devices_;
}

EnergyMeter::~EnergyMeter() {
    for (const Counter& c : counters_) close(c.fd);
}

double EnergyMeter::joules() {
    for (Counter& c : counters_) {
        const auto now = counter_value(c.fd);
        if (!now) continue;
        microjoules_ += *now >= c.last ? *now - c.last : *now + (c.range - c.last);
        c.last = *now;
    }
    return static_cast<double>(microjoules_) / 1e6 + gpus_.joules();
}

}  // namespace keel
