#include "tests/gpu/result.h"

#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "kernels/base/error.h"

namespace keel::gpu_check {

void Result::add(nlohmann::json row, const Share& share) {
    row["of"] = share.of;
    const auto rounded = [](double x) { return std::round(1e3 * x) / 1e3; };
    row["share"] = rounded(share.value);
    row["goal"] = share.goal ? nlohmann::json(rounded(*share.goal)) : nlohmann::json();
    if (!judged_ || !share.goal) {
        row["verdict"] = "not judged";
    } else {
        const bool reached = share.value >= *share.goal;  // a NaN does not
        row["verdict"] = reached ? "good" : "below";
        ++judged_rows_;
        below_ += !reached;
    }
    add(std::move(row));
}

std::string Result::line() const {
    if (!judged_) return summary + " (speed is not judged)";
    return judged_rows_ == 0 ? summary : summary + text("; %d of %d are below their goals", below_, judged_rows_);
}

void Result::write() const {
    const std::string half = file_ + ".half";  // who is stopped while writing leaves the file as it was
    std::ofstream out(half);
    out << rows_.dump(1) << "\n";
    out.close();
    if (!out) fail("cannot write ", half, "; is the disk full?");
    std::filesystem::rename(half, file_);
}

double tera(double per_second) { return std::round(per_second / 1e9) / 1e3; }

std::string text(const char* format, ...) {
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    return line;
}

}  // namespace keel::gpu_check
