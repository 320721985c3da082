// engine/observe/report.h: report.html: one self-contained file (inline SVG, no scripts, nothing from the net) that shows a
// run on a desk or a phone, light or dark. Curves and seconds are read from log.jsonl (run_log.h); the rest is handed in.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "engine/config.h"
#include "engine/observe/ledger.h"

namespace keel {

// What only the end of a run has to show in its report.
struct Ending {
    std::string sample{};        // text the model wrote
    std::string timeline{};      // SVG: what ran when on every rank in the last step
    std::string memory_chart{};  // SVG: the memory plan over a step
};

struct ReportFacts {
    Config config;
    std::int64_t parameters = 0;
    double matmul_peak = 0;  // 0: not measured
    double device_peak = 0;  // of one rank, by its datasheet; 0: not known
    std::string memory_table;
    int threads = 1, ranks = 1;
    Ending ending;
};

// Written beside `path` and renamed: a reader sees the old report or the new one.
void write_report(const std::filesystem::path& path, const std::filesystem::path& log, const ReportFacts& facts);

// A bar with a part per phase and its legend, for a page of html.h; `note` ends the legend. Empty where no time passed.
std::string time_bar(const PhaseSeconds& seconds, const std::string& note);

}  // namespace keel
