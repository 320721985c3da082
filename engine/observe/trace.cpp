#include "engine/observe/trace.h"

#include <cstdio>
#include <utility>
#include <vector>

#include "kernels/base/error.h"

namespace keel {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t most_calls = 1 << 15;  // of one step and thread; 2 MiB

fs::path part(const fs::path& run_dir, int rank) { return run_dir / "trace" / concat("rank-", rank, ".json"); }

void warn(const std::string& what) {
    std::fprintf(stderr, "keel: warning: %s; the trace is not whole\n", what.c_str());
}

}  // namespace

Trace::Trace(const Config& config, const Ranks& ranks, Stream& stream, std::int64_t next_step)
    : run_dir_(config.run.dir),
      ranks_(ranks),
      name_(concat("rank ", ranks.world.rank(), " (tp", ranks.place.tp, " cp", ranks.place.cp, " dp", ranks.place.dp,
                   " pp", ranks.place.pp, ")")) {
    if (config.observe.trace_steps.empty()) return;
    first_ = config.observe.trace_steps[0], last_ = config.observe.trace_steps[1];
    if (next_step > last_) return;
    std::error_code ignored;  // whoever opens a file in it says so
    if (ranks_.world.rank() == 0) fs::create_directories(run_dir_ / "trace", ignored);
    clock_ = meet(ranks_.world, stream);  // and the folder is there
    for (Calls* calls : {&here_, &beside_}) calls->reserve(most_calls);
    if (next_step >= first_) begin();
}

Trace::~Trace() { listen(false); }

void Trace::listen(bool on) {
    for (Group* group : {&ranks_.world, &ranks_.tp, &ranks_.cp, &ranks_.pp, &ranks_.replicas, &ranks_.embedding})
        group->note_calls(on ? &here_ : nullptr);
    ranks_.beside.note_calls(on ? &beside_ : nullptr);
}

void Trace::begin() {
    const int rank = ranks_.world.rank();
    tracing_ = true;
    try {
        file_ = std::make_unique<ChromeTrace>(
            part(run_dir_, rank), rank, name_, clock_,
            std::vector<std::pair<std::string, std::string>>{
                {"run", run_dir_.string()}, {"keel", KEEL_VERSION}, {"steps", concat(first_, " to ", last_)}});
    } catch (const Error& e) {
        warn(e.what());
    }
    forget();
    listen(true);
}

void Trace::cut(std::int64_t step, const Spans& here, const Spans& beside) {
    if (tracing_) {
        if (file_) file_->step({step, here, beside, here_, beside_});
        forget();
        if (step >= last_) end();
    } else if (step + 1 >= first_ && step < last_) {  // the step before the first may have been skipped
        begin();
    }
}

void Trace::checkpoint(std::int64_t step, Clock::time_point begin, Clock::time_point end) {
    if (file_) file_->checkpoint(step, begin, end);
}

void Trace::end() {
    if (!std::exchange(tracing_, false)) return;
    listen(false);
    const std::string problem = file_ ? file_->close() : "";
    file_.reset();
    if (!problem.empty()) warn(problem);
    ranks_.world.barrier();  // all files are there
    if (ranks_.world.rank() != 0) return;
    std::vector<fs::path> parts;
    for (int r = 0; r < ranks_.world.size(); ++r) parts.push_back(part(run_dir_, r));
    try {
        merge_traces(parts, run_dir_ / "trace.json");
    } catch (const Error& e) {
        warn(e.what());
    }
}

}  // namespace keel
