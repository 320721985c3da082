#include "engine/observe/chart.h"

#include <algorithm>
#include <cmath>

#include "engine/observe/log_line.h"
#include "engine/observe/print.h"

namespace keel {
namespace {

constexpr double width = 640, height = 240, left = 72, right = 12, top = 12, bottom = 42;
constexpr std::size_t most_points = 400;

// Labels of one axis share a unit: 1.5M beside 0.5M, and 12.5k beside 2.5k.
std::string tick_text(double value, const Axis& axis) {
    const double size = std::max(std::fabs(axis.low), std::fabs(axis.high));
    if (value == 0) return "0";
    if (size >= 1e9) return print("%.4gG", value / 1e9);
    if (size >= 1e6) return print("%.4gM", value / 1e6);
    if (size >= 1e4) return print("%.4gk", value / 1e3);
    return print("%.4g", value);
}

std::vector<Point> finite(const std::vector<Point>& points) {
    std::vector<Point> kept;
    std::ranges::copy_if(points, std::back_inserter(kept),
                         [](const Point& p) { return std::isfinite(p.x) && std::isfinite(p.y); });
    return kept;
}

// A running mean over a fiftieth of the curve to either side.
std::vector<Point> smooth(const std::vector<Point>& points) {
    const auto n = static_cast<std::ptrdiff_t>(points.size()), reach = std::max<std::ptrdiff_t>(n / 50, 1);
    std::vector<Point> out;
    for (std::ptrdiff_t i = 0; i < n; ++i) {
        const std::ptrdiff_t r = std::min({reach, i, n - 1 - i});
        double sum = 0;
        for (std::ptrdiff_t j = i - r; j <= i + r; ++j) sum += points[static_cast<std::size_t>(j)].y;
        out.push_back({points[static_cast<std::size_t>(i)].x, sum / static_cast<double>(2 * r + 1)});
    }
    return out;
}

struct Scale {
    Axis x, y;
    double px(double v) const { return left + (v - x.low) / (x.high - x.low) * (width - left - right); }
    double py(double v) const { return height - bottom - (v - y.low) / (y.high - y.low) * (height - top - bottom); }
};

std::string path(const Scale& scale, const std::vector<Point>& points, const char* style) {
    std::string out = print("<polyline class=\"%s\" points=\"", style);
    for (const Point& p : points) out += print("%.1f,%.1f ", scale.px(p.x), scale.py(p.y));
    return out + "\"/>";
}

}  // namespace

Axis round_axis(double low, double high) {
    if (!(high > low)) {
        const double around = low == 0 ? 1 : std::fabs(low) * 0.1;
        low -= around;
        high += around;
    }
    const double rough = (high - low) / 5, power = std::pow(10.0, std::floor(std::log10(rough)));
    double step = power;
    for (const double round : {1.0, 2.0, 2.5, 5.0, 10.0})
        if (step = round * power; step >= rough * 0.999) break;
    return {std::floor(low / step + 1e-9) * step, std::ceil(high / step - 1e-9) * step, step};
}

std::vector<Point> thin_out(const std::vector<Point>& points, std::size_t limit) {
    if (points.size() <= limit || limit == 0) return points;
    std::vector<Point> out;
    for (std::size_t i = 0; i < limit; ++i) {
        const std::size_t begin = i * points.size() / limit, end = (i + 1) * points.size() / limit;
        Point mean{0, 0};
        for (std::size_t j = begin; j < end; ++j) mean.x += points[j].x, mean.y += points[j].y;
        const auto n = static_cast<double>(end - begin);
        out.push_back({mean.x / n, mean.y / n});
    }
    return out;
}

std::string svg_chart(const Chart& chart) {
    const std::vector<Point> dots = finite(chart.dots);
    std::vector<Point> all = dots;
    std::vector<Curve> lines;
    for (const Curve& curve : chart.lines) {
        const std::vector<Point> points = finite(curve.points);
        if (points.empty()) continue;
        lines.push_back({thin_out(points, most_points), curve.css});
        all.push_back({points.front().x, lines.back().points.front().y}), all.push_back({points.back().x, lines.back().points.back().y});
        all.insert(all.end(), lines.back().points.begin(), lines.back().points.end());
    }
    std::string out = "<figure><figcaption>" + chart.title + "</figcaption>";
    if (all.empty()) return out + "<p class=\"note\">nothing finite was recorded</p></figure>";

    double x0 = INFINITY, x1 = -INFINITY, y0 = INFINITY, y1 = -INFINITY;
    for (const Point& p : all) x0 = std::min(x0, p.x), x1 = std::max(x1, p.x), y0 = std::min(y0, p.y), y1 = std::max(y1, p.y);
    if (chart.from_zero) y0 = std::min(y0, 0.0);
    Scale scale{round_axis(x0, x1), round_axis(y0, y1)};
    scale.x.low = x0;  // the curve fills the width
    scale.x.high = x1 > x0 ? x1 : x0 + 1;

    out += print("<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"", width, height) + chart.title + "\">";
    for (int i = 0; scale.y.low + i * scale.y.step <= scale.y.high * (1 + 1e-9) + 1e-300; ++i) {
        const double v = std::fabs(scale.y.low + i * scale.y.step) < scale.y.step * 1e-9 ? 0 : scale.y.low + i * scale.y.step;
        const double y = scale.py(v);
        if (y < top - 1) break;
        out += print("<line class=\"grid\" x1=\"%.0f\" x2=\"%.0f\" y1=\"%.1f\" y2=\"%.1f\"/>", left, width - right, y, y);
        out += print("<text class=\"tick\" text-anchor=\"end\" x=\"%.0f\" y=\"%.1f\">", left - 6, y + 4) +
               tick_text(v, scale.y) + "</text>";
    }
    for (double v = std::ceil(scale.x.low / scale.x.step) * scale.x.step; v <= scale.x.high * (1 + 1e-9);
         v += scale.x.step)
        out += print("<text class=\"tick\" text-anchor=\"%s\" x=\"%.1f\" y=\"%.0f\">",
                     scale.px(v) > width - right - 20 ? "end" : "middle", scale.px(v), height - bottom + 18) +
               tick_text(v, scale.x) + "</text>";
    out += print("<text class=\"tick\" text-anchor=\"end\" x=\"%.0f\" y=\"%.0f\">", width - right, height - 5) +
           chart.x_label + "</text>";
    for (const auto& [line, css] : lines) {
        const bool smoothed = chart.noisy && line.size() >= 50;
        if (line.size() == 1) out += print("<circle class=\"dot\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"/>", scale.px(line[0].x), scale.py(line[0].y));
        else if (smoothed && lines.size() == 1) out += path(scale, line, "faint");
        if (line.size() > 1) out += path(scale, smoothed ? smooth(line) : line, css.c_str());
    }
    for (const Point& p : dots)
        out += print("<circle class=\"dot\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"><title>%.6g: %.6g</title></circle>", scale.px(p.x),
                     scale.py(p.y), p.x, p.y);
    return out + "</svg></figure>";
}

}  // namespace keel
