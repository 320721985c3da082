// tests/cli/job.h: a command under way: what it says, when it ends and with which code, and the ranks that mpirun started in it.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/error.h"

namespace keel::test {

namespace fs = std::filesystem;

inline std::string environment_of(pid_t pid, const std::string& name) {
    std::ifstream in(concat("/proc/", pid, "/environ"));
    for (std::string entry; std::getline(in, entry, '\0');)
        if (entry.starts_with(name + "=")) return entry.substr(name.size() + 1);
    return "";
}

inline pid_t parent_of(pid_t pid) {
    std::ifstream in(concat("/proc/", pid, "/stat"));
    const std::string stat((std::istreambuf_iterator<char>(in)), {});
    const std::size_t name_end = stat.rfind(')');  // a name may hold anything
    return name_end == std::string::npos ? 0 : static_cast<pid_t>(std::atoi(stat.c_str() + name_end + 4));
}

// A command under way, with what it says in a file.
class Job {
public:
    Job(const std::string& command, const fs::path& said) : said_(said) {
        pid_ = fork();
        if (pid_ == 0) {
            setpgid(0, 0);
            const std::string words = concat("exec ", command, " </dev/null >'", said.string(), "' 2>&1");
            execl("/bin/sh", "sh", "-c", words.c_str(), nullptr);
            _exit(127);
        }
        setpgid(pid_, pid_);
    }
    Job(Job&& other) noexcept : pid_(std::exchange(other.pid_, -1)), said_(std::move(other.said_)) {}
    ~Job() {
        if (pid_ > 0) kill(-pid_, SIGKILL), waitpid(pid_, nullptr, 0);
    }
    // The exit code, or -1 where it does not end in time.
    int wait(double seconds) {
        if (pid_ < 0) return code_;
        int status = 0;
        const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
        do {
            if (waitpid(pid_, &status, WNOHANG) == pid_) {
                pid_ = -1;
                return code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        } while (std::chrono::steady_clock::now() < end);
        return -1;
    }
    // The processes that mpirun started here, by rank.
    std::vector<pid_t> ranks(int n) const {
        std::vector<pid_t> out(static_cast<std::size_t>(n), 0);
        for (const auto& entry : fs::directory_iterator("/proc")) {
            const pid_t pid = static_cast<pid_t>(std::atoi(entry.path().filename().c_str()));
            if (pid <= 0 || parent_of(pid) != pid_) continue;
            const std::string rank = environment_of(pid, "OMPI_COMM_WORLD_RANK");
            if (!rank.empty()) out.at(static_cast<std::size_t>(std::stoi(rank))) = pid;
        }
        return out;
    }
    // To the command itself. False where it has ended: its number may be another's by now, and -1 would be everybody's.
    bool signal(int number) const { return pid_ > 1 && kill(pid_, number) == 0; }
    std::string said() const {
        std::ifstream in(said_);
        return {std::istreambuf_iterator<char>(in), {}};
    }

private:
    pid_t pid_;
    int code_ = -1;
    fs::path said_;
};

inline bool within(double seconds, const std::function<bool()>& holds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (!holds()) {
        if (std::chrono::steady_clock::now() > end) return false;
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return true;
}

}  // namespace keel::test
