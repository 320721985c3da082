// data/cut_table.h: where a piece may be cut before byte-pair merging with the same result: between two characters that no
// merge ever joins. A sentence of Chinese is one piece, tens of characters long and never seen before; its parts are
// words, most of which lie in the encoder's cache.
//
// A merge joins what ends with one character, or with its last bytes, to what begins with another, or with its first bytes.
// If no merge of the vocabulary does that for the two at hand, nothing ever reaches over this border. The set of such pairs
// is hashed to bits, so that it may hold too many pairs, never too few. Pairs of parts of characters have a set of their own:
// they are few and asked for often, and among the many others almost every one of them would seem to be there. And one byte
// for each character says what parts it can give to a merge: almost always none.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "data/utf8.h"

namespace keel {

class CutTable {
public:
    void add_merge(std::string_view left, std::string_view right);
    void add_whole(std::string_view text);  // never cut inside

    // End of the first part of `piece`, which is valid UTF-8 and not empty. Without any merge added: its end.
    std::size_t part_end(std::string_view piece) const {
        if (pairs_.empty()) return piece.size();
        Utf8Char left = utf8_at(piece, 0);
        for (std::size_t at = left.size; at < piece.size();) {
            const Utf8Char right = utf8_at(piece, at);
            if (!pairs_.has(left.code, right.code) && !joins_parts(piece, at, left, right)) return at;
            at += right.size;
            left = right;
        }
        return piece.size();
    }

    // Whether a merge joins a part of `left`, which ends at text[at], or of `right`, which begins there, to the other or to
    // a part of it.
    bool joins_parts(std::string_view text, std::size_t at, Utf8Char left, Utf8Char right) const {
        const std::uint8_t l = roles(left.code);
        if ((l & before_part) == 0 && ((l & has_tail) == 0 || (roles(right.code) & behind_tail) == 0)) return false;
        return finds_parts(text.substr(at - left.size, left.size), text.substr(at, right.size));
    }

private:
    template <int bits> class Pairs {
    public:
        bool empty() const { return bits_.empty(); }
        void reserve() { bits_.resize(std::size_t{1} << bits >> 6); }
        void add(std::uint32_t left, std::uint32_t right) {
            const std::size_t bit = bit_of(left, right);
            bits_[bit / 64] |= std::uint64_t{1} << (bit % 64);
        }
        bool has(std::uint32_t left, std::uint32_t right) const {
            const std::size_t bit = bit_of(left, right);
            return (bits_[bit / 64] >> (bit % 64) & 1) != 0;
        }

    private:
        static std::size_t bit_of(std::uint32_t left, std::uint32_t right) {
            const std::uint64_t both = static_cast<std::uint64_t>(left) << 32 | right;
            return static_cast<std::size_t>((both * 0x9e3779b97f4a7c15u) >> (64 - bits));
        }
        std::vector<std::uint64_t> bits_;
    };

    // In a merge that joins parts a character may be: whole, before the first bytes of another; with its last bytes, before
    // anything; whole or with its first bytes, behind the last bytes of another.
    static constexpr std::uint8_t before_part = 1, has_tail = 2, behind_tail = 4;
    std::uint8_t roles(std::uint32_t code) const {
        return code < roles_.size() ? roles_[code] : before_part | has_tail | behind_tail;
    }
    void add_role_by_head(std::string_view head, std::uint8_t role);
    void add_role_by_tail(std::string_view tail, std::uint8_t role);
    bool finds_parts(std::string_view left, std::string_view right) const;

    Pairs<22> pairs_;       // of whole characters, by code: 512 KiB, a fourteenth of it full with 300000 merges
    Pairs<16> part_pairs_;  // by bytes, where one or both are parts
    std::vector<std::uint8_t> roles_;  // of the characters below U+10000; those beyond may have any
};

}  // namespace keel
