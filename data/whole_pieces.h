// data/whole_pieces.h: which pieces are tokens as they stand, whatever the merges say (ignore_merges). Of byte-level models only
// those that the merges would not make are kept: 588 of Llama-3's 128000. One open-addressed table of eight bytes a slot:
// almost every look-up finds nothing, and should cost one line of memory.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace keel {

class WholePieces {
public:
    struct Piece {
        std::string_view text;  // must outlive this
        std::int32_t id;
    };

    WholePieces() = default;
    explicit WholePieces(std::vector<Piece> pieces);  // of equal texts the first holds
    std::int32_t find(std::string_view text) const;   // -1: none

private:
    struct Slot {
        std::uint32_t tag = 0;     // half of the hash that does not choose the slot
        std::int32_t piece = -1;   // -1: free
    };

    std::vector<Piece> pieces_;
    std::vector<Slot> slots_;
    std::size_t longest_ = 0;
};

}  // namespace keel
