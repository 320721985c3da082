#include "engine/parallel/schedule_picture.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "engine/observe/chart.h"
#include "engine/observe/print.h"
#include "kernels/base/error.h"

namespace keel {
namespace {

bool is_forward(const TimedAction& a) { return a.action.kind == PipelineAction::forward; }

// "0", or "0a" with several chunks: short enough for a narrow box.
std::string box_label(const PipelineAction& a, int chunks) {
    std::string out = std::to_string(a.micro_batch);
    if (chunks > 26) out += concat(".", a.chunk);
    else if (chunks > 1) out += static_cast<char>('a' + a.chunk);
    return out;
}

std::string number(double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.4g", value);
    return text;
}

double shortest(const PipelineRun& run) {
    double least = INFINITY;
    for (const auto& lane : run.ranks)
        for (const TimedAction& a : lane)
            if (a.end > a.begin) least = std::min(least, a.end - a.begin);
    return std::isfinite(least) ? least : 1;
}

}  // namespace

std::string schedule_caption(const PipelineRun& run, const std::string& unit) {
    const PipelineShape& s = run.shape;
    std::string out = concat(name(run.schedule), ", ", s.stages, s.stages == 1 ? " stage" : " stages");
    if (s.chunks > 1) out += concat(" of ", s.chunks, " chunks");
    out += concat(", ", s.micro_batches, s.micro_batches == 1 ? " micro-batch" : " micro-batches", ": ",
                  number(run.makespan));
    if (!unit.empty()) out += " " + unit;
    return out + concat(", bubble ", number(100 * run.bubble_fraction()), " % of the busiest rank's work, ranks idle ",
                        number(100 * run.idle_share()), " % of the time");
}

std::string schedule_text(const PipelineRun& run, const std::string& unit, int columns, int most_bands) {
    // A bar, F or B, and the longest label fit into the shortest box, within reason: stages can be very unequal.
    const std::size_t label =
        2 + box_label({PipelineAction::forward, run.shape.micro_batches - 1, run.shape.chunks - 1}, run.shape.chunks)
                .size();
    const double scale = std::min(static_cast<double>(label) / shortest(run), 1e6 / std::max(run.makespan, 1e-300));
    const auto column = [&](double time) { return static_cast<std::size_t>(std::lround(time * scale)); };
    const std::size_t width = column(run.makespan);
    std::vector<std::string> lanes, names;
    std::size_t name_width = 0;
    for (std::size_t r = 0; r < run.ranks.size(); ++r) {
        std::string lane(width, '.');
        for (const TimedAction& a : run.ranks[r]) {
            const std::size_t begin = column(a.begin), end = column(a.end);
            std::string box = "|" + std::string(is_forward(a) ? "F" : "B") + box_label(a.action, run.shape.chunks);
            box.resize(end - begin, ' ');
            lane.replace(begin, end - begin, box);
        }
        lanes.push_back(std::move(lane));
        names.push_back(concat("rank ", r, " "));
        name_width = std::max(name_width, names.back().size());
    }
    const std::size_t room =
        std::max<std::size_t>(static_cast<std::size_t>(std::max(columns, 0)), name_width + label) - name_width;
    const std::size_t band =
        (width + (width + room - 1) / room - 1) / ((width + room - 1) / room);  // bands of equal length
    std::string out;
    for (std::size_t from = 0, bands = 0; from < width; from += band, ++bands) {
        if (bands == static_cast<std::size_t>(most_bands)) {
            out += concat("... and ", (width - from + band - 1) / band,
                          " more such bands; an SVG file shows them all\n\n");
            break;
        }
        for (std::size_t r = 0; r < lanes.size(); ++r)
            out += names[r] + std::string(name_width - names[r].size(), ' ') + lanes[r].substr(from, band) + "\n";
        out += "\n";
    }
    return out + schedule_caption(run, unit) + "\n";
}

namespace {

constexpr double left = 64, right = 12, top = 10, lane_height = 26, box_height = 22, footer = 62;
constexpr std::size_t most_boxes = 50'000;

// Between two colours, in tenths of a per cent.
std::string mix(const std::array<int, 3>& a, const std::array<int, 3>& b, double t) {
    char text[8];
    std::array<int, 3> c{};
    for (std::size_t i = 0; i < 3; ++i) c[i] = static_cast<int>(std::lround(a[i] + t * (b[i] - a[i])));
    std::snprintf(text, sizeof text, "#%02x%02x%02x", c[0], c[1], c[2]);
    return text;
}
// Forward blue, backward orange; later chunks are lighter. All are mid-tones: white and black paper both frame them.
std::string colour(PipelineAction::Kind kind, int chunk, int chunks) {
    const double t = chunks > 1 ? static_cast<double>(chunk) / (chunks - 1) : 0;
    return kind == PipelineAction::forward ? mix({37, 99, 180}, {120, 178, 232}, t)
                                           : mix({184, 84, 24}, {240, 166, 96}, t);
}

std::string legend(const PipelineRun& run, double y) {
    std::string out;
    double x = left;
    for (const auto kind : {PipelineAction::forward, PipelineAction::backward})
        for (int c = 0; c < std::min(run.shape.chunks, 8); ++c) {
            const std::string word =
                std::string(kind == PipelineAction::forward ? "forward" : "backward") +
                (run.shape.chunks > 1 ? concat(" ", box_label({kind, 0, c}, run.shape.chunks).substr(1)) : "");
            out += print("<rect x=\"%.1f\" y=\"%.1f\" width=\"12\" height=\"12\" rx=\"2\" fill=\"%s\"/>", x, y - 10,
                         colour(kind, c, run.shape.chunks).c_str());
            out += print("<text class=\"note\" x=\"%.1f\" y=\"%.1f\">%s</text>\n", x + 17, y, word.c_str());
            x += 32 + 7.0 * static_cast<double>(word.size());
        }
    return out;
}

}  // namespace

std::string schedule_svg(const PipelineRun& run, const std::string& unit) {
    std::size_t boxes = 0;
    for (const auto& lane : run.ranks) boxes += lane.size();
    if (boxes > most_boxes)
        fail_usage("a picture of ", boxes, " forwards and backwards is more than a reader can see (", most_boxes,
                   " is the most); draw fewer micro-batches (--train.global_batch) or stages (--parallel.pp)");
    // The shortest box holds its label if the picture stays within a sane width.
    const double label = 7.0 * static_cast<double>(box_label({PipelineAction::forward, run.shape.micro_batches - 1,
                                                              run.shape.chunks - 1}, run.shape.chunks).size()) + 6;
    const double scale =
        std::max(860.0, std::min(label / shortest(run) * run.makespan, 6000.0)) / std::max(run.makespan, 1e-300);
    const double width = left + run.makespan * scale + right;
    const double lanes = lane_height * static_cast<double>(run.ranks.size()), height = top + lanes + footer;
    std::string out = print(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" height=\"%.0f\" "
        "role=\"img\">\n",
        width, height, width, height);
    out += "<title>" + schedule_caption(run, unit) + "</title>\n";
    out += "<style>text{font:11px system-ui,sans-serif}.note{fill:#7d8590}.lane{fill:#7d8590;fill-opacity:.14}"
           ".tick{stroke:#7d8590;stroke-opacity:.5}.box{fill:#fff;text-anchor:middle}.light{fill:#10151c}</style>\n";
    for (std::size_t r = 0; r < run.ranks.size(); ++r) {
        const double y = top + lane_height * static_cast<double>(r);
        out += print("<text class=\"note\" x=\"%.0f\" y=\"%.1f\" text-anchor=\"end\">rank %zu</text>", left - 8, y + 15,
                     r);
        out += print("<rect class=\"lane\" x=\"%.1f\" y=\"%.1f\" width=\"%.2f\" height=\"%.0f\"/>\n", left, y,
                     run.makespan * scale, box_height);
        for (const TimedAction& a : run.ranks[r]) {
            const double x = left + a.begin * scale, w = (a.end - a.begin) * scale;
            out += print("<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.0f\" rx=\"2\" fill=\"%s\"/>", x + 0.5,
                         y, std::max(w - 1, 0.2), box_height,
                         colour(a.action.kind, a.action.chunk, run.shape.chunks).c_str());
            const std::string text = box_label(a.action, run.shape.chunks);
            if (w < 6.5 * static_cast<double>(text.size()) + 2) continue;
            out += print("<text class=\"box%s\" x=\"%.2f\" y=\"%.1f\">%s</text>\n",
                         2 * a.action.chunk >= run.shape.chunks && run.shape.chunks > 1 ? " light" : "", x + w / 2,
                         y + 15, text.c_str());
        }
        out += "\n";
    }
    const Axis axis = round_axis(0, run.makespan);
    for (double t = 0; t <= run.makespan * (1 + 1e-9); t += axis.step)
        out += print(
            "<line class=\"tick\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>"
            "<text class=\"note\" text-anchor=\"middle\" x=\"%.1f\" y=\"%.1f\">%s</text>\n",
            left + t * scale, left + t * scale, top + lanes, top + lanes + 4, left + t * scale, top + lanes + 16,
            number(t).c_str());
    out += legend(run, top + lanes + 35);
    return out + print("<text class=\"note\" x=\"%.0f\" y=\"%.1f\">", left, top + lanes + 54) +
           schedule_caption(run, unit) + "</text>\n</svg>\n";
}

}  // namespace keel
