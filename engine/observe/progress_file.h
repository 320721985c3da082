// engine/observe/progress_file.h: RUN/progress.txt: what the jobs of a run have done, a line per event, for people and
// scripts.
//
//   2026-01-31 12:00:00⇥Job ID: 4711⇥# ranks: 8⇥Starting job⇥Iteration: 0⇥Floating-point operations: 0
//   2026-01-31 12:50:00⇥Job ID: 4711⇥# ranks: 8⇥Saving checkpoint⇥Iteration: 100⇥Job throughput: 41.7 TFLOP/s/rank
//       ⇥Cumulative throughput: 41.7 TFLOP/s/rank⇥Floating-point operations: 1e+18⇥Tokens (in billions): 0.25
//   2026-01-31 12:50:20⇥Job ID: 4711⇥# ranks: 8⇥Saved checkpoint⇥Iteration: 100
//
// ⇥ is a tab; times are UTC. Lines are only ever added. "Saving" is provisional: its work counts once "Saved" of the
// same iteration follows; a job that falls in between has lost it. Work is what a checkpoint holds, so that of a job
// that was killed is counted by the job that goes on from it.
//
//   job throughput         (FLOPs now - FLOPs at the start of this job) / seconds since / ranks
//   cumulative throughput  the same since the first start of a row of jobs with as many ranks as this one; a job with
//                          another number begins the row anew, and so does one that starts from before it. The time
//                          between two jobs counts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "engine/observe/append_file.h"

namespace keel {

// Where a row of jobs with the same number of ranks began.
struct ProgressStart {
    double unix_time = 0, flops = 0;
};

// What the text of a progress file says to a job with `ranks`: nullopt if no job like it has begun (since one unlike
// it). Each damaged line is told with `name` and its number, and left out.
std::optional<ProgressStart> progress_start(std::string_view text, int ranks, const std::string& name,
                                            const Warn& warn);

// FLOP/s per rank.
double throughput(const ProgressStart& start, double unix_time, double flops, int ranks);

class ProgressFile {
public:
    // Reads what earlier jobs wrote, and adds to it. Nothing allocates afterwards.
    ProgressFile(const std::filesystem::path& path, int ranks, const std::string& job, Warn warn);

    void start(double unix_time, std::int64_t step, double flops);
    void saving(double unix_time, std::int64_t step, double flops, std::int64_t tokens);  // about to be written
    void saved(double unix_time, std::int64_t step);                                      // announced

private:
    void line(double unix_time, const char* format, auto... values);

    int ranks_;
    std::string prefix_;  // of every line, after its time
    std::optional<ProgressStart> row_;  // as earlier jobs left it
    ProgressStart job_start_, row_start_;
    AppendFile file_;
};

// Slurm's, PBS's or LSF's number of the job, or that of this process.
std::string job_id();

}  // namespace keel
