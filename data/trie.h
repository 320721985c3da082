// data/trie.h: which of many texts begin at a place: a byte trie in three flat arrays, made once.
#pragma once

#include <array>
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
        std::uint32_t node = 0;
        for (std::size_t i = 0; i < at.size(); ++i) {
            node = child(node, static_cast<unsigned char>(at[i]));
            if (node == 0) return;
            if (values_[node] >= 0) body(i + 1, values_[node]);
        }
    }
    Found longest(std::string_view at) const {
        Found found;
        prefixes(at, [&](std::size_t size, std::int32_t value) { found = {size, value}; });
        return found;
    }
    bool empty() const { return values_.size() <= 1; }
    bool begins(unsigned char byte) const { return !empty() && root_[byte] != 0; }  // whether any text begins so

private:
    std::uint32_t child(std::uint32_t node, unsigned char byte) const {
        if (node == 0) return empty() ? 0 : root_[byte];
        std::uint32_t first = children_[node], last = children_[node + 1];  // sorted by their bytes
        while (first < last) {
            const std::uint32_t middle = (first + last) / 2;
            if (labels_[middle] == byte) return middle;
            if (labels_[middle] < byte) first = middle + 1;
            else last = middle;
        }
        return 0;
    }

    std::array<std::uint32_t, 256> root_{};
    std::vector<std::uint32_t> children_;  // nodes in the order of their depth: those of n are [children_[n], children_[n + 1])
    std::vector<unsigned char> labels_;    // the byte that leads to a node
    std::vector<std::int32_t> values_;     // -1: no text ends here
};

}  // namespace keel
