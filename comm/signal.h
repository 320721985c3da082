// comm/signal.h: a bell between threads of one process. A waiter spins for a moment, gives way, then sleeps in the
// kernel until the bell rings or its time is over. On two cores with eight ranks nobody may spin for long: whoever it
// waits for needs the processor.
#pragma once

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>

namespace keel {

class Signal {
public:
    using Clock = std::chrono::steady_clock;

    // Call after changing what is waited for (an atomic, or memory under a lock).
    void ring() noexcept {
        word_.fetch_add(1);
        if (sleepers_.load() > 0) futex(FUTEX_WAKE_PRIVATE, INT_MAX, nullptr);
    }

    // Returns true as soon as done() does, false when `until` has passed. All loads and stores are sequentially
    // consistent: either the waiter sees what changed, or the ringer sees the sleeper.
    template <class Done> bool wait(Done done, Clock::time_point until, int spins) {
        for (int i = 0; i < spins; ++i) {
            if (done()) return true;
            relax();
        }
        for (int i = 0; i < yields; ++i) {
            if (done()) return true;
            sched_yield();
        }
        sleepers_.fetch_add(1);
        bool is_done;
        for (;;) {
            const std::uint32_t seen = word_.load();
            is_done = done();
            const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(until - Clock::now()).count();
            if (is_done || left <= 0) break;
            const timespec nap{static_cast<time_t>(std::min<std::int64_t>(left / 1'000'000'000, 1 << 20)),
                               left % 1'000'000'000};
            futex(FUTEX_WAIT_PRIVATE, seen, &nap);
        }
        sleepers_.fetch_sub(1);
        return is_done;
    }

    static constexpr int yields = 8;

private:
    static void relax() {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    void futex(int op, std::uint32_t value, const timespec* timeout) noexcept {
        static_assert(sizeof word_ == 4 && std::atomic<std::uint32_t>::is_always_lock_free);
        syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word_), op, value, timeout, nullptr, 0);
    }

    alignas(64) std::atomic<std::uint32_t> word_{0};
    std::atomic<std::uint32_t> sleepers_{0};
};

}  // namespace keel
