#include "engine/observe/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/config_io.h"
#include "engine/observe/html.h"
#include "engine/observe/log_line.h"
#include "engine/observe/report.h"
#include "kernels/base/error.h"
#include "kernels/base/file.h"

namespace keel {
namespace fs = std::filesystem;
namespace {

constexpr double unknown = std::numeric_limits<double>::quiet_NaN();
constexpr std::size_t colours = 8;  // c0 … c7 of html.cpp

ComparedRun read_run(const fs::path& folder) {
    const std::string where = "report: " + folder.string();
    if (!fs::exists(folder)) fail_usage(where + " is not there; give the folder of a run (--run.dir of keel train)");
    if (!fs::is_directory(folder)) fail_usage(where + " is a file; give the folder of a run (--run.dir of keel train)");
    for (const char* file : {"log.jsonl", "config.toml"})
        if (!fs::is_regular_file(folder / file))
            fail_usage(where + " has no " + file + ", so it is no folder of a run (--run.dir of keel train)");
    ComparedRun run{.name = folder.string(),
                    .config = from_toml(read_file(folder / "config.toml"), (folder / "config.toml").string()),
                    .log = read_log(folder / "log.jsonl")};
    if (run.log.loss.empty()) fail_usage(where, "/log.jsonl holds no step yet; compare the run when it has made one");
    return run;
}

// The last parts of the paths, as many as are needed to tell them apart.
void shorten(std::vector<ComparedRun>& runs) {
    std::vector<std::vector<std::string>> parts;
    std::size_t most = 1;
    for (const ComparedRun& run : runs) {
        auto& words = parts.emplace_back();
        for (const fs::path& part : fs::path(run.name).lexically_normal())
            if (!part.empty() && part != "/") words.push_back(part.string());
        std::ranges::reverse(words);
        most = std::max(most, words.size());
    }
    for (std::size_t keep = 1; keep <= most; ++keep) {
        std::vector<std::string> names;
        for (const auto& words : parts) {
            fs::path name;
            for (std::size_t i = std::min(keep, words.size()); i-- > 0;) name /= words[i];
            names.push_back(name.string());
        }
        for (std::size_t i = 0; i < runs.size(); ++i) runs[i].name = names[i];
        std::ranges::sort(names);
        if (std::ranges::adjacent_find(names) == names.end()) return;
    }
}

std::string cell(const char* format, double value) { return std::isnan(value) ? "-" : number_text(format, value).text; }

std::string mark(std::size_t run) { return concat("<i class=\"c", run % colours, "\"></i>"); }

std::string outcome_table(const std::vector<ComparedRun>& runs) {
    std::string out =
        "<div class=\"wide\"><table><tr><th>run<th>steps<th>tokens<th>loss<th>held-out<th>tokens/s<th>TFLOP/s"
        "<th>of matmul<th>goodput<th>time<th>sessions<th>ended</tr>\n";
    for (std::size_t i = 0; i < runs.size(); ++i) {
        const Outcome o = outcome(runs[i].log);
        out += "<tr><td class=\"key\">" + mark(i) + html_escape(runs[i].name) + "<td>" + grouped(o.steps) + "<td>" +
               grouped(o.tokens) + "<td>" + cell("%.4f", o.loss) + "<td>" + cell("%.4f", o.eval_loss) + "<td>" +
               cell("%.0f", o.tokens_per_second) + "<td>" + cell("%.4f", o.flops_per_second / 1e12) + "<td>" +
               cell("%.1f %%", o.peak_percent) + "<td>" + cell("%.1f %%", o.goodput_percent) + "<td>" +
               duration_text(o.seconds).text + concat("<td>", o.sessions) + "<td>" + html_escape(o.ended) + "</tr>\n";
    }
    return out + "</table></div>\n";
}

std::string difference_table(const std::vector<ComparedRun>& runs) {
    const std::vector<Difference> all = differences(runs);
    if (all.empty()) return runs.size() > 1 ? "<p class=\"note\">All settings are the same.</p>\n" : "";
    std::string out = "<div class=\"wide\"><table><tr><th>setting";
    for (std::size_t i = 0; i < runs.size(); ++i) out += "<th class=\"key\">" + mark(i) + html_escape(runs[i].name);
    out += "</tr>\n";
    for (const Difference& d : all) {
        out += "<tr><td>" + d.key;
        for (const std::string& value : d.values) out += "<td>" + (value.empty() ? "-" : html_escape(value));
        out += "</tr>\n";
    }
    return out + "</table></div>\n";
}

}  // namespace

std::vector<ComparedRun> read_runs(const std::vector<std::string>& folders) {
    if (folders.empty()) fail_usage("report: no run is given; name the folders of runs (--run.dir of keel train)");
    std::vector<ComparedRun> runs;
    for (const std::string& folder : folders) {
        for (const ComparedRun& before : runs)
            if (fs::exists(folder) && fs::equivalent(before.name, folder))
                fail_usage("report: ", folder, " is given twice");
        runs.push_back(read_run(folder));
    }
    shorten(runs);
    return runs;
}

std::vector<Difference> differences(const std::vector<ComparedRun>& runs) {
    std::vector<Difference> out;
    for (const std::string& key : setting_names()) {
        if (key == "run.dir") continue;
        Difference d{key, {}};
        for (const ComparedRun& run : runs) d.values.push_back(value_text(run.config, key));
        if (std::ranges::adjacent_find(d.values, std::ranges::not_equal_to()) != d.values.end())
            out.push_back(std::move(d));
    }
    return out;
}

Outcome outcome(const RunLog& log) {
    const std::size_t last = std::max<std::size_t>(1, log.loss.size() / 20);
    double loss = 0;
    for (std::size_t i = log.loss.size() - std::min(last, log.loss.size()); i < log.loss.size(); ++i)
        loss += log.loss[i].y;
    const double rate = log.flops_seconds > 0 ? log.flops / log.flops_seconds : unknown, wall = sum(log.seconds);
    return {.steps = log.steps,
            .tokens = log.tokens,
            .loss = log.loss.empty() ? unknown : loss / static_cast<double>(last),
            .eval_loss = log.eval_loss.empty() ? unknown : log.eval_loss.back().y,
            .tokens_per_second = log.flops_seconds > 0 ? static_cast<double>(log.tokens - log.tokens_before) / log.flops_seconds : unknown,
            .flops_per_second = rate,
            .peak_percent = log.matmul_peak > 0 ? 100 * rate / log.matmul_peak : unknown,
            .goodput_percent = wall > 0 ? 100 * goodput(log.seconds) : unknown,
            .seconds = wall,
            .sessions = static_cast<int>(log.sessions.size()),
            .ended = log.why.empty() ? "not yet, or killed" : log.why};
}

std::string comparison_html(const std::vector<ComparedRun>& runs) {
    std::vector<Curve> loss, eval_loss, rate;
    std::string legend, bars;
    for (std::size_t i = 0; i < runs.size(); ++i) {
        const RunLog& log = runs[i].log;
        const std::string css = concat("c", i % colours);
        loss.push_back({log.loss_by_tokens, css});
        eval_loss.push_back({log.eval_by_tokens, css});
        rate.push_back({log.tokens_per_second, css});
        legend += "<li>" + mark(i) + html_escape(runs[i].name) + "</li>";
        if (const std::string bar =
                time_bar(log.seconds, log.sessions.size() > 1 ? concat(", in ", log.sessions.size(), " sessions") : "");
            !bar.empty())
            bars += "<h3>" + html_escape(runs[i].name) + "</h3>\n" + bar;
    }
    std::string out = concat("<h1>", runs.size(), runs.size() == 1 ? " run" : " runs", "</h1>\n") + outcome_table(runs);
    out +=
        "<h2>Curves</h2>\n<ul class=\"legend\">" + legend + "</ul>\n<div class=\"charts\">\n" +
        svg_chart({.title = "Loss by tokens", .x_label = "tokens", .lines = loss, .noisy = true}) +
        svg_chart({.title = "Held-out loss by tokens", .x_label = "tokens", .lines = eval_loss}) +
        svg_chart({.title = "Tokens per second", .x_label = "step", .lines = rate, .from_zero = true, .noisy = true}) +
        "</div>\n";
    if (runs.size() > 1) out += "<h2>Settings that differ</h2>\n" + difference_table(runs);
    if (!bars.empty()) out += "<h2>Where the time went</h2>\n" + bars;
    return html_page("keel: comparison of runs", out);
}

}  // namespace keel
