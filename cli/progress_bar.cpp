#include "cli/progress_bar.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "engine/observe/log_line.h"

namespace keel {
namespace {

double seconds_between(std::chrono::steady_clock::time_point a, std::chrono::steady_clock::time_point b) {
    return std::chrono::duration<double>(b - a).count();
}

}  // namespace

ProgressBar::ProgressBar(std::string label, std::int64_t total, std::string unit)
    : label_(std::move(label)), unit_(std::move(unit)), total_(total), start_(std::chrono::steady_clock::now()),
      drawn_(start_), terminal_(isatty(STDERR_FILENO) == 1) {}

void ProgressBar::update(std::int64_t done) {
    const auto now = std::chrono::steady_clock::now();
    if (!terminal_ || (seconds_between(drawn_, now) < 0.1 && done < total_)) return;
    drawn_ = now;
    shown_ = true;
    constexpr int width = 30;
    const double share = total_ > 0 ? std::min(1.0, static_cast<double>(done) / static_cast<double>(total_)) : 0.0;
    const double seconds = seconds_between(start_, now), rate = seconds > 0 ? static_cast<double>(done) / seconds : 0.0;
    const bool bytes = unit_ == "B";
    const double left = rate > 0 ? static_cast<double>(total_ - done) / rate : -1;  // not known
    char bar[width + 1];
    for (int i = 0; i < width; ++i) bar[i] = i < static_cast<int>(share * width) ? '#' : '.';
    bar[width] = 0;
    std::fprintf(stderr, "\r%s [%s] %3.0f %%  %.1f %s/s  %s left \033[K", label_.c_str(), bar, 100 * share,
                 bytes ? rate / 1e6 : rate, bytes ? "MB" : unit_.c_str(), duration_text(left).text);
    std::fflush(stderr);
}

void ProgressBar::finish() {
    if (shown_) std::fputs("\r\033[K", stderr), std::fflush(stderr);
    shown_ = false;
}

}  // namespace keel
