// comm/calls.h: what a rank asked its groups to do, and when: for traces. One thread writes to a Calls.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

namespace keel {

struct CallTime {
    const char* group;    // its name, as long as the group
    const char* what;     // "all_reduce", "send", "receive", …
    std::int64_t number;  // of a collective, in its group; 0 of a message
    std::int64_t bytes;   // of the part that is equal on all ranks, or of the message
    int from, to;         // of a message, as ranks of the world; -1 of a collective
    int channel;
    std::chrono::steady_clock::time_point begin{}, end{};
};

// Nothing is allocated after reserve(); when it is full, later calls are counted and dropped.
class Calls {
public:
    void reserve(std::size_t capacity) { calls_.reserve(capacity); }
    void clear() { calls_.clear(), dropped_ = 0; }
    void add(const CallTime& call) {
        if (calls_.size() < calls_.capacity()) calls_.push_back(call);
        else ++dropped_;
    }
    const std::vector<CallTime>& all() const { return calls_; }
    std::int64_t dropped() const { return dropped_; }

    // Until the end of the scope, if there is something to write to.
    class Scope {
    public:
        Scope(Calls* to, const CallTime& call) : to_(to), call_(call) {
            if (to_) call_.begin = std::chrono::steady_clock::now();
        }
        ~Scope() {
            if (!to_) return;
            call_.end = std::chrono::steady_clock::now();
            to_->add(call_);
        }
        Scope(const Scope&) = delete;
        Scope& operator=(const Scope&) = delete;

    private:
        Calls* to_;
        CallTime call_;
    };

private:
    std::vector<CallTime> calls_;
    std::int64_t dropped_ = 0;
};

}  // namespace keel
