#include "engine/observe/timeline.h"

#include <algorithm>
#include <cstring>
#include <sstream>

#include "engine/observe/print.h"

namespace keel {
namespace {

constexpr double width = 1180, left = 110, lane_height = 26, gap = 8, top = 40;

struct Look {
    const char* css;
    const char* label;
};
Look look(const Span& span) {
    const auto is = [&](const char* name) { return std::strcmp(span.name, name) == 0; };
    if (is("forward")) return {"f", "F"};
    if (is("backward")) return {"b", "B"};
    if (is("receive") || is("wait")) return {"w", ""};
    if (is("optimizer")) return {"o", "O"};
    if (is("data")) return {"d", "D"};
    return {"c", is("reduce") ? "R" : is("gather") ? "G" : ""};
}

}  // namespace

std::string spans_text(const Spans& spans) {
    const auto now = Clock::now();
    const double unix_now = unix_seconds();
    std::string out;
    for (const Span& s : spans.all())
        out += print("%d %d %d %.9f %.9f\n", static_cast<int>(span_kind(s.name)), s.index, s.chunk, unix_now - seconds_between(s.begin, now),
                     seconds_between(s.begin, s.end));
    return out;
}

Spans read_spans(const std::string& text) {
    Spans out;
    out.reserve(static_cast<std::size_t>(std::ranges::count(text, '\n')));
    std::istringstream in(text);
    const auto duration = [](double s) { return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s)); };
    std::size_t kind = 0;
    double begin = 0, seconds = 0;
    for (Span s{}; in >> kind >> s.index >> s.chunk >> begin >> seconds;) {
        if (kind >= span_names.size()) continue;
        s.name = span_names[kind];
        s.begin = Clock::time_point(duration(begin)), s.end = s.begin + duration(seconds);
        out.add(s);
    }
    return out;
}

std::string timeline_svg(std::span<const TimelineLane> lanes) {
    Clock::time_point begin = Clock::time_point::max(), end = Clock::time_point::min();
    for (const TimelineLane& lane : lanes)
        for (const Span& s : lane.spans->all()) begin = std::min(begin, s.begin), end = std::max(end, s.end);
    if (begin >= end) begin = end = {};
    const double seconds = std::max(1e-9, std::chrono::duration<double>(end - begin).count());
    const double height = top + static_cast<double>(lanes.size()) * (lane_height + gap) + 30;
    std::string out;
    out += print("<svg class=\"timeline\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" font-family=\"sans-serif\" font-size=\"12\">\n",
                  width + 20, height);
    out += "<style>text{fill:#222}.f{fill:#4c78a8}.b{fill:#59a14f}.c{fill:#e15759}.o{fill:#b07aa1}.d{fill:#edc948}.w{fill:#bab0ac;opacity:.5}.t{fill:#fff}"
           ".lane{fill:#8883;}@media(prefers-color-scheme:dark){text{fill:#ddd}}</style>\n";
    out += print("<text x=\"%.0f\" y=\"20\">one step, %.1f ms: forward (blue), backward (green), optimizer (violet), data (yellow), reduce and gather (red), waiting (grey)</text>\n",
                  left, 1e3 * seconds);
    double y = top;
    for (const TimelineLane& lane : lanes) {
        out += print("<text x=\"%.0f\" y=\"%.1f\" text-anchor=\"end\">%s</text><rect class=\"lane\" x=\"%.0f\" y=\"%.1f\" width=\"%.0f\" height=\"%.0f\"/>\n",
                      left - 8, y + 17, lane.name.c_str(), left, y, width - left, lane_height);
        for (const Span& s : lane.spans->all()) {
            const double x = left + (width - left) * std::chrono::duration<double>(s.begin - begin).count() / seconds,
                         w = (width - left) * std::chrono::duration<double>(s.end - s.begin).count() / seconds;
            const Look l = look(s);
            out += print("<rect class=\"%s\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.0f\"%s><title>%s %d.%d, %.3f ms</title></rect>\n",
                          l.css, x, y, std::max(w, 0.3), lane_height, s.chunk > 0 ? " opacity=\".7\"" : "", s.name, s.index, s.chunk,
                          1e3 * std::chrono::duration<double>(s.end - s.begin).count());
            if (w < 22 || !*l.label) continue;
            out += print("<text class=\"t\" x=\"%.2f\" y=\"%.1f\" text-anchor=\"middle\">%s%d</text>\n", x + w / 2, y + 17,
                          l.label, s.index);
        }
        y += lane_height + gap;
    }
    return out + "</svg>\n";
}

}  // namespace keel
