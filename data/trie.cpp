#include "data/trie.h"

#include <algorithm>

namespace keel {
namespace {

constexpr std::size_t block = 256;
constexpr std::size_t searched_blocks = 16;  // older blocks are nearly full: looking there would cost more than it saves

}  // namespace

// A base for children by these bytes: all their places are free, in one of the last blocks or in a new one.
std::uint32_t Trie::place(std::string_view bytes) {
    const auto byte = [&](std::size_t i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[i])); };
    const std::size_t begin = nodes_.size() - std::min(nodes_.size(), searched_blocks * block);
    for (std::size_t at = std::max<std::size_t>(begin, 1); at < nodes_.size(); ++at) {
        if (nodes_[at].parent != free) continue;
        const std::uint32_t base = static_cast<std::uint32_t>(at) ^ byte(0);
        std::size_t good = 1;
        while (good < bytes.size() && nodes_[base ^ byte(good)].parent == free && (base ^ byte(good)) != 0) ++good;
        if (good == bytes.size()) return base;
    }
    nodes_.resize(nodes_.size() + block);
    return static_cast<std::uint32_t>(nodes_.size() - block);
}

Trie::Trie(std::vector<std::pair<std::string, std::int32_t>> texts) {
    std::erase_if(texts, [](const auto& t) { return t.first.empty(); });
    if (texts.empty()) return;
    std::stable_sort(texts.begin(), texts.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    struct Range {
        std::uint32_t node;
        std::size_t begin, end, depth;  // texts that share the path to it
    };
    nodes_.resize(block);
    nodes_[0].parent = 0;
    std::vector<Range> open{{0, 0, texts.size(), 0}};
    std::vector<std::size_t> ends;
    std::string bytes;
    while (!open.empty()) {  // depth first: the nodes along a text lie close together
        const Range range = open.back();
        open.pop_back();
        std::size_t first = range.begin;
        while (first < range.end && texts[first].first.size() == range.depth) ++first;  // they end at this node
        bytes.clear(), ends.clear();
        for (std::size_t i = first; i < range.end; ++i) {
            if (bytes.empty() || bytes.back() != texts[i].first[range.depth]) bytes += texts[i].first[range.depth], ends.push_back(i);
            ends.back() = i + 1;
        }
        if (bytes.empty()) continue;
        const std::uint32_t base = place(bytes);
        nodes_[range.node].base = base;
        for (std::size_t i = bytes.size(); i-- > 0;) {
            const std::uint32_t child = base ^ static_cast<unsigned char>(bytes[i]);
            const std::size_t begin = i == 0 ? first : ends[i - 1];
            const bool text_ends = texts[begin].first.size() == range.depth + 1;
            nodes_[child] = {.base = 0, .parent = range.node, .value = text_ends ? texts[begin].second : -1};
            open.push_back({child, begin, ends[i], range.depth + 1});
        }
    }
}

}  // namespace keel
