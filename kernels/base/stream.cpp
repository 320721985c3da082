#include "kernels/base/stream.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/affinity.h"
#include "kernels/base/error.h"
#include "kernels/base/pages.h"

namespace keel {
namespace {

// A waiter spins this often before it sleeps. Ops follow each other within microseconds, so a short spin saves two
// system calls per op; a long one would burn a processor that a neighbour needs.
constexpr int spins_before_sleep = 4000;

void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

}  // namespace

int available_cpus() {
    const std::size_t known = available_processors().size();
    return static_cast<int>(known ? known : std::max(1u, std::thread::hardware_concurrency()));
}

struct Stream::Crew {
    int threads;
    std::int64_t workspace_bytes;
    std::int64_t shared_bytes;
    Pages workspace;  // one piece a thread, then the shared one
    std::vector<std::thread> workers;

    // One job at a time. `epoch` announces it; `busy` counts the workers that still hold it.
    alignas(64) std::atomic<std::uint32_t> epoch{0};
    alignas(64) std::atomic<std::uint32_t> busy{0};
    alignas(64) std::atomic<std::int64_t> next{0};
    alignas(64) std::int64_t tiles = 0;
    Call call = nullptr;
    void* body = nullptr;
    bool quit = false;
    std::atomic<bool> failed{false};
    std::exception_ptr error;

    void take_tiles(int thread) {
        for (std::int64_t tile; (tile = next.fetch_add(1, std::memory_order_relaxed)) < tiles;) {
            try {
                call(body, tile, thread);
            } catch (...) {
                if (!failed.exchange(true)) error = std::current_exception();
            }
        }
    }

    void dismiss() {
        quit = true;
        epoch.fetch_add(1, std::memory_order_release);
        epoch.notify_all();
        for (auto& worker : workers) worker.join();
    }

    void work(int thread) {
        std::uint32_t seen = 0;
        for (;;) {
            for (int i = 0; i < spins_before_sleep && epoch.load(std::memory_order_acquire) == seen; ++i) relax();
            epoch.wait(seen, std::memory_order_acquire);
            seen = epoch.load(std::memory_order_acquire);
            if (quit) return;
            take_tiles(thread);
            if (busy.fetch_sub(1, std::memory_order_acq_rel) == 1) busy.notify_one();
        }
    }
};

Stream::Stream(int threads, std::int64_t workspace_bytes, std::int64_t shared_bytes) : crew_(std::make_unique<Crew>()) {
    if (threads < 0 || threads > max_threads)
        fail_usage("Stream: ", threads, " threads; give 1 to ", max_threads, ", or 0 for every processor");
    crew_->threads = threads ? threads : available_cpus();
    crew_->workspace_bytes = ceil_div(std::max<std::int64_t>(workspace_bytes, 64), 64) * 64;
    crew_->shared_bytes = ceil_div(std::max<std::int64_t>(shared_bytes, 64), 64) * 64;
    crew_->workspace = Pages(crew_->workspace_bytes * crew_->threads + crew_->shared_bytes);
    crew_->workers.reserve(static_cast<std::size_t>(crew_->threads - 1));
    try {
        for (int t = 1; t < crew_->threads; ++t) crew_->workers.emplace_back([crew = crew_.get(), t] { crew->work(t); });
    } catch (const std::system_error& e) {
        const std::size_t started = crew_->workers.size() + 1;
        crew_->dismiss();
        fail("Stream: of ", crew_->threads, " threads the system started ", started, " (", e.what(), "); ask for fewer");
    }
}

Stream::Stream(Device device, void* native, void (*wait)(void*)) : device_(device), native_(native), wait_(wait) {}

Stream::~Stream() {
    if (crew_) crew_->dismiss();
}

int Stream::threads() const { return crew_ ? crew_->threads : 0; }
std::int64_t Stream::workspace_bytes() const { return crew_ ? crew_->workspace_bytes : 0; }
std::byte* Stream::workspace(int thread) const {
    return crew_ ? crew_->workspace.data() + thread * crew_->workspace_bytes : nullptr;
}
std::int64_t Stream::shared_bytes() const { return crew_ ? crew_->shared_bytes : lent_bytes_; }
std::byte* Stream::shared_workspace() const { return crew_ ? workspace(threads()) : lent_; }

Stream::Loan Stream::lend(std::byte* data, std::int64_t bytes) {
    if (crew_ || lent_)
        fail("Stream: ", bytes, " bytes are lent to a stream of ", name(device_), " that has a workspace of ",
             shared_bytes(), "; there is one for each, and of the CPU its own");
    lent_ = data, lent_bytes_ = bytes;
    return Loan(this);
}

void Stream::run(std::int64_t tiles, Call call, void* body) {
    if (!crew_) fail("this op has no body for ", name(device_), "; its CPU body cannot run there");
    Crew& crew = *crew_;
    if (tiles <= 0) return;
    crew.tiles = tiles;
    crew.call = call;
    crew.body = body;
    crew.next.store(0, std::memory_order_relaxed);
    const bool alone = crew.threads == 1 || tiles == 1;
    if (!alone) {
        crew.busy.store(static_cast<std::uint32_t>(crew.threads - 1), std::memory_order_relaxed);
        crew.epoch.fetch_add(1, std::memory_order_release);
        crew.epoch.notify_all();
    }
    crew.take_tiles(0);
    if (!alone) {
        std::uint32_t left;
        for (int i = 0; i < spins_before_sleep && crew.busy.load(std::memory_order_acquire); ++i) relax();
        while ((left = crew.busy.load(std::memory_order_acquire)) != 0) crew.busy.wait(left, std::memory_order_acquire);
    }
    if (crew.failed.exchange(false)) std::rethrow_exception(std::exchange(crew.error, nullptr));
}

}  // namespace keel
