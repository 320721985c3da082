#include "engine/overlap/worker.h"

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace keel {
namespace {

class ThreadWorker final : public Worker {
public:
    explicit ThreadWorker(int capacity) : ring_(static_cast<std::size_t>(capacity)), stream_(1, 1 << 16, 1 << 16) {
        thread_ = std::thread([this] { loop(); });
    }
    ~ThreadWorker() override {
        {
            const std::lock_guard lock(mutex_);
            closing_ = true;
        }
        posted_.notify_all();
        thread_.join();
    }

    std::int64_t post(Run run, void* object, int argument) override {
        std::unique_lock lock(mutex_);
        finished_.wait(lock, [&] { return asked_ - ended_ < static_cast<std::int64_t>(ring_.size()); });
        ring_[static_cast<std::size_t>(asked_) % ring_.size()] = {run, object, argument};
        const std::int64_t number = ++asked_;
        posted_.notify_one();
        return number;
    }
    void wait(std::int64_t number) override {
        std::unique_lock lock(mutex_);
        finished_.wait(lock, [&] { return ended_ >= number; });
        if (error_) std::rethrow_exception(error_);
    }
    double busy_seconds() const override {
        const std::lock_guard lock(mutex_);
        return busy_;
    }

private:
    struct Task {
        Run run;
        void* object;
        int argument;
    };
    void loop() {
        std::unique_lock lock(mutex_);
        for (;;) {
            posted_.wait(lock, [&] { return begun_ < asked_ || closing_; });
            if (begun_ == asked_) return;
            const Task task = ring_[static_cast<std::size_t>(begun_++) % ring_.size()];
            const bool drop = error_ != nullptr;
            lock.unlock();
            const auto start = std::chrono::steady_clock::now();
            std::exception_ptr thrown;
            try {
                if (!drop) task.run(task.object, task.argument, stream_);
            } catch (...) {
                thrown = std::current_exception();
            }
            lock.lock();
            busy_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
            if (thrown) error_ = thrown;
            ended_ = begun_;
            finished_.notify_all();
        }
    }

    mutable std::mutex mutex_;
    std::condition_variable posted_, finished_;
    std::vector<Task> ring_;
    std::int64_t begun_ = 0, ended_ = 0, asked_ = 0;  // tasks; asked >= begun >= ended
    double busy_ = 0;
    bool closing_ = false;
    std::exception_ptr error_;
    Stream stream_;
    std::thread thread_;
};

// The loop's own thread queues the tasks: only the GPU does them beside.
class QueueWorker final : public Worker {
public:
    QueueWorker(const Backend& backend, int capacity)
        : backend_(backend), queue_(backend.gpu->make_stream()), ready_(backend.gpu->make_event()) {
        for (int i = 0; i < capacity; ++i) done_.push_back(backend.gpu->make_event());
    }
    ~QueueWorker() override {
        try {
            queue_->synchronize();
        } catch (const Error&) {  // what broke the GPU is told by whoever waits for its work
        }
    }

    std::int64_t post(Run run, void* object, int argument) override {
        backend_.gpu->record(*ready_, backend_.stream);
        backend_.gpu->wait(*queue_, *ready_);
        run(object, argument, *queue_);
        backend_.gpu->record(done(++asked_), *queue_);
        return asked_;
    }
    void wait(std::int64_t number) override { backend_.gpu->wait(backend_.stream, done(number)); }
    double busy_seconds() const override { return 0; }

private:
    GpuEvent& done(std::int64_t number) const { return *done_[static_cast<std::size_t>(number) % done_.size()]; }

    Backend backend_;
    std::unique_ptr<Stream> queue_;
    std::unique_ptr<GpuEvent> ready_;
    std::vector<std::unique_ptr<GpuEvent>> done_;
    std::int64_t asked_ = 0;
};

}  // namespace

std::unique_ptr<Worker> make_worker(const Backend& backend, int capacity) {
    if (backend.gpu) return std::make_unique<QueueWorker>(backend, capacity);
    return std::make_unique<ThreadWorker>(capacity);
}

}  // namespace keel
