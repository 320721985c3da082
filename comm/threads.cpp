#include "comm/threads.h"

#include <exception>
#include <new>
#include <system_error>
#include <thread>

#include "comm/threads_group.h"

namespace keel {
namespace {

class ThreadsWorld final : public World {
public:
    ThreadsWorld(std::shared_ptr<ThreadsShared> shared, int rank) : shared_(std::move(shared)), rank_(rank) {}
    int rank() const override { return rank_; }
    int size() const override { return shared_->ranks; }
    const char* transport() const override { return "threads"; }
    int local_rank() const override { return rank_; }
    int local_size() const override { return shared_->ranks; }
    void abort(const std::string& why) noexcept override { shared_->abort(rank_, why); }
    bool aborted() override { return shared_->aborted; }
    std::string departure() override { return shared_->departure(); }

protected:
    std::unique_ptr<Group> make_group(const std::string& name, std::vector<int> members, int rank) override {
        const std::size_t nth = made_[{name, members}]++;
        return std::make_unique<ThreadsGroup>(shared_, shared_->group(name, members, nth), rank);
    }

private:
    std::shared_ptr<ThreadsShared> shared_;
    int rank_;
    std::map<std::pair<std::string, std::vector<int>>, std::size_t> made_;
};

struct Failure {
    int rank;
    std::exception_ptr error;
    bool consequence;
};

// Fails with what went wrong on that rank.
[[noreturn]] void rethrow(const Failure& failure) {
    try {
        std::rethrow_exception(failure.error);
    } catch (const Error& e) {
        throw Error(concat("rank ", failure.rank, ": ", e.what()), e.location(), e.code());
    } catch (const std::bad_alloc&) {
        throw;
    } catch (const std::exception& e) {
        fail("rank ", failure.rank, ": ", e.what());
    }
}

}  // namespace

void run_threads(int ranks, const ThreadsOptions& options, const std::function<void(World&)>& body) {
    constexpr int max_ranks = 1024;
    if (ranks < 1 || ranks > max_ranks) fail_usage("run_threads: ", ranks, " ranks; from 1 to ", max_ranks, " can be");
    if (ranks == 1) {
        SoloWorld world;
        return body(world);
    }
    const auto shared = std::make_shared<ThreadsShared>(ranks, options);
    std::mutex mutex;  // of failures
    std::vector<Failure> failures;  // in the order of time
    const auto leave = [&](int rank, const std::string& why, bool consequence) {
        {
            const std::lock_guard lock(mutex);
            failures.push_back({rank, std::current_exception(), consequence});
        }
        shared->abort(rank, why);
    };
    const auto run = [&](int rank) {
        try {
            ThreadsWorld world(shared, rank);
            body(world);
        } catch (const Error& e) {
            leave(rank, e.what(), e.code() == ExitCode::peer);
        } catch (const std::exception& e) {
            leave(rank, e.what(), false);
        } catch (...) {
            leave(rank, "an exception of unknown type", false);
        }
    };
    std::vector<std::thread> threads;
    threads.reserve(static_cast<std::size_t>(ranks - 1));
    try {
        for (int rank = 1; rank < ranks; ++rank) threads.emplace_back(run, rank);
        run(0);
    } catch (const std::system_error& e) {
        leave(0, concat("of ", ranks, " ranks' threads the system started ", threads.size() + 1, " (", e.what(), ")"),
              false);
    }
    for (std::thread& thread : threads) thread.join();

    const Failure* cause = nullptr;
    for (const Failure& failure : failures)
        if (!cause || (!failure.consequence && (cause->consequence || failure.rank == shared->left_rank))) cause = &failure;
    if (cause) rethrow(*cause);
}

}  // namespace keel
