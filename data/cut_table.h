// data/cut_table.h: where a piece may be cut before byte-pair merging with the same result: between two characters that no
// merge ever joins. A sentence of Chinese is one piece, tens of characters long and never seen before; its parts are
// words, most of which lie in the encoder's cache.
//
// A merge joins what ends with one character, or with its last bytes, to what begins with another, or with its first bytes.
// If no merge of the vocabulary does that for the two at hand, nothing ever reaches over this border. The set of such pairs
// is hashed to bits, so that it may hold too many pairs, never too few. Pairs of parts of characters have a set of their own:
// they are few and asked for often, and among the many others almost every one of them would seem to be there.
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
        std::size_t before = 0;
        for (std::size_t at = utf8_at(piece, 0).size; at < piece.size();) {
            const std::size_t size = utf8_at(piece, at).size;
            if (!joined(piece.substr(before, at - before), piece.substr(at, size))) return at;
            before = at;
            at += size;
        }
        return piece.size();
    }

    // Whether a merge joins a part of one of two neighbouring characters to the other, or to a part of it.
    bool joins_parts(std::string_view left, std::string_view right) const {
        const std::uint32_t whole = number(left);
        if (partial_right_)
            for (std::size_t n = 1; n < right.size(); ++n)
                if (part_pairs_.has(whole, number(right.substr(0, n)))) return true;
        if (partial_left_)
            for (std::size_t from = 1; from < left.size(); ++from) {
                const std::uint32_t tail = number(left.substr(from));
                for (std::size_t n = partial_both_ ? 1 : right.size(); n <= right.size(); ++n)
                    if (part_pairs_.has(tail, number(right.substr(0, n)))) return true;
            }
        return false;
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

    bool joined(std::string_view left, std::string_view right) const {
        return pairs_.has(number(left), number(right)) || joins_parts(left, right);
    }
    static std::uint32_t number(std::string_view bytes) {  // of at most four bytes; different for different bytes
        std::uint32_t out = 0;
        for (const char c : bytes) out = out << 8 | static_cast<unsigned char>(c);
        return out;
    }

    Pairs<22> pairs_;       // of whole characters: 512 KiB, a fourteenth of it full with 300000 merges
    Pairs<16> part_pairs_;  // where one or both are parts
    // Whether any merge joins part of a character: most vocabularies hold few such merges, some none.
    bool partial_left_ = false, partial_right_ = false, partial_both_ = false;
};

}  // namespace keel
