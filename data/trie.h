// data/trie.h: which of many texts begin at a place: a double array (J. Aoe 1989), made once. A step along a text is one
// look-up: the child of node n by byte b stands at base[n] ^ b, if the node there says that n is its parent.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace keel {

class Trie {
public:
    struct Found {
        std::size_t size = 0;      // bytes; 0: none
        std::int32_t value = -1;
    };

    Trie() = default;
    // Texts and values >= 0; an empty text is never found, and of equal texts the first holds.
    explicit Trie(std::vector<std::pair<std::string, std::int32_t>> texts);

    // Calls body(size, value) for every text that `at` begins with, the shortest first.
    template <class Body> void prefixes(std::string_view at, Body&& body) const {
        if (empty()) return;
        std::uint32_t node = 0;
        for (std::size_t i = 0; i < at.size(); ++i) {
            node = child(node, static_cast<unsigned char>(at[i]));
            if (node == 0) return;
            if (nodes_[node].value >= 0) body(i + 1, nodes_[node].value);
        }
    }
    Found longest(std::string_view at) const {
        Found found;
        prefixes(at, [&](std::size_t size, std::int32_t value) { found = {size, value}; });
        return found;
    }
    bool empty() const { return nodes_.empty(); }
    bool begins(unsigned char byte) const { return !empty() && child(0, byte) != 0; }  // whether any text begins so

private:
    static constexpr std::uint32_t free = 0xffffffffu;
    struct Node {
        std::uint32_t base = 0;       // children of a node lie in one block of 256
        std::uint32_t parent = free;
        std::int32_t value = -1;      // -1: no text ends here
    };

    std::uint32_t child(std::uint32_t node, unsigned char byte) const {
        const std::uint32_t at = nodes_[node].base ^ byte;
        return nodes_[at].parent == node && at != 0 ? at : 0;
    }
    std::uint32_t place(std::string_view bytes);

    std::vector<Node> nodes_;  // whole blocks of 256; node 0 is the root
};

}  // namespace keel
