#include "cli/supervise.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>

#include "ckpt/checkpoint.h"
#include "ckpt/local_checkpoints.h"
#include "engine/fault/deadline.h"
#include "engine/observe/ledger.h"
#include "kernels/base/error.h"

namespace keel {
namespace {

constexpr std::array watched{SIGINT, SIGTERM, SIGHUP};
volatile std::sig_atomic_t child_id = 0, asked_to_stop = 0;

// Whoever tells the watcher to stop means the run: it saves and leaves, and is not started again.
extern "C" void pass_on(int signal) {
    asked_to_stop = signal;
    if (child_id > 0) kill(static_cast<pid_t>(child_id), signal);
}

void say(const std::string& text) {
    std::fprintf(stderr, "keel: %s\n", text.c_str());
    std::fflush(stderr);
}

// Where a start would go on from; -1 where it would begin anew.
std::int64_t newest_step(const Supervision& how) {
    const auto saved = find_newest_checkpoint(how.checkpoints, [](const std::string& damage) { say("warning: " + damage); });
    std::optional<std::int64_t> local;
    if (!how.local.empty()) local = LocalCheckpoints::newest_here(how.local, how.checkpoints, how.ranks);
    return std::max(saved ? saved->step : -1, local.value_or(-1));
}

std::string how_it_ended(int status) {
    if (WIFSIGNALED(status)) return concat("was killed by signal ", WTERMSIG(status), " (", strsignal(WTERMSIG(status)), ")");
    const int code = WEXITSTATUS(status);
    const char* why = code == static_cast<int>(ExitCode::peer)   ? " (a rank left or did not come)"
                      : code == static_cast<int>(ExitCode::hang) ? " (it hung)"
                                                                 : "";
    return concat("ended with code ", code, why);
}

// Why starting it again here would end the same way, or worse; "" if it may be tried.
std::string hopeless(int code) {
    if (code == static_cast<int>(ExitCode::usage)) return "the configuration was refused, and would be again";
    if (code == static_cast<int>(ExitCode::fault)) return "what was found must be looked at first";
    if (code == static_cast<int>(ExitCode::device))
        return "a machine failed its self-test, or a rank stands out (--watch.even); go on from the run's checkpoints without that machine";
    return {};
}

// Sleeps unless told to stop.
void pause_for(double seconds) {
    for (double left = seconds; left > 0 && !asked_to_stop; left -= 0.05) usleep(50'000);
}

}  // namespace

Supervised supervise(const Supervision& how) {
    struct sigaction action = {};
    action.sa_handler = pass_on;
    std::array<struct sigaction, watched.size()> before;
    for (std::size_t i = 0; i < watched.size(); ++i) {
        sigaction(watched[i], nullptr, &before[i]);
        // nohup ignores the end of the terminal, and then that is no wish to stop.
        if (before[i].sa_handler != SIG_IGN) sigaction(watched[i], &action, nullptr);
    }
    sigset_t held, unheld;
    sigemptyset(&held);
    for (const int signal : watched) sigaddset(&held, signal);

    (void)job_start();  // the limit of wall clock counts from here, not from the last restart
    std::int64_t step = newest_step(how);
    double delay = how.delay_s;
    int in_vain = 0;
    for (int restarts = 0;; ++restarts) {
        std::fflush(nullptr);
        sigprocmask(SIG_BLOCK, &held, &unheld);  // none may come between the fork and knowing whom to pass it on to
        if (asked_to_stop) {  // while checkpoints were looked at
            sigprocmask(SIG_SETMASK, &unheld, nullptr);
            return {false, 128 + asked_to_stop};
        }
        const pid_t child = fork();
        if (child < 0) fail("a process for the run could not be made: ", std::strerror(errno));
        if (child == 0) {
            for (std::size_t i = 0; i < watched.size(); ++i) sigaction(watched[i], &before[i], nullptr);
            sigprocmask(SIG_SETMASK, &unheld, nullptr);
            process_start() = Clock::now();    // a session of its own in the run's ledger
            prctl(PR_SET_PDEATHSIG, SIGTERM);  // a run without its watcher saves and leaves
            return {true, 0};
        }
        child_id = child;
        sigprocmask(SIG_SETMASK, &unheld, nullptr);
        int status = 0;
        while (waitpid(child, &status, 0) < 0)
            if (errno != EINTR) fail("waiting for the run: ", std::strerror(errno));
        child_id = 0;
        const int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
        if (code == 0 || asked_to_stop) return {false, code};
        if (const std::string why = hopeless(code); !why.empty()) {
            say("not started again: " + why);
            return {false, code};
        }
        const std::int64_t now = newest_step(how);
        in_vain = now > step ? 0 : in_vain + 1;
        if (now > step) delay = how.delay_s;
        step = now;
        const std::string from = step < 0 ? "there is no checkpoint yet" : concat("the newest good checkpoint is of step ", step);
        if (in_vain >= 2) {
            say(concat("the run ", how_it_ended(status), "; ", from, ". Given up: two starts in a row made no new checkpoint"));
            return {false, code};
        }
        if (restarts >= how.max) {
            say(concat("the run ", how_it_ended(status), "; ", from, ". Given up after ", restarts, " restarts (--restart.max)"));
            return {false, code};
        }
        say(concat("the run ", how_it_ended(status), "; ", from, ". Restart ", restarts + 1, " of ", how.max, " in ", delay, " s"));
        pause_for(delay);
        if (asked_to_stop) return {false, code};
        delay = std::min(2 * delay, how.most_delay_s);
    }
}

}  // namespace keel
