#include "engine/fault/finding.h"

#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>

#include "comm/agree.h"
#include "kernels/base/file.h"

namespace keel {

namespace fs = std::filesystem;
using json = nlohmann::ordered_json;

Findings::Findings(const fs::path& run, Group& world, const std::string& host, bool remember)
    : world_(world), file_(run / "faults.jsonl") {
    for (const std::string& of_rank : gather_strings(world, host)) hosts_.insert(of_rank);
    const std::string text = remember && world.rank() == 0 && fs::exists(file_) ? read_file(file_) : std::string();
    read(gather_strings(world, text)[0]);
}

// A line that a full disk cut short, or somebody spoilt, is passed over: nothing in it can be relied on.
void Findings::read(const std::string& text) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) try {
            const json found = json::parse(line);
            const auto step = found.at("step").get<std::int64_t>();
            const auto hosts = found.at("hosts").get<std::set<std::string>>();
            if (found.at("verdict") == "open") open_step_ = step, open_hosts_ = hosts;
            if (found.at("verdict") == "settled" && step == open_step_) open_step_ = -1;
        } catch (const json::exception&) {
        }
}

// It is worth more to leave with the right code than to have it on a disk that may be full.
void Findings::append(const std::string& line) const {
    try {
        write_file_atomically(file_, (fs::exists(file_) ? read_file(file_) : std::string()) + line);
    } catch (const std::exception& e) {
        std::fprintf(stderr, "keel: warning: %s; the next start will not know what was found\n", e.what());
    }
}

const std::set<std::string>& Findings::open_hosts(std::int64_t step) const { return step == open_step_ ? open_hosts_ : none_; }

void Findings::add(Finding finding) {
    const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    const json line = {{"event", "fault"}, {"time", now}, {"verdict", finding.verdict}, {"step", finding.step},
                       {"first_sample", finding.first_sample}, {"samples", finding.samples}, {"seen", finding.seen},
                       {"where", finding.where}, {"hosts", hosts_}, {"dump", finding.dump},
                       {"exit_code", static_cast<int>(finding.code)}};
    const std::string text = line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    if (world_.rank() == 0) {
        append(text);
        if (log_) log_(text.c_str());
        const std::string told = concat("keel: ", finding.code == ExitCode::ok ? "warning" : "fault", ": step ", finding.step, ", samples ",
                                        finding.first_sample, " to ", finding.first_sample + finding.samples - 1, ": ", finding.seen,
                                        " (", finding.verdict, ")\n", finding.where, "  ", finding.advice, "\n");
        std::fputs(told.c_str(), stderr);
        if (!finding.dump.empty()) std::fprintf(stderr, "  The samples are in %s\n", finding.dump.c_str());
    }
    read(text);
    if (finding.code != ExitCode::ok && !stop_) stop_ = std::move(finding);
}

void Findings::leave() const {
    if (!stop_) return;
    const std::string text = concat("the run left at step ", stop_->step, ": ", stop_->seen, " (", stop_->verdict, "); ", file_.string(),
                                    " has it all");
    throw Error(text, std::source_location::current(), stop_->code);
}

}  // namespace keel
