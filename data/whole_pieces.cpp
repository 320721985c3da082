#include "data/whole_pieces.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>

namespace keel {

WholePieces::WholePieces(std::vector<Piece> pieces) : pieces_(std::move(pieces)) {
    slots_.resize(std::bit_ceil(pieces_.size() * 2 + 1));
    std::int32_t number = 0;
    for (const Piece& p : pieces_) {
        longest_ = std::max(longest_, p.text.size());
        const std::uint64_t hash = XXH3_64bits(p.text.data(), p.text.size());
        const auto tag = static_cast<std::uint32_t>(hash >> 32);
        std::size_t at = hash & (slots_.size() - 1);
        while (slots_[at].piece >= 0) at = (at + 1) & (slots_.size() - 1);
        slots_[at] = {tag, number++};
    }
}

std::int32_t WholePieces::find(std::string_view text) const {
    if (text.empty() || text.size() > longest_) return -1;
    const std::uint64_t hash = XXH3_64bits(text.data(), text.size());
    for (std::size_t at = hash & (slots_.size() - 1); slots_[at].piece >= 0; at = (at + 1) & (slots_.size() - 1)) {
        const Piece& piece = pieces_[static_cast<std::size_t>(slots_[at].piece)];
        if (slots_[at].tag == static_cast<std::uint32_t>(hash >> 32) && piece.text == text) return piece.id;
    }
    return -1;
}

}  // namespace keel
