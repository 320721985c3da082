#include "ckpt/async_save.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "kernels/base/error.h"

namespace keel {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t alignment = 64;
constexpr std::int64_t run_bytes = std::int64_t{4} << 20;
constexpr int niceness = 5;  // of the writer: a step that waits for a core costs more than a write that does

std::int64_t aligned(std::int64_t bytes) { return ceil_div(bytes, alignment) * alignment; }

}  // namespace

std::int64_t AsyncSave::snapshot_bytes(std::span<const TensorPiece> owned) {
    std::int64_t bytes = 0;
    for (const TensorPiece& p : owned) bytes += aligned(p.bytes());
    return bytes;
}

AsyncSave::AsyncSave(Group& writers, std::span<const TensorPiece> owned, std::span<std::byte> memory)
    : writers_(writers), snapshot_(owned.begin(), owned.end()) {
    if (const std::int64_t needed = snapshot_bytes(owned); static_cast<std::int64_t>(memory.size()) < needed)
        fail("a snapshot of ", owned.size(), " pieces takes ", needed, " bytes, and ", memory.size(), " are reserved");
    std::byte* at = memory.data();
    for (TensorPiece& p : snapshot_) {
        check_piece(p);
        const std::byte* from = std::exchange(p.data, at);
        const std::int64_t element = size_bytes(p.dtype), stride = p.row_stride * element, row = p.cols * element;
        const std::int64_t step = row == 0 ? 1 : std::max<std::int64_t>(1, run_bytes / row);
        for (std::int64_t r = 0; r < p.rows && row > 0; r += step)
            runs_.push_back({from + r * stride, at + r * row, std::min(step, p.rows - r), row, stride});
        p.row_stride = p.cols;
        at += aligned(p.bytes());
    }
    thread_ = std::thread([this] { run(); });
}

AsyncSave::~AsyncSave() {
    {
        const std::lock_guard lock(mutex_);
        leave_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

void AsyncSave::run() {
    ::setpriority(PRIO_PROCESS, 0, niceness);  // on Linux 0 is this thread alone
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [&] { return write_ || leave_; });
        if (!write_) return;
        lock.unlock();
        const auto start = Clock::now();
        std::filesystem::path path;
        std::string error;
        try {
            path = write_(writers_, snapshot_);
        } catch (const std::exception& e) {
            error = e.what();
        }
        lock.lock();
        outcome_.path = std::move(path);
        outcome_.error = std::move(error);
        outcome_.seconds += std::chrono::duration<double>(Clock::now() - start).count();
        write_ = nullptr;
        changed_.notify_all();
    }
}

std::optional<AsyncSave::Outcome> AsyncSave::begin(Stream& stream, std::int64_t step, Write write) {
    std::optional<Outcome> before = wait();
    const auto start = Clock::now();
    stream.parallel(static_cast<std::int64_t>(runs_.size()), [&](std::int64_t tile, int) {
        const Run& r = runs_[static_cast<std::size_t>(tile)];
        if (r.row_bytes == r.stride_bytes || r.rows == 1) {
            std::memcpy(r.to, r.from, static_cast<std::size_t>(r.rows * r.row_bytes));
            return;
        }
        for (std::int64_t i = 0; i < r.rows; ++i)
            std::memcpy(r.to + i * r.row_bytes, r.from + i * r.stride_bytes, static_cast<std::size_t>(r.row_bytes));
    });
    {
        const std::lock_guard lock(mutex_);
        outcome_ = {.step = step,
                    .path = {},
                    .error = {},
                    .seconds = std::chrono::duration<double>(Clock::now() - start).count()};
        write_ = std::move(write);
    }
    begun_ = true;
    changed_.notify_all();
    return before;
}

std::optional<AsyncSave::Outcome> AsyncSave::poll(Group& world) {
    if (!begun_) return std::nullopt;
    bool written = false;
    {
        const std::lock_guard lock(mutex_);
        written = !write_;
    }
    return world.all(written) ? wait() : std::nullopt;
}

std::optional<AsyncSave::Outcome> AsyncSave::wait() {
    if (!begun_) return std::nullopt;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !write_; });
    begun_ = false;
    return std::exchange(outcome_, {});
}

}  // namespace keel
