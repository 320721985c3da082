#include "engine/fault/watch.h"

#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <utility>

namespace keel {
namespace {

constexpr std::array watched{SIGINT, SIGTERM, SIGHUP};
constexpr std::int64_t same_wish_ns = 1'000'000'000;

std::atomic<int> asked{0};  // by which signal
std::atomic<bool> told{false};
std::atomic<std::int64_t> asked_ns{0};
static_assert(std::atomic<std::int64_t>::is_always_lock_free, "a signal handler may only touch lock-free atomics");
std::mutex installing;
int watching = 0;  // ranks of this process that watch
std::array<struct sigaction, watched.size()> before;

extern "C" void on_signal(int signal) {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    const std::int64_t ns = now.tv_sec * 1'000'000'000 + now.tv_nsec;
    std::int64_t first = 0;  // the time goes first: whoever comes second must find it
    if (asked_ns.compare_exchange_strong(first, ns)) return asked.store(signal);
    if (ns - first < same_wish_ns) return;
    static constexpr char words[] = "keel: a second signal: leaving at once, without another checkpoint\n";
    (void)!write(STDERR_FILENO, words, sizeof words - 1);
    std::signal(signal, SIG_DFL);
    std::raise(signal);  // as soon as this handler returns
}

double elapsed_s() { return std::chrono::duration<double>(Clock::now() - job_start()).count(); }

}  // namespace

Watch::Watch(Group& group, double limit_s, std::function<double()> save_s, double long_step_s)
    : group_(group), long_step_s_(long_step_s), decided_s_(elapsed_s()), deadline_(limit_s, decided_s_), save_s_(std::move(save_s)) {
    const std::lock_guard lock(installing);
    if (watching++ > 0) return;
    asked.store(0), asked_ns.store(0), told.store(false);
    struct sigaction action = {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    for (std::size_t i = 0; i < watched.size(); ++i) {
        sigaction(watched[i], nullptr, &before[i]);
        // nohup ignores the end of the terminal, and then that is no wish to stop.
        if (watched[i] != SIGHUP || before[i].sa_handler != SIG_IGN) sigaction(watched[i], &action, nullptr);
    }
}

Watch::~Watch() {
    const std::lock_guard lock(installing);
    if (--watching > 0) return;
    for (std::size_t i = 0; i < watched.size(); ++i) sigaction(watched[i], &before[i], nullptr);
}

bool Watch::asked_to_stop() {
    const int signal = asked.load();
    if (signal != 0 && !told.exchange(true))
        std::fprintf(stderr,
                     "keel: rank %d: told to stop by signal %d (%s): a checkpoint is written first; a second signal ends at once\n",
                     group_.members()[static_cast<std::size_t>(group_.rank())], signal, strsignal(signal));
    const bool late = deadline_.due(elapsed_s(), save_s_());
    return group_.any(signal != 0 || late);
}

Verdict Watch::decide(bool save_due, const char* leave) {
    const double now = elapsed_s();
    long_steps_ = group_.any(now - std::exchange(decided_s_, now) >= long_step_s_);
    const bool asked_to = asked_to_stop(), scheduled = *leave != '\0';
    if (!asked_to || std::strcmp(leave, "done") == 0) return {.save = save_due || scheduled, .stop = scheduled, .why = leave};
    // A signal may have come to one rank and the limit to another: the signal is what somebody will want to read of.
    const bool by_signal = group_.any(asked.load() != 0);
    if (!by_signal && group_.rank() == 0)
        std::fprintf(stderr,
                     "keel: leaving after %.1f s, so that a checkpoint fits before --exit.after_s %g (%.1f s are kept for it)\n",
                     elapsed_s(), deadline_.limit_s(), deadline_.reserve_s());
    return {.save = true, .stop = true, .why = by_signal ? "signal" : "time"};
}

}  // namespace keel
