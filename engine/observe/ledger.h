// engine/observe/ledger.h: where the seconds of a rank went. Exactly one phase runs at any time, so the phases sum to wall
// time by construction: nothing is counted twice and nothing is lost.
//
//     Ledger ledger;                                      // starts in Phase::startup, at process_start()
//     { Ledger::Scope s(ledger, Phase::compute); … }      // back to the phase before, afterwards
//
// Communication is no phase that anybody enters: collectives lie deep in the model. What they count is taken out of the phase
// in which they were called (set_apart). docs/observe.md says what each phase holds, also across restarts.
// One thread (the one that runs the loop) uses a Ledger. Nothing here allocates but set_apart.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

namespace keel {

using Clock = std::chrono::steady_clock;

inline double seconds_between(Clock::time_point begin, Clock::time_point end) {
    return std::chrono::duration<double>(end - begin).count();
}

// The first call fixes it; main() calls it before anything else. A process that a supervisor forks begins anew.
inline Clock::time_point& process_start() {
    static Clock::time_point start = Clock::now();
    return start;
}

inline double unix_seconds() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

enum class Phase : std::uint8_t {
    startup, data_wait, compute, communication, optimizer, eval, checkpoint, recovery, idle
};
inline constexpr std::size_t phase_count = 9;
using PhaseSeconds = std::array<double, phase_count>;
constexpr const char* name(Phase phase) {
    constexpr const char* names[] = {"start-up",   "data wait",  "forward and backward", "communication", "optimizer",
                                     "evaluation", "checkpoint", "recovery",             "idle"};
    return names[static_cast<std::size_t>(phase)];
}
// Its name in log.jsonl.
constexpr const char* key(Phase phase) {
    constexpr const char* keys[] = {"startup_seconds",   "data_wait_seconds", "compute_seconds",
                                    "communication_seconds", "optimizer_seconds", "eval_seconds",
                                    "checkpoint_seconds", "recovery_seconds",  "idle_seconds"};
    return keys[static_cast<std::size_t>(phase)];
}
// What a training step is made of: what throughput is measured against.
constexpr bool is_training(Phase phase) {
    return phase == Phase::data_wait || phase == Phase::compute || phase == Phase::communication || phase == Phase::optimizer;
}
// Where waiting for other ranks is exposed communication; elsewhere it is part of what is being done.
constexpr bool may_communicate(Phase phase) {
    return phase == Phase::compute || phase == Phase::optimizer || phase == Phase::idle;
}

// Start-up, from the clock's first reading to the end of the first step, after which it is over.
enum class Startup : std::uint8_t { load, data, groups, model, optimizer, checkpoint, ceiling, first_step, over };
inline constexpr std::size_t startup_count = 9;
constexpr const char* name(Startup part) {
    constexpr const char* names[] = {"load",      "data",       "groups",  "model",
                                     "optimizer", "checkpoint", "ceiling", "first_step", "over"};
    return names[static_cast<std::size_t>(part)];
}

// A stopwatch with one dial per Part. Exactly one runs at any time, at first the first.
template <class Part, std::size_t parts> class Dials {
public:
    explicit Dials(Clock::time_point start = process_start()) : start_(start), since_(start) {}

    // Ends the current part and begins another.
    void enter(Part part, Clock::time_point now = Clock::now()) {
        const double elapsed = seconds_between(since_, now), counted = counted_ ? counted_() : 0, apart = apart_now(elapsed, counted);
        dial(part_) += elapsed - apart;
        if (apart > 0) dial(apart_) += apart;
        since_ = now, counted_then_ = counted;
        part_ = part;
    }
    Part part() const { return part_; }

    // Until now, what is running included.
    double seconds(Part part, Clock::time_point now = Clock::now()) const {
        const double elapsed = seconds_between(since_, now), apart = apart_now(elapsed, counted_ ? counted_() : 0);
        return seconds_[static_cast<std::size_t>(part)] + (part == part_ ? elapsed - apart : 0.0) + (apart > 0 && part == apart_ ? apart : 0.0);
    }
    std::array<double, parts> all_seconds(Clock::time_point now = Clock::now()) const {
        std::array<double, parts> all;
        for (std::size_t i = 0; i < parts; ++i) all[i] = seconds(static_cast<Part>(i), now);
        return all;
    }
    double wall_seconds(Clock::time_point now = Clock::now()) const { return seconds_between(start_, now); }

    // The run began earlier than this rank did: the first part, which is running, is longer.
    void begin_earlier(double seconds) {
        const auto before = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::max(seconds, 0.0)));
        start_ -= before, since_ -= before;
    }

    // From now on, seconds that `counted` counts (it only grows) go from the parts of which `from` is true to `apart`.
    // `counted` is called by whoever enters or reads, and must live as long.
    void set_apart(Part apart, bool (*from)(Part), std::function<double()> counted) {
        enter(part_);
        apart_ = apart, from_ = from, counted_ = std::move(counted);
        counted_then_ = counted_();
    }

    class Scope {
    public:
        Scope(Dials& dials, Part part) : dials_(dials), before_(dials.part()) { dials_.enter(part); }
        ~Scope() { dials_.enter(before_); }
        Scope(const Scope&) = delete;
        Scope& operator=(const Scope&) = delete;

    private:
        Dials& dials_;
        Part before_;
    };

private:
    double& dial(Part part) { return seconds_[static_cast<std::size_t>(part)]; }
    double apart_now(double elapsed, double counted) const {
        return from_ && from_(part_) ? std::clamp(counted - counted_then_, 0.0, std::max(elapsed, 0.0)) : 0.0;
    }

    Clock::time_point start_, since_;
    Part part_{}, apart_{};
    bool (*from_)(Part) = nullptr;
    std::function<double()> counted_;
    double counted_then_ = 0;
    std::array<double, parts> seconds_{};
};

using Ledger = Dials<Phase, phase_count>;
using StartupDials = Dials<Startup, startup_count>;

}  // namespace keel
