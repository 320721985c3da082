#include "engine/observe/html.h"

namespace keel {
namespace {

constexpr const char* style = R"css(
:root { color-scheme: light dark; --ink: #1d2430; --soft: #5d6776; --paper: #ffffff; --card: #f4f6f9; --rule: #dfe4ea;
        --line: #1f6feb; --faint: #a9c7f7; --dot: #d1451b; }
@media (prefers-color-scheme: dark) {
    :root { --ink: #e6eaf0; --soft: #97a3b4; --paper: #14181f; --card: #1c222b; --rule: #2d3541;
            --line: #6cb0ff; --faint: #2f4d74; --dot: #ff8a5c; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1100px; padding: 20px 16px 60px; background: var(--paper); color: var(--ink);
       font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 2px; overflow-wrap: anywhere; } h2 { font-size: 1.1rem; margin: 36px 0 10px; }
h3 { font-size: 1rem; margin: 18px 0 6px; overflow-wrap: anywhere; }
.note { color: var(--soft); margin: 0; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(148px, 1fr)); gap: 10px; margin: 20px 0; padding: 0; }
.tiles div { background: var(--card); border-radius: 8px; padding: 10px 12px; }
.tiles dt { color: var(--soft); font-size: .8rem; } .tiles dd { margin: 0; font-size: 1.3rem; font-weight: 600; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 460px), 1fr)); gap: 18px; }
figure { margin: 0; background: var(--card); border-radius: 8px; padding: 10px 10px 4px; min-width: 0; }
figcaption { font-weight: 600; font-size: .95rem; margin: 0 2px 6px; }
svg { display: block; width: 100%; height: auto; }
polyline { fill: none; stroke-width: 2; stroke-linejoin: round; }
.line { stroke: var(--line); } .faint { stroke: var(--faint); stroke-width: 1.2; } .dot { fill: var(--dot); }
.grid { stroke: var(--rule); stroke-width: 1; } .tick { fill: var(--soft); font: 12px system-ui, sans-serif; }
.bar { display: flex; height: 26px; border-radius: 6px; overflow: hidden; background: var(--rule); }
.legend { display: flex; flex-wrap: wrap; gap: 4px 20px; list-style: none; padding: 0; margin: 10px 0 0; font-size: .9rem; }
.legend i { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 6px; }
.p0 { background: #8b95a5; } .p1 { background: #d99a1c; } .p2 { background: #1f6feb; } .p3 { background: #e2557b; }
.p4 { background: #2f9fd0; } .p5 { background: #8250df; } .p6 { background: #1a9e74; } .p7 { background: #c8321f; }
.p8 { background: #b6bec9; }
pre { background: var(--card); border-radius: 8px; padding: 12px; overflow-x: auto; font-size: .82rem; line-height: 1.45; margin: 0; }
p.note { overflow-wrap: anywhere; }
pre.wrap { white-space: pre-wrap; overflow-wrap: anywhere; font-family: Georgia, serif; font-size: 1rem; }
@media (max-width: 600px) { .tick { font-size: 19px; } .tiles dd { font-size: 1.15rem; } pre { font-size: .72rem; } }
.wide { overflow-x: auto; } .wide svg { min-width: 680px; } .wide svg.timeline { min-width: 900px; } .legend + .note, .legend + .charts { margin-top: 10px; }
table { border-collapse: collapse; font-size: .9rem; min-width: min(100%, 420px); } th { color: var(--soft); font-weight: 500; }
th, td { text-align: right; padding: 3px 14px 3px 0; border-bottom: 1px solid var(--rule); font-variant-numeric: tabular-nums; }
th:first-child, td:first-child, .text { text-align: left; } td.meter { width: 160px; padding-right: 0; }
td.key i, th.key i { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 6px; }
.meter i { display: block; height: 10px; border-radius: 3px; }
.u0 { fill: #4c78a8; background: #4c78a8; } .u1 { fill: #72b7b2; background: #72b7b2; } .u2 { fill: #9d79b5; background: #9d79b5; }
.u3 { fill: #eca13c; background: #eca13c; } .u4 { fill: #e2557b; background: #e2557b; } .u5 { fill: #e0c63a; background: #e0c63a; }
.u6 { fill: #59a14f; background: #59a14f; } .u7 { fill: #b07aa1; background: #b07aa1; }
.c0 { stroke: #1f6feb; background: #1f6feb; } .c1 { stroke: #d1451b; background: #d1451b; } .c2 { stroke: #1a9e74; background: #1a9e74; }
.c3 { stroke: #8250df; background: #8250df; } .c4 { stroke: #d99a1c; background: #d99a1c; } .c5 { stroke: #e2557b; background: #e2557b; }
.c6 { stroke: #2f9fd0; background: #2f9fd0; } .c7 { stroke: #8b95a5; background: #8b95a5; }
@media (max-width: 600px) { th, td { padding-right: 8px; } td.meter { width: 80px; } }
summary { cursor: pointer; font-weight: 600; font-size: 1.1rem; margin: 36px 0 10px; }
)css";

}  // namespace

std::string html_escape(const std::string& text) {
    std::string out;
    for (const char c : text)
        switch (c) {
            case '&': out += "&amp;"; break;
            case '<': out += "&lt;"; break;
            case '>': out += "&gt;"; break;
            case '"': out += "&quot;"; break;
            default: out += c;
        }
    return out;
}

std::string html_page(const std::string& title, const std::string& body) {
    return "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
           "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>" +
           html_escape(title) + "</title>\n<style>" + style + "</style></head><body>\n" + body + "</body></html>\n";
}

std::string tile(const std::string& label, const std::string& value) {
    return "<div><dt>" + label + "</dt><dd>" + value + "</dd></div>\n";
}

std::string grouped(long long n) {
    const std::string digits = std::to_string(n);
    std::string out;
    for (std::size_t i = 0; i < digits.size(); ++i) {
        if (i > 0 && (digits.size() - i) % 3 == 0) out += "\u202f";  // narrow no-break space
        out += digits[i];
    }
    return out;
}

}  // namespace keel
