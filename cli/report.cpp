// cli/report.cpp: `keel report`: runs side by side, as a table and as a page.

#include <CLI/App.hpp>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "cli/commands.h"
#include "cli/report_table.h"
#include "engine/observe/compare.h"
#include "engine/observe/log_line.h"
#include "kernels/base/error.h"
#include "kernels/base/file.h"

namespace keel {
namespace {

struct ReportOptions {
    std::vector<std::string> runs;
    std::string out = "comparison.html";
    bool json = false;
};

Report number(double value) { return std::isfinite(value) ? Report(value) : Report(nullptr); }

Report as_json(const std::vector<ComparedRun>& runs) {
    Report out;
    out["runs"] = Report::array();
    for (const ComparedRun& run : runs) {
        const Outcome o = outcome(run.log);
        Report r{{"run", run.name},
                 {"steps", o.steps},
                 {"tokens", o.tokens},
                 {"loss", number(o.loss)},
                 {"eval_loss", number(o.eval_loss)},
                 {"tokens_per_second", number(o.tokens_per_second)},
                 {"flops_per_second", number(o.flops_per_second)},
                 {"peak_percent", number(o.peak_percent)},
                 {"goodput_percent", number(o.goodput_percent)},
                 {"wall_seconds", o.seconds},
                 {"sessions", o.sessions},
                 {"ended", o.ended}};
        for (std::size_t i = 0; i < phase_count; ++i) r[key(static_cast<Phase>(i))] = run.log.seconds[i];
        out["runs"].push_back(r);
    }
    out["differences"] = Report::array();
    for (const Difference& d : differences(runs))
        out["differences"].push_back({{"setting", d.key}, {"values", d.values}});
    return out;
}

std::string cell(const char* format, double value) { return std::isnan(value) ? "-" : number_text(format, value).text; }

Report as_table(const std::vector<ComparedRun>& runs) {
    Report table = Report::array();
    for (const ComparedRun& run : runs) {
        const Outcome o = outcome(run.log);
        table.push_back({{"run", run.name},
                         {"steps", o.steps},
                         {"tokens", o.tokens},
                         {"loss", cell("%.4f", o.loss)},
                         {"held-out", cell("%.4f", o.eval_loss)},
                         {"tokens/s", cell("%.0f", o.tokens_per_second)},
                         {"TFLOP/s", cell("%.4f", o.flops_per_second / 1e12)},
                         {"peak_%", cell("%.1f", o.peak_percent)},
                         {"goodput_%", cell("%.1f", o.goodput_percent)},
                         {"time", duration_text(o.seconds).text},
                         {"ended", o.ended}});
    }
    Report out{{"runs", table}};
    Report settings = Report::array();
    for (const Difference& d : differences(runs)) {
        Report row{{"setting", d.key}};
        for (std::size_t i = 0; i < runs.size(); ++i) row[runs[i].name] = d.values[i].empty() ? "-" : d.values[i];
        settings.push_back(row);
    }
    if (!settings.empty()) out["settings that differ"] = settings;
    return out;
}

void run_report(const ReportOptions& o) {
    const std::filesystem::path folder = std::filesystem::path(o.out).parent_path();
    if (!folder.empty() && !std::filesystem::is_directory(folder))
        fail_usage("--out ", o.out, ": there is no folder ", folder.string(), "; make it, or name another place");
    const std::vector<ComparedRun> runs = read_runs(o.runs);
    write_file_atomically(o.out, comparison_html(runs));
    if (o.json) {
        std::printf("%s\n", as_json(runs).dump(2).c_str());
        return;
    }
    print_report(as_table(runs));
    if (runs.size() == 1) std::printf("one run only: there is nothing to compare it with\n");
    std::printf("report: %s\n", o.out.c_str());
}

}  // namespace

void add_report(CLI::App& app) {
    CLI::App* command =
        app.add_subcommand("report", "compare runs: curves, throughput, goodput and the settings that differ");
    auto o = std::make_shared<ReportOptions>();
    command->add_option("RUN", o->runs, "folders of runs (their --run.dir)")->required();
    command->add_option("--out", o->out, "the page to write")->capture_default_str();
    command->add_flag("--json", o->json, "print JSON instead of tables; the page is written, too");
    command->callback([o] { run_report(*o); });
}

}  // namespace keel
