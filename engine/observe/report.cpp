#include "engine/observe/report.h"

#include <algorithm>

#include "engine/config_io.h"
#include "engine/observe/html.h"
#include "engine/observe/log_line.h"
#include "engine/observe/mfu.h"
#include "engine/observe/run_log.h"
#include "kernels/base/error.h"
#include "kernels/base/file.h"

namespace keel {
namespace {

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
        out += tile("TFLOP/s", number_text("%.3g", rate / 1e12).text);
        if (facts.matmul_peak > 0)
            out += tile("of matmul peak", number_text("%.1f %%", 100 * rate / facts.matmul_peak).text);
        if (const double peak = facts.device_peak * facts.ranks; peak > 0)
            out += tile("MFU", number_text("%.1f %%", 100 * rate / peak).text);
    }
    const double wall = sum(log.seconds);
    if (wall > 0) out += tile("goodput", number_text("%.1f %%", 100 * goodput(log.seconds)).text);
    return out + tile("time", duration_text(wall).text) + "</dl>\n";
}

std::string startup_section(const RunLog& log, int ranks) {
    if (log.startup.empty()) return "";
    std::string out = "<h2>Start-up</h2>\n<div class=\"wide\"><table><tr><th>part<th>" +
                      std::string(ranks > 1 ? "least, s<th>most, s<th>slowest" : "seconds") + "</tr>\n";
    double longest = 1e-9;
    for (const StartupRow& row : log.startup) longest = std::max(longest, row.max);
    for (const StartupRow& row : log.startup) {
        std::string words = name(row.part);
        std::ranges::replace(words, '_', ' ');
        out += "<tr><td>" + words;
        if (ranks > 1) out += concat("<td>", number_text("%.3f", row.min).text);
        out += concat("<td>", number_text("%.3f", row.max).text);
        if (ranks > 1) out += concat("<td>rank ", row.max_rank);
        out += concat("<td class=\"meter\"><i class=\"p0\" style=\"width:",
                      number_text("%.1f", 100 * row.max / longest).text, "%\"></i></tr>\n");
    }
    return out + "</table></div>\n";
}

// Where ranks differ, in the time in which they work and do not wait: the slowest first.
std::string ranks_section(const RunLog& log) {
    if (log.ranks.size() < 2) return "";
    constexpr std::size_t most_rows = 32;
    const auto of = [](const RankRow& r, Phase p) { return r.seconds[static_cast<std::size_t>(p)]; };
    const auto work = [&](const RankRow& r) {
        return of(r, Phase::data_wait) + of(r, Phase::compute) + of(r, Phase::optimizer);
    };
    std::vector<RankRow> rows = log.ranks;
    std::ranges::sort(rows, {}, &RankRow::flops_per_second);
    const double median = rows[rows.size() / 2].flops_per_second;
    std::string out = concat(
        "<h2>Ranks</h2>\n<p class=\"note\">Milliseconds per step of the last session; the slowest of ", rows.size(),
        " ranks first.</p>\n<div "
        "class=\"wide\"><table><tr><th>rank<th>host<th>work<th>waiting<th>data<th>GFLOP/s<th>of median</tr>\n");
    for (std::size_t i = 0; i < std::min(rows.size(), most_rows); ++i) {
        const RankRow& r = rows[i];
        const double per_step = 1e3 / std::max(r.steps, 1.0);
        out += concat("<tr><td>", r.rank, "<td>", html_escape(r.host), "<td>",
                      number_text("%.2f", work(r) * per_step).text, "<td>",
                      number_text("%.2f", of(r, Phase::communication) * per_step).text, "<td>",
                      number_text("%.2f", of(r, Phase::data_wait) * per_step).text, "<td>",
                      number_text("%.3g", r.flops_per_second / 1e9).text, "<td>",
                      median > 0 ? number_text("%.0f %%", 100 * r.flops_per_second / median).text : "-", "</tr>\n");
    }
    return out + "</table></div>\n";
}

}  // namespace

std::string time_bar(const PhaseSeconds& seconds, const std::string& note) {
    const double wall = sum(seconds);
    if (!(wall > 0)) return "";
    std::string bar, legend;
    for (std::size_t i = 0; i < phase_count; ++i) {
        const double share = seconds[i] / wall;
        const std::string phase = name(static_cast<Phase>(i));
        if (share <= 0) continue;
        bar += concat("<span class=\"p", i, "\" style=\"width:", number_text("%.3f", 100 * share).text, "%\" title=\"",
                      phase, "\"></span>");
        legend += concat("<li><i class=\"p", i, "\"></i>", phase, " ", number_text("%.1f", seconds[i]).text, " s, ",
                         number_text("%.1f", 100 * share).text, " %</li>");
    }
    return "<div class=\"bar\">" + bar + "</div>\n<ul class=\"legend\">" + legend +
           concat("<li>together ", number_text("%.1f", wall).text, " s of wall time", note, "</li></ul>\n");
}

void write_report(const std::filesystem::path& path, const std::filesystem::path& log_path, const ReportFacts& facts) {
    const RunLog log = read_log(log_path);
    const std::filesystem::path dir = facts.config.run.dir;
    const std::string run = (dir.has_parent_path() ? dir.parent_path().filename() / dir.filename() : dir).string();
    std::string out =
        "<h1>" + html_escape(run) + "</h1>\n<p class=\"note\">" + html_escape(dir.string()) + "<br>" +
        concat(facts.config.model.dtype, ", ", facts.ranks > 1 ? concat(facts.ranks, " ranks, ") : "", facts.threads,
               facts.threads == 1 ? " thread" : " threads", ", config ", config_hash(facts.config),
               log.why.empty() || log.why == "done" ? "" : ", ended by: " + html_escape(log.why)) +
        "</p>\n" + tiles(log, facts);
    out += "<div class=\"charts\">\n" +
           svg_chart({.title = log.eval_loss.empty() ? "Loss" : "Loss; dots are held-out text",
                      .x_label = "step",
                      .lines = {{log.loss}},
                      .dots = log.eval_loss,
                      .noisy = true}) +
           svg_chart({.title = "Learning rate", .x_label = "step", .lines = {{log.lr}}, .from_zero = true}) +
           svg_chart({.title = "Gradient norm, before clipping",
                      .x_label = "step",
                      .lines = {{log.grad_norm}},
                      .from_zero = true,
                      .noisy = true}) +
           svg_chart({.title = "Tokens per second",
                      .x_label = "step",
                      .lines = {{log.tokens_per_second}},
                      .from_zero = true,
                      .noisy = true}) +
           "</div>\n";
    if (const std::string bar =
            time_bar(log.seconds, log.sessions.size() > 1 ? concat(", in ", log.sessions.size(), " sessions") : "");
        !bar.empty())
        out += "<h2>Where the time went</h2>\n" + bar;
    if (const std::string mfu = mfu_text(facts.config, log.flops, log.flops_seconds, facts.ranks, facts.matmul_peak, facts.device_peak);
        !mfu.empty())
        out += "<p class=\"note\">" + html_escape(mfu) + ".</p>\n";
    out += startup_section(log, facts.ranks) + ranks_section(log);
    if (!facts.ending.timeline.empty())
        out += "<h2>The last step</h2>\n<div class=\"wide\">" + facts.ending.timeline + "</div>\n";
    if (!facts.ending.sample.empty())
        out += "<h2>A sample of its own</h2>\n<pre class=\"wrap\">" + html_escape(facts.ending.sample) + "</pre>\n";
    if (!facts.ending.memory_chart.empty() || !facts.memory_table.empty())
        out += "<h2>Memory plan</h2>\n<div class=\"wide\">" + facts.ending.memory_chart + "</div>\n";
    if (!facts.memory_table.empty())
        out += "<details><summary>Memory plan in numbers</summary>\n<pre>" + html_escape(facts.memory_table) +
               "</pre></details>\n";
    out +=
        "<details><summary>Configuration</summary>\n<pre>" + html_escape(to_toml(facts.config)) + "</pre></details>\n";
    AtomicFile file(path);
    file.write(html_page("keel: " + run, out));
    file.commit();
}

}  // namespace keel
