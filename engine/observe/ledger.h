// engine/observe/ledger.h: where the seconds of a process went. Exactly one phase runs at any time, so the phases sum to
// wall time by construction: nothing is counted twice and nothing is lost.
//
//     Ledger ledger;                                      // starts in Phase::startup, at process_start()
//     { Ledger::Scope s(ledger, Phase::step); train_step(); }   // back to the phase before, afterwards
//
// One thread (the one that runs the loop) uses a Ledger. Nothing here allocates.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace keel {

using Clock = std::chrono::steady_clock;

// The first call fixes it; main() calls it before anything else.
inline Clock::time_point process_start() {
    static const Clock::time_point start = Clock::now();
    return start;
}

enum class Phase : std::uint8_t { startup, data_wait, step, eval, checkpoint, other };
inline constexpr std::size_t phase_count = 6;
constexpr const char* name(Phase phase) {
    constexpr const char* names[] = {"start-up", "data wait", "step", "evaluation", "checkpoint", "other"};
    return names[static_cast<std::size_t>(phase)];
}
// Its name in log.jsonl.
constexpr const char* key(Phase phase) {
    constexpr const char* keys[] = {"startup_seconds", "data_wait_seconds",  "step_seconds",
                                    "eval_seconds",    "checkpoint_seconds", "other_seconds"};
    return keys[static_cast<std::size_t>(phase)];
}

class Ledger {
public:
    explicit Ledger(Clock::time_point start = process_start()) : start_(start), since_(start) {}

    // Ends the current phase and begins another.
    void enter(Phase phase, Clock::time_point now = Clock::now()) {
        seconds_[static_cast<std::size_t>(phase_)] += std::chrono::duration<double>(now - since_).count();
        since_ = now;
        phase_ = phase;
    }
    Phase phase() const { return phase_; }

    // Until now, the phase that is running included.
    double seconds(Phase phase, Clock::time_point now = Clock::now()) const {
        return seconds_[static_cast<std::size_t>(phase)] +
               (phase == phase_ ? std::chrono::duration<double>(now - since_).count() : 0.0);
    }
    double wall_seconds(Clock::time_point now = Clock::now()) const {
        return std::chrono::duration<double>(now - start_).count();
    }

    class Scope {
    public:
        Scope(Ledger& ledger, Phase phase) : ledger_(ledger), before_(ledger.phase()) { ledger_.enter(phase); }
        ~Scope() { ledger_.enter(before_); }
        Scope(const Scope&) = delete;
        Scope& operator=(const Scope&) = delete;

    private:
        Ledger& ledger_;
        Phase before_;
    };

private:
    Clock::time_point start_, since_;
    Phase phase_ = Phase::startup;
    std::array<double, phase_count> seconds_{};
};

}  // namespace keel
