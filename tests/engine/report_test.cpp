// The report: one file that needs nothing else, made from whatever a log holds.
#include "engine/observe/report.h"

#include <gtest/gtest.h>

#include <cmath>

#include "engine/observe/chart.h"
#include "engine/observe/json_line.h"
#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "tests/temp_folder.h"

using namespace keel;

namespace {

std::string step(int number, double loss) {
    return JsonLine("step").count("step", number).count("samples", 8 * number).count("tokens", 256 * number).number("loss", loss)
        .number("lr", 1e-3).number("grad_norm", 1).boolean("applied", std::isfinite(loss)).number("seconds", 0.5)
        .number("flops", 1e9).number("tokens_per_second", 512).finish();
}
std::string start(int at) { return JsonLine("start").count("step", at).finish(); }

ReportFacts facts() {
    ReportFacts f;
    f.config.run.dir = "runs/<one> & \"two\"";
    f.parameters = 1234567;
    f.memory_table = "parameters 1 MiB <tied>";
    f.ending.sample = "In the beginning <b>& so on";
    f.matmul_peak = 4e9;
    return f;
}

std::string report(const std::string& lines) {
    const test::TempFolder folder;
    write_report(folder / "report.html", folder.write("log.jsonl", lines), facts());
    return read_file(folder / "report.html");
}

}  // namespace

TEST(Report, IsOneFileThatAsksForNothingAndEscapesText) {
    std::string lines = start(0);
    for (int i = 1; i <= 1000; ++i) lines += step(i, 5.0 / i);
    lines += JsonLine("eval").count("step", 1000).number("loss", 1.5).number("perplexity", 4.48).number("bits_per_byte", 1.987).finish();
    lines += JsonLine("seconds").count("step", 1000).number("startup_seconds", 480).number("compute_seconds", 500)
                 .number("eval_seconds", 20).number("wall_seconds", 1000).finish();
    lines += JsonLine("end").text("why", "done").count("step", 1000).finish();
    const std::string html = report(lines);
    for (const char* forbidden : {"<script", "http:", "https:", "src=", "@import", "url(", "<one>", "<b>&", "<tied>"})
        EXPECT_EQ(html.find(forbidden), std::string::npos) << forbidden;
    for (const char* wanted : {"runs/&lt;one&gt; &amp; &quot;two&quot;", "<svg", "1.987", "4.48", "In the beginning &lt;b&gt;&amp;",
                               "prefers-color-scheme: dark", "width=device-width", "parameters 1 MiB &lt;tied&gt;", "[optim]",
                               "Where the time went", "50.0 %"})
        EXPECT_NE(html.find(wanted), std::string::npos) << wanted;
    EXPECT_LT(html.size(), 200'000u);  // long runs are thinned out
}

TEST(Report, ARunWithoutAnyStepOrWithNothingFiniteStillHasOne) {
    EXPECT_NE(report("").find("nothing finite was recorded"), std::string::npos);
    EXPECT_NE(report(start(0) + step(1, NAN)).find("nothing finite was recorded"), std::string::npos);
    EXPECT_NE(report(start(0) + step(1, 3)).find("<circle"), std::string::npos);
}

TEST(Axis, CoversItsRangeWithRoundNumbers) {
    for (const auto& [low, high] : std::vector<std::pair<double, double>>{{0, 1}, {3.2, 8.9}, {0, 3e-4}, {-5, 5}, {1e6, 1.2e6}, {7, 7}, {0, 0}}) {
        const Axis axis = round_axis(low, high);
        EXPECT_LE(axis.low, low);
        EXPECT_GE(axis.high, high);
        EXPECT_LE((axis.high - axis.low) / axis.step, 8.01);
        EXPECT_GE((axis.high - axis.low) / axis.step, 1.99);
    }
}

TEST(Chart, ThinningKeepsTheMeanAndTheOrder) {
    std::vector<Point> points;
    for (int i = 0; i < 1000; ++i) points.push_back({static_cast<double>(i), static_cast<double>(i % 10)});
    const auto thin = thin_out(points, 100);
    ASSERT_EQ(thin.size(), 100u);
    for (std::size_t i = 0; i < thin.size(); ++i) {
        EXPECT_DOUBLE_EQ(thin[i].y, 4.5);
        if (i > 0) {
            EXPECT_GT(thin[i].x, thin[i - 1].x);
        }
    }
    EXPECT_EQ(thin_out(points, 5000).size(), 1000u);
}
