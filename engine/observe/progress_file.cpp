#include "engine/observe/progress_file.h"

#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <sstream>
#include <vector>

#include "engine/observe/log_line.h"
#include "kernels/base/error.h"

namespace keel {
namespace fs = std::filesystem;
namespace {

constexpr const char* time_format = "%Y-%m-%d %H:%M:%S";

std::optional<double> time_of(const std::string& text) {
    std::tm parts{};
    const char* end = strptime(text.c_str(), time_format, &parts);
    if (!end || *end) return std::nullopt;
    return static_cast<double>(timegm(&parts));
}

// Of floating-point operations: all digits. Three, as other systems write, lose the work of days.
NumberText all_digits(double value) {
    NumberText out{};
    std::to_chars(out.text, out.text + sizeof out.text - 1, value);
    return out;
}

template <class T> std::optional<T> number(std::string_view text) {
    T value{};
    const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (status != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return value;
}

struct Line {
    double unix_time = 0;
    int ranks = 0;
    std::string event;
    std::optional<std::int64_t> step;
    std::optional<double> flops;
};

std::optional<Line> parse(const std::string& text) {
    std::vector<std::string> fields;
    std::istringstream in(text);
    for (std::string field; std::getline(in, field, '\t');) fields.push_back(field);
    const auto value = [&](std::string_view key) -> std::optional<std::string_view> {
        for (const std::string& field : fields)
            if (field.starts_with(key) && std::string_view(field).substr(key.size()).starts_with(": "))
                return std::string_view(field).substr(key.size() + 2);
        return std::nullopt;
    };
    if (fields.size() < 4) return std::nullopt;
    const auto time = time_of(fields[0]);
    const auto ranks = value("# ranks"), step = value("Iteration"), flops = value("Floating-point operations");
    const auto count = ranks ? number<int>(*ranks) : std::nullopt;
    if (!time || !count) return std::nullopt;
    Line line{*time, *count, fields[3], {}, {}};
    if (step && !(line.step = number<std::int64_t>(*step))) return std::nullopt;
    if (flops && !(line.flops = number<double>(*flops))) return std::nullopt;
    if (line.event == "Starting job") return line;
    if (line.event == "Saving checkpoint") return line.step && line.flops ? std::optional(line) : std::nullopt;
    if (line.event == "Saved checkpoint") return line.step ? std::optional(line) : std::nullopt;
    return std::nullopt;
}

std::string text_of(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

std::optional<ProgressStart> progress_start(std::string_view text, int ranks, const std::string& name,
                                            const Warn& warn) {
    std::optional<ProgressStart> start;
    std::optional<Line> provisional;
    double committed = 0;
    std::istringstream in{std::string(text)};
    int number = 0;
    for (std::string line; std::getline(in, line);) {
        ++number;
        const std::optional<Line> at = line.empty() ? std::nullopt : parse(line);
        if (!at) {
            if (!line.empty())
                warn(concat(name, ":", number, ": this line is damaged and left out: ", line.substr(0, 60)));
            continue;
        }
        if (at->ranks != ranks) start.reset();
        if (at->event == "Saving checkpoint") {
            provisional = at;
        } else if (at->event == "Saved checkpoint") {
            if (provisional && provisional->step == at->step) committed = *provisional->flops;
            provisional.reset();
        } else {
            provisional.reset();  // that job is gone
            if (at->flops) committed = *at->flops;  // of the checkpoint it goes on from, which may be an older one
            if (start && committed < start->flops) start.reset();
            if (at->ranks == ranks && !start) start = ProgressStart{at->unix_time, committed};
        }
    }
    return start;
}

double throughput(const ProgressStart& start, double unix_time, double flops, int ranks) {
    const double seconds = unix_time - start.unix_time;
    return seconds > 0 ? (flops - start.flops) / seconds / ranks : 0.0;
}

ProgressFile::ProgressFile(const fs::path& path, int ranks, const std::string& job, Warn warn)
    : ranks_(ranks),
      prefix_(concat("\tJob ID: ", job, "\t# ranks: ", ranks, "\t")),
      row_(progress_start(text_of(path), ranks, path.string(), warn)),
      file_(path, "a", warn) {
    const std::string before = text_of(path);
    if (!before.empty() && before.back() != '\n') file_.write("\n");  // a job that was killed in the middle of a line
}

void ProgressFile::start(double unix_time, std::int64_t step, double flops) {
    job_start_ = {unix_time, flops};
    row_start_ = row_ && row_->flops <= flops ? *row_ : job_start_;
    line(unix_time, "Starting job\tIteration: %lld\tFloating-point operations: %s", static_cast<long long>(step),
         all_digits(flops).text);
}

void ProgressFile::saving(double unix_time, std::int64_t step, double flops, std::int64_t tokens) {
    const auto rate = [&](const ProgressStart& start) {
        return number_text("%.4g", throughput(start, unix_time, flops, ranks_) / 1e12);
    };
    line(unix_time,
         "Saving checkpoint\tIteration: %lld\tJob throughput: %s TFLOP/s/rank\tCumulative throughput: %s TFLOP/s/rank\t"
         "Floating-point operations: %s\tTokens (in billions): %s",
         static_cast<long long>(step), rate(job_start_).text, rate(row_start_).text, all_digits(flops).text,
         all_digits(static_cast<double>(tokens) / 1e9).text);
}

void ProgressFile::saved(double unix_time, std::int64_t step) {
    line(unix_time, "Saved checkpoint\tIteration: %lld", static_cast<long long>(step));
}

void ProgressFile::line(double unix_time, const char* format, auto... values) {
    const auto whole = static_cast<std::time_t>(unix_time);
    std::tm parts{};
    gmtime_r(&whole, &parts);
    char text[512];
    const std::size_t time = std::strftime(text, sizeof text, time_format, &parts);
    file_.write({text, time});
    file_.write(prefix_);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    file_.write({text, static_cast<std::size_t>(std::snprintf(text, sizeof text, format, values...))});
#pragma GCC diagnostic pop
    file_.write("\n");
    file_.flush();
}

std::string job_id() {
    for (const char* name : {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"})
        if (const char* id = std::getenv(name); id && *id) return id;
    return std::to_string(getpid());
}

}  // namespace keel
