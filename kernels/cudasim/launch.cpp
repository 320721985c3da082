#include "kernels/cudasim/launch.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

#include "kernels/cudasim/memory.h"
#include "kernels/cudasim/sanitizers.h"

namespace sim {
namespace {

std::mutex attributes_mutex;
std::map<const void*, std::size_t> dynamic_limits;

Block& block_of_this_thread() {
    thread_local Block block;
    return block;
}

// Workers live as long as the program: a block's fibers are made once per worker and never move to another.
class Crew {
public:
    static Crew& get() {
        static Crew crew;
        return crew;
    }
    // Calls work() on `count` threads, this one among them.
    template <class Work>
    void run(int count, Work&& work) {
        const std::lock_guard one_at_a_time(turn_);
        while (static_cast<int>(threads_.size()) < count - 1)
            threads_.emplace_back([this, me = static_cast<int>(threads_.size())] { serve(me); });
        using W = std::remove_reference_t<Work>;
        {
            const std::lock_guard lock(mutex_);
            call_ = [](void* w) { (*static_cast<W*>(w))(); };
            work_ = const_cast<void*>(static_cast<const void*>(&work));
            wanted_ = count - 1;
            busy_ = count - 1;
            ++round_;
        }
        go_.notify_all();
        work();
        std::unique_lock lock(mutex_);
        done_.wait(lock, [&] { return busy_ == 0; });
    }

private:
    ~Crew() {
        {
            const std::lock_guard lock(mutex_);
            quit_ = true;
        }
        go_.notify_all();
        for (auto& thread : threads_) thread.join();
    }
    void serve(int me) {
        unsigned seen = 0;
        for (;;) {
            {
                std::unique_lock lock(mutex_);
                go_.wait(lock, [&] { return quit_ || (round_ != seen && me < wanted_); });
                if (quit_) return;
                seen = round_;
            }
            call_(work_);
            const std::lock_guard lock(mutex_);
            if (--busy_ == 0) done_.notify_one();
        }
    }

    std::mutex turn_, mutex_;
    std::condition_variable go_, done_;
    std::vector<std::thread> threads_;
    void (*call_)(void*) = nullptr;
    void* work_ = nullptr;
    int wanted_ = 0, busy_ = 0;
    unsigned round_ = 0;
    bool quit_ = false;
};

bool refuse(const Launch& launch, const std::string& why) {
    report(Kind::bad_launch, why + ", at " + where(launch.site));
    return false;
}

}  // namespace

bool legal_launch(const Launch& launch, const void* kernel) {
    const auto& b = launch.block;
    const auto& g = launch.grid;
    const std::uint64_t threads = std::uint64_t{b.x} * b.y * b.z;
    if (threads == 0 || threads > max_threads || b.z > 64)
        return refuse(launch, "a block of " + std::to_string(b.x) + " x " + std::to_string(b.y) + " x " +
                                  std::to_string(b.z) + " threads; a block has 1 to 1024, at most 64 of them along z");
    if (g.x == 0 || g.y == 0 || g.z == 0 || g.x > 0x7fffffffu || g.y > 65535 || g.z > 65535)
        return refuse(launch, "a grid of " + std::to_string(g.x) + " x " + std::to_string(g.y) + " x " +
                                  std::to_string(g.z) + " blocks; it must be 1 to 2^31-1 by 1 to 65535 by 1 to 65535");
    if (launch.dynamic_bytes > allowed_dynamic_bytes(kernel))
        return refuse(launch, std::to_string(launch.dynamic_bytes) + " bytes of dynamic shared memory, but " +
                                  std::to_string(allowed_dynamic_bytes(kernel)) +
                                  " are allowed; set cudaFuncAttributeMaxDynamicSharedMemorySize");
    return true;
}

void allow_dynamic_bytes(const void* kernel, std::size_t bytes) {
    const std::lock_guard lock(attributes_mutex);
    dynamic_limits[kernel] = bytes;
}

std::size_t allowed_dynamic_bytes(const void* kernel) {
    const std::lock_guard lock(attributes_mutex);
    const auto at = dynamic_limits.find(kernel);
    return at == dynamic_limits.end() ? Shared::static_limit : at->second;
}

bool run_launch(const Launch& launch, const void* kernel) {
    if (broken() || !legal_launch(launch, kernel)) return false;
    const Config config = sim::config();
    const std::uint64_t blocks = std::uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
    // A walk that meets every block once: first + i * step, with step and the number of blocks coprime. The step is
    // kept small, so that the product fits.
    std::uint64_t first = 0, step = 1;
    if (config.shuffle_blocks) {
        first = (config.seed * 0x9e3779b97f4a7c15u) % blocks;
        for (step = (config.seed * 2654435761u) % std::min<std::uint64_t>(blocks, 65521) | 1;
             std::gcd(step, blocks) != 1;)
            step += 2;
    }
    std::atomic<std::uint64_t> next{0};
    std::atomic<bool> stopped{false};
    const auto work = [&] {
        Block& block = block_of_this_thread();
        for (std::uint64_t i; !stopped && (i = next.fetch_add(1, std::memory_order_relaxed)) < blocks;) {
            const std::uint64_t n = (first + i % blocks * (step % blocks)) % blocks;
            const cuda::uint3 index{static_cast<unsigned>(n % launch.grid.x),
                                    static_cast<unsigned>(n / launch.grid.x % launch.grid.y),
                                    static_cast<unsigned>(n / launch.grid.x / launch.grid.y)};
            if (!block.run(launch, index, config, config.seed * 1000003 + n, &stopped)) stopped = true;
        }
        add_counters(block.counters());
        block.counters() = {};
    };
    add_counters({.launches = 1});
    const int processors = static_cast<int>(std::thread::hardware_concurrency());
    const int workers = static_cast<int>(std::min<std::uint64_t>(
        static_cast<std::uint64_t>(std::max(1, config.workers ? config.workers : processors)), blocks));
    if (workers == 1)
        work();
    else
        Crew::get().run(workers, work);
    happens_after(&stopped);
    check_red_zones("the launch at " + where(launch.site));
    return !stopped;
}

}  // namespace sim
