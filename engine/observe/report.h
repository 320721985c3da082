// engine/observe/report.h: report.html: one self-contained file (inline SVG, no scripts, nothing from the net) that shows a
// run on a desk or a phone, light or dark. The curves are read from log.jsonl; the rest is handed in.
//
// A run that was stopped and resumed has one log. A "start" record at step s cuts away what an earlier session logged past
// s: those steps were lost with it. A damaged last line (a crash while writing) is ignored.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/config.h"
#include "engine/observe/chart.h"
#include "engine/observe/ledger.h"

namespace keel {

struct ReportFacts {
    Config config;
    std::int64_t parameters = 0;
    double matmul_peak = 0;  // 0: not measured
    std::string memory_table;
    int threads = 1;
    std::string sample;
};

// What log.jsonl says.
struct RunLog {
    std::vector<Point> loss, eval_loss, lr, grad_norm, tokens_per_second;  // x: step
    double last_perplexity = 0, last_bits_per_byte = 0;                    // 0: unknown
    double flops = 0, flops_seconds = 0;                                   // of all steps kept
    std::int64_t steps = 0, tokens = 0, skipped = 0;
    std::array<double, phase_count> phase_seconds{};                       // of all sessions that ended by themselves
    std::string why;                                                       // how the last session ended
    int sessions = 0;
};
RunLog read_log(const std::filesystem::path& path);

// Written beside `path` and renamed: a reader sees the old report or the new one.
void write_report(const std::filesystem::path& path, const std::filesystem::path& log, const ReportFacts& facts);

std::string html_escape(const std::string& text);

}  // namespace keel
