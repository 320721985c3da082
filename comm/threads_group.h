// comm/threads_group.h: what the ranks of a group share when they are threads, and the Group of one rank on top of it.
//
// Ranks meet: each says what it brings, and enters. When all have entered, each compares, then reads straight from the
// others' memory; a second meeting tells that nobody reads any more. A rank that gives up (a peer left, the deadline
// passed) breaks the meeting by one atomic step: either it is complete for everybody or broken for everybody. So nobody
// leaves, and frees memory, while a peer may read it.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "comm/group.h"
#include "comm/signal.h"
#include "comm/threads.h"

namespace keel {

struct ThreadsMessage {
    enum State : int { posted, received, refused };
    const std::byte* data = nullptr;
    std::int64_t bytes = 0, wanted = 0;  // wanted by a receiver that refused
    int from = 0, to = 0, channel = 0;
    std::atomic<int> state{posted};
    ThreadsMessage* next = nullptr;      // in the receiver's list, or in the sender's list of free ones
};

struct ThreadsGroupState {
    ThreadsGroupState(std::string name, std::vector<int> members);

    static constexpr std::uint64_t broken = std::uint64_t{1} << 63;
    static constexpr std::int64_t inline_bytes = 64;  // what a rank can bring without a second meeting

    struct alignas(64) Place {  // of one rank; two of what it brings, as a peer may still read the last one
        std::array<Group::Call, 2> calls;
        std::array<std::array<std::byte, inline_bytes>, 2> values;
        std::atomic<std::uint64_t> arrived{0};  // meetings; only to name who is missing

        Signal mail;                            // something was sent to this rank, or what it sent was taken
        std::atomic<std::uint64_t> posts{0};
        std::mutex mutex;                       // of the list
        ThreadsMessage *first = nullptr, *last = nullptr;
        std::deque<ThreadsMessage> pool;        // this rank's own sends
        ThreadsMessage* free = nullptr;
    };

    const std::string name;
    const std::vector<int> members;
    std::deque<Place> places;
    Signal bell;
    alignas(64) std::atomic<std::uint64_t> entered{0};  // over all ranks and meetings; top bit: broken

    void ring_all() noexcept;
};

// What all ranks share.
struct ThreadsShared {
    ThreadsShared(int ranks, const ThreadsOptions& options);

    const int ranks;
    const double deadline_s;
    const int spins;
    std::atomic<bool> aborted{false};

    std::mutex mutex;  // of what follows
    int left_rank = -1;
    std::string why;
    std::map<std::pair<std::string, std::vector<int>>, std::vector<std::shared_ptr<ThreadsGroupState>>> groups;

    void abort(int rank, const std::string& why) noexcept;
    std::string departure();                                        // "rank 2 left: out of memory"
    Signal::Clock::time_point until() const;
    // The nth group of that name and members.
    std::shared_ptr<ThreadsGroupState> group(const std::string& name, const std::vector<int>& members, std::size_t nth);
};

class ThreadsGroup final : public Group {
public:
    ThreadsGroup(std::shared_ptr<ThreadsShared> shared, std::shared_ptr<ThreadsGroupState> state, int rank);
    void abort(const std::string& why) noexcept override;

protected:
    void run(Stream* stream, const Call& call) override;
    void* begin_send(Stream&, const std::byte* data, std::int64_t bytes, int to, int channel) override;
    void end_send(Stream&, void* message) override;
    void drop_send(void* message) noexcept override;
    void receive_bytes(Stream& stream, std::byte* data, std::int64_t bytes, int from, int channel) override;

private:
    using Place = ThreadsGroupState::Place;
    Place& place(int r) { return state_->places[static_cast<std::size_t>(r)]; }
    const Call& call_of(int r) { return place(r).calls[parity_]; }
    bool meet();          // false: broken
    void meet_again();    // after meet(): nobody breaks this one
    void run_inline(const Call& call);
    bool take_back(ThreadsMessage& message);
    void release(ThreadsMessage* message);
    std::vector<int> missing() const;  // from the meeting, as ranks of the world
    [[noreturn]] void fail_waiting(const std::string& what, const std::vector<int>& absent) const;

    std::shared_ptr<ThreadsShared> shared_;
    std::shared_ptr<ThreadsGroupState> state_;
    std::uint64_t meetings_ = 0;
    std::size_t parity_ = 0;
    std::vector<const std::byte*> ins_;  // scratch of a collective
    std::vector<std::byte*> outs_;
};

}  // namespace keel
