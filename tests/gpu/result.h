// tests/gpu/result.h: what a section of the device check found: rows for whoever reads the JSON, in the file as soon as they are
// known, so that a section which is stopped keeps those it has; a line for the table; and how far each row is from its goal.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace keel::gpu_check {

// A rate as a share of what bounds it, and the least that is expected. Goals are those of an H200, in shares, so that most
// hold for other GPUs; docs/gpu.md says where they come from.
struct Share {
    double value;
    const char* of;              // "copy", "product"
    std::optional<double> goal;  // none: it is stated, and not judged
};

class Result {
public:
    // Nothing is judged where times mean nothing: on the simulator.
    Result(std::string file, bool judged) : file_(std::move(file)), judged_(judged) { write(); }

    std::string summary;  // for the table
    bool good = true;     // but for speed

    void add(nlohmann::json row) {
        rows_.push_back(std::move(row));
        write();
    }
    // The row gets what it is held to, and a "verdict": good, below, or not judged.
    void add(nlohmann::json row, const Share& share);

    std::size_t rows() const { return rows_.size(); }
    int below() const { return below_; }  // rows that miss their goal
    std::string line() const;             // the summary, and how many do
    // 0 if all is as it should be, 1 if something is wrong, 3 if it is right and too slow.
    int exit_code() const { return !good ? 1 : below_ > 0 ? 3 : 0; }

private:
    void write() const;  // all rows, in place of the file as it was

    std::string file_;
    bool judged_;
    nlohmann::json rows_ = nlohmann::json::array();
    int judged_rows_ = 0, below_ = 0;
};

double tera(double per_second);  // 1e12, to three digits
std::string text(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace keel::gpu_check
