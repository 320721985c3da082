// comm/nccl_group.cuh: the Group of one rank over NCCL (comm/nccl.h).
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "comm/nccl.h"
#include "comm/nccl_library.cuh"

namespace keel::KEEL_DEVICE {

#if defined(__CUDACC__)
constexpr Device nccl_device = Device::cuda;
#else
constexpr Device nccl_device = Device::cudasim;
#endif

// What the groups of one rank share: their communicators, and the thread that aborts them when a peer has left.
class NcclRank {
public:
    NcclRank(World& control, int gpu, const NcclOptions& options);
    ~NcclRank();

    World& control;
    const int gpu;
    const NcclOptions options;
    const bool direct;  // messages are read where they lie in the memory of a peer

    // A communicator that is aborted from another thread is null afterwards. NCCL is called under the mutex.
    struct Communicator {
        std::mutex mutex;
        ncclComm_t comm = nullptr;
    };
    // Connects the ranks of a group, within the deadline. `what` is for messages.
    std::shared_ptr<Communicator> add(const ncclUniqueId& id, int ranks, int rank, const std::string& what);
    // A call of NCCL on a communicator that is held, whose result that is, has been done; it may go on in the background.
    void finish(ncclResult_t result, Communicator& one, const std::function<std::string()>& what);
    // Every communicator is null afterwards, or soon.
    void abort_all() noexcept;
    // Aborts one that nobody uses any more, behind the caller's back: what waits on it ends at once, but ncclCommAbort returns only
    // when every graph is destroyed that holds its collectives, and the caller may be who destroys them. This waits for it at its end.
    void end(ncclComm_t comm) noexcept;
    std::string why_over();  // a communicator that is null

private:
    void watch();

    std::mutex mutex_;  // of what follows
    std::condition_variable changed_;
    std::vector<std::weak_ptr<Communicator>> communicators_;
    bool ended_ = false;
    std::atomic<bool> abort_wanted_{false};
    std::mutex ending_mutex_;
    std::vector<std::thread> ending_;  // each in ncclCommAbort
    std::thread watcher_;
};

// Memory of the host that a GPU can copy, as large as was ever asked for.
class Pinned {
public:
    Pinned() = default;
    Pinned(const Pinned&) = delete;
    Pinned& operator=(const Pinned&) = delete;
    ~Pinned() {
        if (data_) (void)cudaFreeHost(data_);
    }
    std::byte* of(std::int64_t bytes) {
        if (bytes <= bytes_) return data_;
        if (data_) check(cudaFreeHost(std::exchange(data_, nullptr)));
        check(cudaMallocHost(&data_, static_cast<std::size_t>(bytes)));
        bytes_ = bytes;
        return data_;
    }

private:
    std::byte* data_ = nullptr;
    std::int64_t bytes_ = 0;
};

// Whether it is memory of a GPU.
bool lies_on_gpu(const void* data);

class NcclGroup final : public Group {
public:
    NcclGroup(std::shared_ptr<NcclRank> shared, const std::string& name, std::vector<int> members, int rank);
    ~NcclGroup() override;
    void abort(const std::string& why) noexcept override;
    void lend(View<std::byte> buffer) override;

protected:
    void run(Stream* stream, const Call& call) override;
    void* begin_send(Stream& stream, const std::byte* data, std::int64_t bytes, int to, int channel) override;
    void end_send(Stream& stream, void* message) override;
    void drop_send(void* message) noexcept override;
    void receive_bytes(Stream& stream, std::byte* data, std::int64_t bytes, int from, int channel) override;

private:
    // What a rank says at the meeting before a collective.
    struct Greeting {
        Call call;
        bool on_gpu, opinion;
    };
    // The receiver tells the sender whether it took the message, and by which event its copy is done.
    struct Receipt {
        struct Note {
            Receipt* receipt;
            std::int64_t wanted;
            cudaEvent_t copied;  // null: there is nothing to wait for
        } note;
        cudaEvent_t copied = nullptr;
        Ticket ticket;
        std::atomic<bool> free{true};  // the sender's stream waits for `copied`, or there is nothing to wait for
    };
    // Under way from this rank. Between threads `header` travels, and the data is read where it lies; between processes
    // the data travels, out of `staged` if it lies on the GPU.
    struct Message {
        struct Header {
            const std::byte* data;
            std::int64_t bytes;
            cudaEvent_t written;  // null: in the memory of the host
        } header;
        cudaEvent_t written = nullptr;
        Pinned staged;
        Ticket ticket;
        int to = 0, channel = 0;
        bool free = true;
    };

    void meet(const Call& call, bool on_gpu);  // of the hosts
    void run_on_gpu(Stream& stream, const Call& call);
    void finish(ncclResult_t result, const Call& call);  // of a call of NCCL
    void exchange(const Call& call, cudaStream_t stream, const std::byte* in, std::byte* out, std::int64_t in_stride,
                  std::int64_t out_stride, std::int64_t bytes);
    void reduce_parts(Stream& stream, const Call& call, std::byte* out, const std::byte* in, std::int64_t count);
    void reduce_whole(Stream& stream, const Call& call, std::byte* x, std::int64_t count);
    void receive_here(Stream& stream, std::byte* data, std::int64_t bytes, int from, int channel);
    void receive_staged(Stream& stream, std::byte* data, std::int64_t bytes, int from, int channel);
    void settle_receipts() noexcept;
    std::string describe_message(const char* verb, std::int64_t bytes, const char* where, int peer, int channel) const;

    std::shared_ptr<NcclRank> shared_;
    std::unique_ptr<Group> control_, receipts_;
    std::shared_ptr<NcclRank::Communicator> communicator_;
    std::byte* buffer_ = nullptr;
    std::int64_t buffer_bytes_ = 0;
    struct Free {
        void operator()(std::byte* data) const { (void)cudaFree(data); }
    };
    std::unique_ptr<std::byte, Free> own_buffer_;
    Stream host_{1, 64, 64};  // control's
    std::vector<Greeting> greetings_;
    std::deque<Message> messages_;
    std::unique_ptr<std::deque<Receipt>> receipts_of_ours_ = std::make_unique<std::deque<Receipt>>();
    const int exceptions_ = std::uncaught_exceptions();
    Pinned arriving_;
};

}  // namespace keel::KEEL_DEVICE
