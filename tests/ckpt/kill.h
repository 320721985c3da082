// tests/ckpt/kill.h: a process that saves for ever, and its death at a random moment.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <random>
#include <thread>
#include <vector>

namespace keel::test {

class Killer {
public:
    explicit Killer(unsigned seed) : random_(seed) {}

    // Runs `save`, which never returns and announces each save that is done, in a child process; kills it amid one of
    // its saves and returns what it had announced. Time is measured in saves, not seconds: machines differ, and are
    // busy. Every fourth child dies amid its first save.
    using Announce = std::function<void(std::int64_t)>;
    std::vector<std::int64_t> run(const std::function<void(const Announce&)>& save) {
        int pipe[2];
        EXPECT_EQ(::pipe(pipe), 0);
        const pid_t child = ::fork();
        if (child == 0) {
            try {
                save([&](std::int64_t done) {
                    if (::write(pipe[1], &done, sizeof done) != sizeof done) ::_exit(2);
                });
            } catch (const std::exception& e) {
                std::fprintf(stderr, "saving failed: %s\n", e.what());
            }
            ::_exit(1);
        }
        ::close(pipe[1]);
        const auto start = std::chrono::steady_clock::now();
        if (kills_++ % 4 != 3) {
            pollfd first{pipe[0], POLLIN, 0};
            EXPECT_EQ(::poll(&first, 1, 60'000), 1) << "no save was done in a minute";
            save_time_ = std::chrono::steady_clock::now() - start;
        }
        std::this_thread::sleep_for(save_time_ * std::uniform_real_distribution<double>(0, 2)(random_));
        ::kill(child, SIGKILL);
        int status = 0;
        ::waitpid(child, &status, 0);
        EXPECT_TRUE(WIFSIGNALED(status)) << "the child ended by itself with " << WEXITSTATUS(status);
        std::vector<std::int64_t> announced;
        for (std::int64_t done; ::read(pipe[0], &done, sizeof done) == sizeof done;) announced.push_back(done);
        ::close(pipe[0]);
        return announced;
    }

private:
    std::mt19937 random_;  // any seed: the moment of a kill depends on the machine anyway
    int kills_ = 0;
    std::chrono::steady_clock::duration save_time_{};
};

}  // namespace keel::test
