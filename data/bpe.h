// data/bpe.h: byte-pair merging of one piece: join the adjacent pair of lowest rank, leftmost on ties, until none is left.
// Sennrich et al. 2016, arXiv:1508.07909. Here symbols are ids, and a merge is (left id, right id) -> joined id.
//
// Short pieces are scanned, long ones go through a heap: n log n, for pieces of megabytes occur in real text.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keel {

struct Merge {
    std::int32_t left, right, joined;
};

// Rank and result of each pair: one open-addressed table, one probe for most look-ups.
class MergeTable {
public:
    static constexpr std::uint32_t none = 0xffffffffu;
    struct Found {
        std::uint32_t rank = none;
        std::int32_t joined = -1;
    };

    MergeTable() = default;
    explicit MergeTable(std::span<const Merge> merges);  // rank is the index; of equal pairs the first holds
    MergeTable(std::span<const Merge> merges, std::span<const std::uint32_t> ranks);  // of equal pairs the first holds
    Found find(std::int32_t left, std::int32_t right) const {
        const std::uint64_t key = key_of(left, right);
        for (std::size_t at = slot_of(key);; at = (at + 1) & mask_) {
            if (slots_[at].key == key) return {slots_[at].rank, slots_[at].joined};
            if (slots_[at].key == empty) return {};
        }
    }
    template <class Body> void for_each(Body&& body) const {  // body(left, right, rank), in no order
        for (const Slot& s : slots_)
            if (s.key != empty) body(static_cast<std::int32_t>(s.key >> 32), static_cast<std::int32_t>(s.key), s.rank);
    }

private:
    static constexpr std::uint64_t empty = ~std::uint64_t{0};
    struct Slot {
        std::uint64_t key = empty;
        std::uint32_t rank = none;
        std::int32_t joined = -1;
    };
    static std::uint64_t key_of(std::int32_t left, std::int32_t right) {
        return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
    }
    std::size_t slot_of(std::uint64_t key) const { return static_cast<std::size_t>((key * 0x9e3779b97f4a7c15u) >> shift_); }

    std::vector<Slot> slots_ = std::vector<Slot>(2);
    std::size_t mask_ = 1;
    int shift_ = 63;
};

// Working memory of one thread; grows to the longest piece and stays.
class BpeScratch {
public:
    // Merges `symbols` in place and returns how many are left, at the front.
    std::size_t merge(const MergeTable& merges, std::span<std::int32_t> symbols);

private:
    std::size_t merge_short(const MergeTable& merges, std::span<std::int32_t> symbols);
    std::size_t merge_long(const MergeTable& merges, std::span<std::int32_t> symbols);

    std::vector<std::uint64_t> heap_;  // rank << 32 | position of the left symbol
    std::vector<std::uint32_t> next_, previous_;
};

// The alphabet in which tokenizer.json spells bytes: printable ones as themselves, the other 68 from U+0100 on.
const std::array<std::uint16_t, 256>& byte_alphabet();
// The inverse: a byte for each character of the alphabet, -1 for any other.
int byte_of_character(std::uint32_t code);
// Bytes spelt as text, and back; the inverse returns false if some character is not of the alphabet.
std::string spell_bytes(std::string_view bytes);
bool read_spelling(std::string_view text, std::string& bytes);

}  // namespace keel
