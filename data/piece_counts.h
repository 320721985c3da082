// data/piece_counts.h: how often each piece occurs in texts of any length, counted by several threads in bounded memory.
//
// Texts are counted in rounds. The result of a round depends on the texts alone, not on the number of threads. When more
// pieces are distinct than may be kept, the rarest are forgotten, at the end of a round and until half of the room is free:
// a piece of gigabytes of text that occurred once or twice so far decides no merge.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/pretokenize.h"
#include "kernels/base/stream.h"

namespace keel {

// A table of texts and counts: the texts lie in one string, a slot has 24 bytes.
class CountTable {
public:
    void add(std::string_view text, std::uint64_t hash, std::int64_t count);
    std::int64_t size() const { return size_; }
    void clear();
    void forget_up_to(std::int64_t count);  // all texts that occurred no more often

    template <class Body> void for_each(Body&& body) const {  // body(text, hash, count)
        for (const Slot& s : slots_)
            if (s.count > 0) body(std::string_view(texts_).substr(s.place >> length_bits, s.place & longest), s.hash, s.count);
    }

    static constexpr std::uint64_t length_bits = 16, longest = (1u << length_bits) - 1;

private:
    struct Slot {
        std::uint64_t hash = 0, place = 0;  // place: offset << 16 | length
        std::int64_t count = 0;             // 0: free
    };
    void grow();

    std::vector<Slot> slots_;
    std::string texts_;
    std::int64_t size_ = 0;
};

class PieceCounts {
public:
    // `most`: distinct pieces kept, of at most 256 bytes: longer ones are counted in parts of that length.
    explicit PieceCounts(const Pretokenizer& how, std::int64_t most = std::int64_t{1} << 23);

    void add(std::string_view text);                                  // one text, on this thread
    void add(std::span<const std::string> texts, Stream& stream);     // a round; valid UTF-8
    std::int64_t distinct() const;
    std::int64_t forgotten() const { return forgotten_; }             // distinct pieces, each time one was

    template <class Body> void for_each(Body&& body) const {          // body(piece, count), in no order
        for (const CountTable& shard : shards_)
            shard.for_each([&](std::string_view text, std::uint64_t, std::int64_t count) { body(text, count); });
    }

private:
    static constexpr std::size_t shards = 64;
    using Shards = std::array<CountTable, shards>;  // by hash

    void count(std::string_view text, Shards& into) const;
    void keep_bounded();

    Pretokenizer how_;
    std::int64_t most_, forgotten_ = 0;
    Shards shards_;
    std::vector<Shards> local_;  // of each thread, in a round: every shard is then added up by one thread
};

}  // namespace keel
