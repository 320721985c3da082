// engine/fault/ticker.h: a thread that does one thing again and again until its owner dies.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace keel {

class Ticker {
public:
    // Every `seconds`, first after as many; none at all where they are 0. `tick` must not throw.
    Ticker(double seconds, std::function<void()> tick) : tick_(std::move(tick)) {
        if (seconds <= 0) return;
        thread_ = std::thread([this, every = std::chrono::duration<double>(seconds)] {
            std::unique_lock lock(mutex_);
            while (!changed_.wait_for(lock, every, [&] { return over_; })) {
                lock.unlock();
                tick_();
                lock.lock();
            }
        });
    }
    ~Ticker() {
        if (!thread_.joinable()) return;
        {
            const std::lock_guard lock(mutex_);
            over_ = true;
        }
        changed_.notify_all();
        thread_.join();
    }
    Ticker(const Ticker&) = delete;
    Ticker& operator=(const Ticker&) = delete;

private:
    std::function<void()> tick_;
    std::mutex mutex_;
    std::condition_variable changed_;
    bool over_ = false;
    std::thread thread_;  // last: it uses all of the above
};

}  // namespace keel
