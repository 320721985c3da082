#include "engine/observe/report.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "engine/config_io.h"
#include "engine/observe/log_line.h"
#include "kernels/base/error.h"
#include "kernels/base/file.h"

namespace keel {
namespace {

using Json = nlohmann::json;

// A number, or the names that stand for what JSON cannot say.
double number(const Json& record, const char* key) {
    const auto found = record.find(key);
    if (found == record.end()) return 0;
    if (found->is_number()) return found->get<double>();
    if (*found == "Inf") return INFINITY;
    if (*found == "-Inf") return -INFINITY;
    return std::nan("");
}
std::string text(const Json& record, const char* key) {
    const auto found = record.find(key);
    return found != record.end() && found->is_string() ? found->get<std::string>() : std::string();
}

void cut_after(std::vector<Point>& points, double step) {
    std::erase_if(points, [step](const Point& p) { return p.x > step; });
}

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
.p0 { background: #8b95a5; } .p1 { background: #d99a1c; } .p2 { background: #1f6feb; } .p3 { background: #8250df; }
.p4 { background: #1a9e74; } .p5 { background: #b6bec9; }
pre { background: var(--card); border-radius: 8px; padding: 12px; overflow-x: auto; font-size: .82rem; line-height: 1.45; margin: 0; }
p.note { overflow-wrap: anywhere; }
pre.wrap { white-space: pre-wrap; overflow-wrap: anywhere; font-family: Georgia, serif; font-size: 1rem; }
@media (max-width: 600px) { .tick { font-size: 19px; } .tiles dd { font-size: 1.15rem; } pre { font-size: .72rem; } }
summary { cursor: pointer; font-weight: 600; font-size: 1.1rem; margin: 36px 0 10px; }
)css";

std::string grouped(std::int64_t n) {
    const std::string digits = std::to_string(n);
    std::string out;
    for (std::size_t i = 0; i < digits.size(); ++i) {
        if (i > 0 && (digits.size() - i) % 3 == 0) out += "\u202f";  // narrow no-break space
        out += digits[i];
    }
    return out;
}

std::string tile(const std::string& label, const std::string& value) {
    return "<div><dt>" + label + "</dt><dd>" + value + "</dd></div>\n";
}

std::string tiles(const RunLog& log, const ReportFacts& facts) {
    std::string out = "<dl class=\"tiles\">\n";
    if (!log.loss.empty()) out += tile("training loss", number_text("%.4f", log.loss.back().y).text);
    if (!log.eval_loss.empty()) {
        out += tile("held-out loss", number_text("%.4f", log.eval_loss.back().y).text);
        out += tile("perplexity", number_text("%.2f", log.last_perplexity).text);
    }
    if (log.last_bits_per_byte > 0) out += tile("bits per byte", number_text("%.3f", log.last_bits_per_byte).text);
    out += tile("parameters", grouped(facts.parameters));
    out += tile("tokens seen", grouped(log.tokens));
    out += tile("steps", grouped(log.steps));
    if (log.skipped > 0) out += tile("steps skipped", grouped(log.skipped));
    if (log.flops_seconds > 0) {
        const double rate = log.flops / log.flops_seconds;
        out += tile("TFLOP/s", number_text("%.3f", rate / 1e12).text);
        if (facts.matmul_peak > 0) out += tile("of matmul peak", number_text("%.1f %%", 100 * rate / facts.matmul_peak).text);
    }
    const double wall = std::accumulate(log.phase_seconds.begin(), log.phase_seconds.end(), 0.0);
    return out + tile("time", duration_text(wall).text) + "</dl>\n";
}

std::string time_bar(const RunLog& log) {
    const double wall = std::accumulate(log.phase_seconds.begin(), log.phase_seconds.end(), 0.0);
    if (!(wall > 0)) return "";
    std::string bar, legend;
    for (std::size_t i = 0; i < phase_count; ++i) {
        const double share = log.phase_seconds[i] / wall;
        const std::string phase = name(static_cast<Phase>(i));
        if (share <= 0) continue;
        bar += concat("<span class=\"p", i, "\" style=\"width:", number_text("%.3f", 100 * share).text, "%\" title=\"", phase,
                      "\"></span>");
        legend += concat("<li><i class=\"p", i, "\"></i>", phase, " ", number_text("%.1f", log.phase_seconds[i]).text,
                         " s, ", number_text("%.1f", 100 * share).text, " %</li>");
    }
    return "<h2>Where the time went</h2>\n<div class=\"bar\">" + bar + "</div>\n<ul class=\"legend\">" + legend +
           concat("<li>together ", number_text("%.1f", wall).text, " s of wall time", log.sessions > 1 ? ", in " : "",
                  log.sessions > 1 ? std::to_string(log.sessions) + " sessions" : "", "</li></ul>\n");
}

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

RunLog read_log(const std::filesystem::path& path) {
    std::ifstream in(path);
    if (!in) fail("report: ", path.string(), " cannot be read; a report is made from the log of its run");
    RunLog log;
    std::vector<Point> flops, seconds, skipped, tokens, perplexity, bits;  // x: step, to be cut like the curves
    for (std::string line; std::getline(in, line);) {
        const Json record = Json::parse(line, nullptr, false);
        if (!record.is_object()) continue;
        const std::string event = text(record, "event");
        const double step = number(record, "step");
        if (event == "start") {
            ++log.sessions;
            for (auto* points : {&log.loss, &log.eval_loss, &log.lr, &log.grad_norm, &log.tokens_per_second, &flops, &seconds,
                                 &skipped, &tokens, &perplexity, &bits})
                cut_after(*points, step);
        } else if (event == "step") {
            log.loss.push_back({step, number(record, "loss")});
            log.lr.push_back({step, number(record, "lr")});
            log.grad_norm.push_back({step, number(record, "grad_norm")});
            log.tokens_per_second.push_back({step, number(record, "tokens_per_second")});
            flops.push_back({step, number(record, "flops")});
            seconds.push_back({step, number(record, "seconds")});
            skipped.push_back({step, record.contains("applied") && record["applied"] == false ? 1.0 : 0.0});
            tokens.push_back({step, number(record, "tokens")});
        } else if (event == "eval") {
            log.eval_loss.push_back({step, number(record, "loss")});
            perplexity.push_back({step, number(record, "perplexity")});
            bits.push_back({step, number(record, "bits_per_byte")});
        } else if (event == "end") {
            log.why = text(record, "why");
            for (std::size_t i = 0; i < phase_count; ++i)
                log.phase_seconds[i] += number(record, key(static_cast<Phase>(i)));
        }
    }
    const auto sum = [](const std::vector<Point>& points) {
        return std::accumulate(points.begin(), points.end(), 0.0, [](double s, const Point& p) { return s + p.y; });
    };
    log.flops = sum(flops);
    log.flops_seconds = sum(seconds);
    log.skipped = static_cast<std::int64_t>(sum(skipped));
    if (!perplexity.empty()) log.last_perplexity = perplexity.back().y;
    if (!bits.empty()) log.last_bits_per_byte = bits.back().y;
    if (!tokens.empty()) {
        log.steps = static_cast<std::int64_t>(tokens.back().x);
        log.tokens = static_cast<std::int64_t>(tokens.back().y);
    }
    return log;
}

void write_report(const std::filesystem::path& path, const std::filesystem::path& log_path, const ReportFacts& facts) {
    const RunLog log = read_log(log_path);
    const std::filesystem::path dir = facts.config.run.dir;
    const std::string run = html_escape((dir.has_parent_path() ? dir.parent_path().filename() / dir.filename() : dir).string());
    std::string out = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
                      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>keel: " + run +
                      "</title>\n<style>" + style + "</style></head><body>\n<h1>" + run + "</h1>\n";
    out += "<p class=\"note\">" + html_escape(dir.string()) + "<br>" +
           concat(facts.config.model.dtype, ", ", facts.threads, facts.threads == 1 ? " thread" : " threads", ", config ",
                  config_hash(facts.config), log.why.empty() || log.why == "done" ? "" : ", ended by: " + html_escape(log.why)) +
           "</p>\n" + tiles(log, facts);
    out += "<div class=\"charts\">\n" +
           svg_chart({.title = log.eval_loss.empty() ? "Loss" : "Loss; dots are held-out text", .x_label = "step",
                      .line = log.loss, .dots = log.eval_loss, .noisy = true}) +
           svg_chart({.title = "Learning rate", .x_label = "step", .line = log.lr, .from_zero = true}) +
           svg_chart({.title = "Gradient norm, before clipping", .x_label = "step", .line = log.grad_norm, .from_zero = true,
                      .noisy = true}) +
           svg_chart({.title = "Tokens per second", .x_label = "step", .line = log.tokens_per_second, .from_zero = true,
                      .noisy = true}) +
           "</div>\n";
    out += time_bar(log);
    if (!facts.sample.empty())
        out += "<h2>A sample of its own</h2>\n<pre class=\"wrap\">" + html_escape(facts.sample) + "</pre>\n";
    if (!facts.memory_table.empty())
        out += "<h2>Memory plan</h2>\n<pre>" + html_escape(facts.memory_table) + "</pre>\n";
    out += "<details><summary>Configuration</summary>\n<pre>" + html_escape(to_toml(facts.config)) + "</pre></details>\n";
    out += "</body></html>\n";
    AtomicFile file(path);
    file.write(out);
    file.commit();
}

}  // namespace keel
