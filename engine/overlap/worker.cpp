#include "engine/overlap/worker.h"

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace keel {
namespace {

struct Task {
    Worker::Run run;
    void* object;
    int argument;
};

}  // namespace

struct Worker::State {
    explicit State(int capacity) : ring(static_cast<std::size_t>(capacity)), stream(1, 1 << 16, 1 << 16) {}

    std::mutex mutex;
    std::condition_variable posted, finished;
    std::vector<Task> ring;
    std::int64_t begun = 0, ended = 0, asked = 0;  // tasks; asked >= begun >= ended
    double busy = 0;
    bool closing = false;
    std::exception_ptr error;
    Stream stream;
    std::thread thread;

    void loop() {
        std::unique_lock lock(mutex);
        for (;;) {
            posted.wait(lock, [&] { return begun < asked || closing; });
            if (begun == asked) return;
            const Task task = ring[static_cast<std::size_t>(begun++) % ring.size()];
            const bool drop = error != nullptr;
            lock.unlock();
            const auto start = std::chrono::steady_clock::now();
            std::exception_ptr thrown;
            try {
                if (!drop) task.run(task.object, task.argument, stream);
            } catch (...) {
                thrown = std::current_exception();
            }
            lock.lock();
            busy += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
            if (thrown) error = thrown;
            ended = begun;
            finished.notify_all();
        }
    }
};

Worker::Worker(int capacity) : state_(std::make_unique<State>(capacity)) {
    state_->thread = std::thread([this] { state_->loop(); });
}

Worker::~Worker() {
    {
        const std::lock_guard lock(state_->mutex);
        state_->closing = true;
    }
    state_->posted.notify_all();
    state_->thread.join();
}

std::int64_t Worker::post(Run run, void* object, int argument) {
    State& s = *state_;
    std::unique_lock lock(s.mutex);
    s.finished.wait(lock, [&] { return s.asked - s.ended < static_cast<std::int64_t>(s.ring.size()); });
    s.ring[static_cast<std::size_t>(s.asked) % s.ring.size()] = {run, object, argument};
    const std::int64_t number = ++s.asked;
    s.posted.notify_one();
    return number;
}

void Worker::wait(std::int64_t number) {
    State& s = *state_;
    std::unique_lock lock(s.mutex);
    s.finished.wait(lock, [&] { return s.ended >= number; });
    if (s.error) std::rethrow_exception(s.error);
}

void Worker::wait_all() {
    std::int64_t all;
    {
        const std::lock_guard lock(state_->mutex);
        all = state_->asked;
    }
    wait(all);
}

double Worker::busy_seconds() const {
    const std::lock_guard lock(state_->mutex);
    return state_->busy;
}

}  // namespace keel
