// engine/observe/chart.h: a line chart as inline SVG. Colours come from the page's CSS (classes line, faint, dot, grid,
// tick), so that light and dark need one drawing.
#pragma once

#include <string>
#include <vector>

namespace keel {

struct Point {
    double x, y;
};

struct Curve {
    std::vector<Point> points{};
    std::string css = "line";
};

struct Chart {
    std::string title{}, x_label{};
    std::vector<Curve> lines{};
    std::vector<Point> dots{};   // marked one by one, for example evaluations
    bool from_zero = false;    // the y axis starts at 0
    bool noisy = false;        // draw a running mean, and faintly the line itself where it is the only one
};

// Points that are not finite are left out. No finite point at all: a line of text instead of a chart.
std::string svg_chart(const Chart& chart);

// At most `limit` points, each the mean of its neighbours in x order.
std::vector<Point> thin_out(const std::vector<Point>& points, std::size_t limit);

// Bounds and step of an axis with 3 to 7 round numbers that covers [low, high].
struct Axis {
    double low, high, step;
};
Axis round_axis(double low, double high);

}  // namespace keel
