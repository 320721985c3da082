#include "data/byte_symbols.h"

#include <algorithm>
#include <unordered_map>

#include "data/utf8.h"
#include "kernels/base/error.h"

namespace keel {
namespace {

// What the bytes of a character merge to by themselves, and the highest rank on the way; id -1 if that is not one symbol.
MergeTable::Found merged(const std::array<std::int32_t, 256>& bytes, std::uint32_t code, const MergeTable& merges) {
    std::string text;
    append_utf8(code, text);
    std::vector<std::int32_t> symbols;
    for (const char c : text) symbols.push_back(bytes[static_cast<unsigned char>(c)]);
    std::uint32_t highest = 0;
    while (symbols.size() > 1) {
        std::size_t best = 0;
        MergeTable::Found found;
        for (std::size_t i = 0; i + 1 < symbols.size(); ++i)
            if (const auto f = merges.find(symbols[i], symbols[i + 1]); f.rank < found.rank) found = f, best = i;
        if (found.rank == MergeTable::none) return {};
        highest = std::max(highest, found.rank);
        symbols[best] = found.joined;
        symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
    return {highest, symbols[0]};
}

}  // namespace

ByteSymbols::ByteSymbols(const std::array<std::int32_t, 256>& bytes, const std::vector<std::uint32_t>& characters,
                         const MergeTable& merges)
    : bytes_(bytes) {
    std::unordered_map<std::int32_t, std::uint32_t> made;  // rank at which a character's symbol is there
    std::vector<std::pair<std::uint32_t, std::int32_t>> candidates;
    for (const std::uint32_t code : characters) {
        const auto found = merged(bytes, code, merges);
        if (found.joined < 0) continue;
        made[found.joined] = found.rank;
        candidates.emplace_back(code, found.joined);
    }
    if (candidates.empty()) return;
    merges.for_each([&](std::int32_t left, std::int32_t right, std::uint32_t rank) {
        for (const std::int32_t id : {left, right})
            if (const auto at = made.find(id); at != made.end() && rank <= at->second) made.erase(at);
    });
    for (const auto& [code, id] : candidates) {
        if (!made.contains(id)) continue;
        if (code >= characters_.size()) characters_.resize(code + 1, -1);
        characters_[code] = id;
    }
}

bool ByteSymbols::can_spell(std::string_view bytes) const {
    return std::all_of(bytes.begin(), bytes.end(), [&](char b) { return byte(static_cast<unsigned char>(b)) >= 0; });
}

void ByteSymbols::append_bytes(std::string_view bytes, std::vector<std::int32_t>& ids, const std::string& name) const {
    for (const char c : bytes) {
        const std::int32_t id = bytes_[static_cast<unsigned char>(c)];
        if (id < 0)
            fail(name, ": the vocabulary has no token for the byte ", static_cast<int>(static_cast<unsigned char>(c)),
                 ", which the text contains; this tokenizer cannot encode it");
        ids.push_back(id);
    }
}

void ByteSymbols::append(std::string_view piece, bool utf8, const CutTable& cuts, std::vector<std::int32_t>& ids,
                         const std::string& name) const {
    if (!utf8 || characters_.empty() || piece.empty()) return append_bytes(piece, ids, name);
    bool left_joins = false;  // at the border before this character a merge may join parts of characters
    Utf8Char c = utf8_at(piece, 0);
    for (std::size_t at = 0; at < piece.size();) {
        const std::size_t end = at + c.size;
        const Utf8Char next = end < piece.size() ? utf8_at(piece, end) : Utf8Char{};
        const bool right_joins = end < piece.size() && cuts.joins_parts(piece, end, c, next);
        const std::int32_t whole = left_joins || right_joins ? -1 : character(c);
        if (whole >= 0) ids.push_back(whole);
        else append_bytes(piece.substr(at, c.size), ids, name);
        left_joins = right_joins;
        at = end;
        c = next;
    }
}

}  // namespace keel
