// tests/gpu/check_main.cpp: gpu_check SECTION DEVICE full|tiny FILE.json: one section of the device check (tests/gpu/run.sh)
// that needs a program of its own. What it found goes to the file, and one line of it to the terminal. Ends with 0 if all is as
// it should be, 1 if not, 3 if only speed is not, 77 where there is no such device.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>

#include "kernels/base/error.h"
#include "kernels/cudasim/findings.h"
#include "tests/gpu/check.h"

namespace keel::gpu_check {

namespace {

double seconds_each(Stream& stream, int times, const std::function<void()>& body) {
    stream.synchronize();
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < times; ++i) body();
    stream.synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / times;
}
// Sorted samples, each about as long as asked for; one of them with `tiny`.
std::vector<double> samples(const Check& c, std::size_t count, double long_enough, const std::function<void()>& body) {
    const double first = seconds_each(*c.stream, 1, body);  // chooses algorithms, loads kernels
    if (c.tiny) return {first};
    const double once = std::max(seconds_each(*c.stream, 1, body), 1e-7);
    std::vector<double> all(count);
    for (double& s : all) s = seconds_each(*c.stream, static_cast<int>(std::clamp(long_enough / once, 1.0, 2000.0)), body);
    std::ranges::sort(all);
    return all;
}

}  // namespace

double Check::seconds(const std::function<void()>& body) const {
    const auto all = samples(*this, 5, 10e-3, body);
    return all[all.size() / 2];
}
double Check::quick_seconds(const std::function<void()>& body) const { return samples(*this, 2, 4e-3, body).front(); }

namespace {

int run(const std::string& section, const std::string& device_name, bool tiny, const std::string& file) {
    const std::map<std::string, void (*)(const Check&, Result&)> sections{
        {"ceilings", &ceilings}, {"gemm", &gemm}, {"attention", &attention}, {"bandwidth", &bandwidth}, {"layer", &layer}};
    const auto at = sections.find(section);
    if (at == sections.end() && section != "device") fail("no section is called ", section);
    const Device device = device_name == "cudasim" ? Device::cudasim : Device::cuda;
    if (const auto why = why_no_gpu(device)) {
        std::printf("no %s device: %s\n", device_name.c_str(), why->c_str());
        return 77;
    }
    if (section == "device") return 0;
    const Check check(device, tiny);
    Result result(file, !tiny);
    try {
        at->second(check, result);
    } catch (const std::exception& e) {  // what was measured before is kept
        result.summary = e.what();
        result.good = false;
    }
    for (const sim::Finding& finding : sim::take_findings()) {  // of the simulator
        std::printf("%s: %s\n", std::string(sim::name(finding.kind)).c_str(), finding.text.c_str());
        result.good = false;
    }
    std::printf("%s\n", result.line().c_str());
    return result.exit_code();
}

}  // namespace
}  // namespace keel::gpu_check

int main(int argc, char** argv) {
    if (argc != 5) {
        std::fprintf(stderr, "usage: gpu_check ceilings|gemm|attention|bandwidth|layer|device cuda|cudasim full|tiny FILE.json\n");
        return 2;
    }
    try {
        return keel::gpu_check::run(argv[1], argv[2], std::string_view(argv[3]) == "tiny", argv[4]);
    } catch (const std::exception& e) {
        std::fprintf(stderr, "%s\n", e.what());
        return 1;
    }
}
