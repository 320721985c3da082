// comm/under_way.h: what a rank waits for in its groups at this moment, told to another thread of the process.
//
// A rank communicates from a few threads (the loop, the one beside it, the writer of checkpoints); each call has an entry here
// from its beginning to its end. An entry costs two uncontended locks and one look at the clock, some 100 ns; nothing allocates.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace keel {

class UnderWay {
public:
    struct Call {
        const char* group;    // "dp_cp group of ranks 0,1"; as long as the entry
        const char* what;     // "all_reduce", "receive"
        std::int64_t count;   // of `unit`; 0 where there is nothing to count
        const char* unit;     // "float32"
        std::int64_t number;  // of a collective, in its group; 0 for messages
        int peer;             // of a message, as a rank of the group; -1 for collectives
    };

    // `where` may be null: then nothing is noted.
    class Scope {
    public:
        Scope(UnderWay* where, const Call& call);
        ~Scope();
        Scope(const Scope&) = delete;
        Scope& operator=(const Scope&) = delete;

    private:
        UnderWay* where_;
        std::size_t entry_ = 0;
    };

    // Writes the calls that are under way, with how long they are, as one text that ends with '\0'; "" for none. Cut at `size`.
    void describe(char* text, std::size_t size) const;

private:
    using Clock = std::chrono::steady_clock;
    struct Entry {
        bool used = false;
        Call call{};
        Clock::time_point since{};
    };
    mutable std::mutex mutex_;
    std::array<Entry, 8> entries_;  // more calls at once than this are not noted
};

}  // namespace keel
