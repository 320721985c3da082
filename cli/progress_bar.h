// cli/progress_bar.h: how far long work has come, with its rate and the time left, on a terminal. Elsewhere it is silent:
// a log file is no place for carriage returns.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace keel {

class ProgressBar {
public:
    // `total` in `unit`s; a unit of "B" is shown as MB and MB/s. Drawn on stderr if that is a terminal.
    ProgressBar(std::string label, std::int64_t total, std::string unit);
    ~ProgressBar() { finish(); }

    void update(std::int64_t done);  // draws at most ten times a second
    void finish();                   // takes the bar away

private:
    std::string label_, unit_;
    std::int64_t total_;
    std::chrono::steady_clock::time_point start_, drawn_;
    bool terminal_, shown_ = false;
};

}  // namespace keel
