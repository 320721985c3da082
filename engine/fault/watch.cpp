#include "engine/fault/watch.h"

#include <csignal>

#include <array>
#include <atomic>

#include "kernels/base/error.h"

namespace keel {
namespace {

constexpr std::array watched{SIGINT, SIGTERM, SIGHUP};

std::atomic<bool> asked{false};
std::atomic<bool> watching{false};
std::array<struct sigaction, watched.size()> before;

extern "C" void on_signal(int) { asked.store(true); }
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may only touch lock-free atomics");

}  // namespace

Watch::Watch(Group& group) : group_(group) {
    if (watching.exchange(true)) fail("watch: a run is being watched already; end it before starting another");
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
    for (std::size_t i = 0; i < watched.size(); ++i) sigaction(watched[i], &before[i], nullptr);
    watching.store(false);
}

bool Watch::asked_to_stop() { return group_.any(asked.load()); }

Verdict Watch::decide(bool save_due, bool last_step) {
    const bool stop = asked_to_stop();
    return {.save = save_due || stop || last_step, .stop = stop || last_step, .why = stop ? "signal" : last_step ? "done" : ""};
}

}  // namespace keel
