#include "engine/fault/watch.h"

#include <csignal>

#include <array>
#include <atomic>
#include <mutex>

namespace keel {
namespace {

constexpr std::array watched{SIGINT, SIGTERM, SIGHUP};

std::atomic<bool> asked{false};
std::mutex installing;
int watching = 0;  // ranks of this process that watch
std::array<struct sigaction, watched.size()> before;

extern "C" void on_signal(int) { asked.store(true); }
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may only touch lock-free atomics");

}  // namespace

Watch::Watch(Group& group) : group_(group) {
    const std::lock_guard lock(installing);
    if (watching++ > 0) return;
    asked.store(false);
    struct sigaction action = {};
    action.sa_handler = on_signal;
    action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;  // the second signal finds the default again
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

bool Watch::asked_to_stop() { return group_.any(asked.load()); }

Verdict Watch::decide(bool save_due, bool last_step) {
    const bool stop = asked_to_stop();
    return {.save = save_due || stop || last_step, .stop = stop || last_step, .why = stop ? "signal" : last_step ? "done" : ""};
}

}  // namespace keel
