#include "engine/observe/mfu.h"

#include <charconv>
#include <cmath>
#include <vector>

#include "engine/observe/log_line.h"
#include "engine/parallel/cluster.h"
#include "kernels/base/error.h"

namespace keel {

double device_peak(const Config& config) {
    const std::string& asked = config.observe.device_peak;
    if (asked.empty()) return 0;
    std::string names;
    for (const Cluster& device : known_devices()) {
        if (device.device == asked && config.model.dtype != "bf16")
            fail_usage("--observe.device_peak ", asked, " is its peak in bf16, but --model.dtype is ",
                       config.model.dtype, "; give the number of TFLOP/s instead");
        if (device.device == asked) return device.peak();
        names += device.device + ", ";
    }
    double tflops = 0;
    const auto [end, error] = std::from_chars(asked.data(), asked.data() + asked.size(), tflops);
    if (error != std::errc() || end != asked.data() + asked.size() || !std::isfinite(tflops) || tflops <= 0)
        fail_usage("--observe.device_peak is \"", asked, "\"; it must be ", names,
                   "or a number of TFLOP/s greater than 0");
    return tflops * 1e12;
}

std::string mfu_text(const Config& config, double flops, double seconds, int ranks, double measured, double sheet) {
    if (!(seconds > 0)) return "";
    const double rate = flops / seconds;
    std::string out =
        concat("MFU = FLOPs / seconds / peak, FLOPs = ", Flops(config.model).formula(), ": ",
               number_text("%.4g", flops).text, " in ", number_text("%.1f", seconds).text, " s of training");
    if (measured > 0)
        out += concat(", ", number_text("%.1f", 100 * rate / measured).text, " % of the ",
                      number_text("%.4g", measured / 1e12).text, " TFLOP/s that matrix products reach here");
    if (sheet > 0)
        out += concat(", ", number_text("%.1f", 100 * rate / sheet / ranks).text, " % of the datasheet's ",
                      number_text("%.4g", sheet * ranks / 1e12).text, " TFLOP/s",
                      ranks > 1 ? concat(" (", ranks, " ranks)") : "");
    return out;
}

}  // namespace keel
