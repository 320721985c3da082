// data/byte_symbols.h: what byte-level merging begins with. By its definition the bytes of a piece; here a character is one
// symbol from the start where that gives the same ids, which spares text beyond ASCII two thirds of its symbols and most
// of its look-ups.
//
// It is the same if (1) the bytes of the character merge to one token by themselves, (2) no merge joins a part of it to a
// neighbour or to a part of one (data/cut_table.h), so that nothing disturbs this, and (3) every merge of that token has a
// higher rank than those that make it, so that nothing would have happened before it was there.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/bpe.h"
#include "data/cut_table.h"

namespace keel {

class ByteSymbols {
public:
    ByteSymbols() { bytes_.fill(-1); }
    // `characters`: code points that may have a token of their own. An id of -1: the vocabulary lacks that byte.
    ByteSymbols(const std::array<std::int32_t, 256>& bytes, const std::vector<std::uint32_t>& characters,
                const MergeTable& merges);

    std::int32_t byte(unsigned char b) const { return bytes_[b]; }
    // The symbol of a character beyond ASCII to which its bytes merge by themselves, or -1.
    std::int32_t character(Utf8Char c) const { return c.size > 1 && c.code < characters_.size() ? characters_[c.code] : -1; }
    bool can_spell(std::string_view bytes) const;  // whether the vocabulary has a token for each
    // Appends the symbols of `piece`: bytes alone if `utf8` is false, for then it may hold anything. Throws Error that
    // begins with `name` if the vocabulary lacks a byte.
    void append(std::string_view piece, bool utf8, const CutTable& cuts, std::vector<std::int32_t>& ids,
                const std::string& name) const;

private:
    void append_bytes(std::string_view bytes, std::vector<std::int32_t>& ids, const std::string& name) const;

    std::array<std::int32_t, 256> bytes_;
    std::vector<std::int32_t> characters_;  // by code point, up to the last that has a symbol; -1: only bytes
};

}  // namespace keel
