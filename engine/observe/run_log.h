// engine/observe/run_log.h: log.jsonl read back: curves, totals, and where the time of a run went over all its
// sessions.
//
// A run that was stopped and resumed has one log. A "start" record at step s cuts away what an earlier session logged
// past s: those steps were lost with it, and what they took is recovery. A damaged last line (a crash while writing) is
// ignored.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "engine/observe/chart.h"
#include "engine/observe/ledger.h"

namespace keel {

// One process's part of a run. Seconds are since its beginning.
struct Session {
    struct Reading {
        std::int64_t step = 0;
        PhaseSeconds seconds{};
        double wall_seconds = 0;
    };
    double begin = 0;                 // unix time
    std::int64_t from = 0;            // the step it went on after
    std::vector<Reading> readings{};  // in order
    std::string why{};                // how it ended; empty if nobody knows: it was killed, or goes on
};

// Of all sessions together, by phase. Their sum is the time from the first beginning to the last reading:
//   * a session's phases, up to the last reading that its successor goes on from (all, if it lost no step);
//   * recovery: what it did after that, and the time until its successor began, if it did not end by itself;
//   * idle: the time between a session that ended by itself and its successor.
PhaseSeconds run_seconds(std::span<const Session> sessions);
double sum(const PhaseSeconds& seconds);
// The share of the time that made the model better: forward and backward, and the optimizer.
double goodput(const PhaseSeconds& seconds);

// A part of start-up, over ranks; and what one rank did in all of the last session.
struct StartupRow {
    Startup part;
    double min = 0, max = 0;
    int max_rank = 0;
};
struct RankRow {
    int rank = 0;
    std::string host{};
    double steps = 0, flops_per_second = 0;
    PhaseSeconds seconds{};
};

struct RunLog {
    std::vector<Point> loss, eval_loss, lr, grad_norm, tokens_per_second;  // x: step
    std::vector<Point> loss_by_tokens, eval_by_tokens;
    double last_perplexity = 0, last_bits_per_byte = 0;  // 0: unknown
    double flops = 0, flops_seconds = 0;                 // of all steps kept
    double matmul_peak = 0;                              // FLOP/s, of the last session; 0: not measured
    std::int64_t steps = 0, tokens = 0, skipped = 0, parameters = 0;  // tokens and steps from the weights' first on
    std::int64_t tokens_before = 0;                      // of them, trained on before this log begins: in another run's folder
    std::vector<Session> sessions;
    PhaseSeconds seconds{};           // run_seconds(sessions)
    std::string why;                  // how the last session ended
    std::vector<StartupRow> startup;  // of the last session; empty before its first step
    std::vector<RankRow> ranks;       // of the last session; empty where nobody compared
    double observe_seconds = 0;       // what it took to observe the last session
};
// Throws where it cannot be read.
RunLog read_log(const std::filesystem::path& path);

}  // namespace keel
