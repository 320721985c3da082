#include "engine/observe/memory_chart.h"

#include <algorithm>
#include <vector>

#include "engine/observe/chart.h"
#include "engine/observe/print.h"

namespace keel {
namespace {

constexpr double width = 1180, height = 260, left = 112, right = 12, top = 26, bottom = 30;
constexpr Use uses[] = {Use::parameter, Use::gradient, Use::optimizer, Use::communication,
                        Use::products,  Use::cache,    Use::saved,     Use::temporary};

std::string legend(const MemoryPlan& plan, int peak) {
    std::string out = "<ul class=\"legend\">";
    for (const Use use : uses)
        if (const std::int64_t bytes = plan.live_bytes(peak, use))
            out += print("<li><i class=\"u%d\"></i>%s %s</li>", static_cast<int>(use), name(use),
                         human_bytes(bytes).c_str());
    return out + print("<li>fullest at &quot;%s&quot;: %s</li></ul>",
                       plan.moments()[static_cast<std::size_t>(peak)].c_str(),
                       human_bytes(plan.live_bytes(peak)).c_str());
}

}  // namespace

std::string memory_svg(const MemoryPlan& plan) {
    const auto moments = static_cast<int>(plan.moments().size());
    if (moments == 0) return "";
    const int peak = plan.peak_moment();
    const auto most = static_cast<double>(std::max<std::int64_t>(plan.live_bytes(peak), 1));
    double unit = 1;  // round numbers of it make the axis
    while (most / unit >= 1024) unit *= 1024;
    const Axis axis = round_axis(0, most / unit);
    const double step = (width - left - right) / moments;
    const auto y_of = [&](double bytes) {
        return height - bottom - bytes / unit / axis.high * (height - top - bottom);
    };

    std::string out = print(
        "<figure><figcaption>Memory over one step</figcaption><svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" "
        "aria-label=\"memory over one step\">",
        width, height);
    for (double v = 0; v <= axis.high * (1 + 1e-9); v += axis.step) {
        out += print("<line class=\"grid\" x1=\"%.0f\" x2=\"%.0f\" y1=\"%.1f\" y2=\"%.1f\"/>", left, width - right,
                     y_of(v * unit), y_of(v * unit));
        out += print("<text class=\"tick\" text-anchor=\"end\" x=\"%.0f\" y=\"%.1f\">%s</text>", left - 6,
                     y_of(v * unit) + 4, human_bytes(static_cast<std::int64_t>(v * unit)).c_str());
    }
    std::vector<double> below(static_cast<std::size_t>(moments));
    for (const Use use : uses) {  // one area on top of the other; moments are steps, so an area is a staircase
        std::string up, down;
        bool any = false;
        for (int m = 0; m < moments; ++m) {
            const auto at = static_cast<std::size_t>(m);
            const double floor = below[at], bytes = static_cast<double>(plan.live_bytes(m, use)), x = left + step * m;
            any |= bytes > 0;
            up += print("%.2f,%.1f %.2f,%.1f ", x, y_of(floor + bytes), x + step, y_of(floor + bytes));
            down = print("%.2f,%.1f %.2f,%.1f ", x + step, y_of(floor), x, y_of(floor)) + down;
            below[at] += bytes;
        }
        if (any) out += print("<polygon class=\"u%d\" points=\"", static_cast<int>(use)) + up + down + "\"/>";
    }
    out += print("<circle class=\"dot\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"/>", left + step * (peak + 0.5), y_of(most));
    for (const int m : {0, moments / 2, moments - 1})
        out += print("<text class=\"tick\" text-anchor=\"%s\" x=\"%.1f\" y=\"%.0f\">%s</text>",
                     m == 0             ? "start"
                     : m == moments - 1 ? "end"
                                        : "middle",
                     m == 0             ? left
                     : m == moments - 1 ? width - right
                                        : left + step * (m + 0.5),
                     height - 8, plan.moments()[static_cast<std::size_t>(m)].c_str());
    return out + "</svg>" + legend(plan, peak) + "</figure>";
}

}  // namespace keel
