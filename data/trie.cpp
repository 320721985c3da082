#include "data/trie.h"

#include <algorithm>

namespace keel {

Trie::Trie(std::vector<std::pair<std::string, std::int32_t>> texts) {
    std::stable_sort(texts.begin(), texts.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    struct Range {
        std::size_t begin, end;  // texts that share the path to a node
    };
    std::vector<Range> level{{0, texts.size()}};
    labels_.push_back(0);
    values_.push_back(-1);
    for (std::size_t depth = 0; !level.empty(); ++depth) {
        std::vector<Range> next;
        for (const Range& range : level) {
            children_.push_back(static_cast<std::uint32_t>(labels_.size()));
            for (std::size_t i = range.begin; i < range.end;) {
                if (texts[i].first.size() <= depth) {  // ends at this node, which its value tells already
                    ++i;
                    continue;
                }
                const char byte = texts[i].first[depth];
                std::size_t end = i;
                while (end < range.end && texts[end].first[depth] == byte) ++end;
                labels_.push_back(static_cast<unsigned char>(byte));
                values_.push_back(texts[i].first.size() == depth + 1 ? texts[i].second : -1);
                next.push_back({i, end});
                i = end;
            }
        }
        level = std::move(next);
    }
    children_.push_back(static_cast<std::uint32_t>(labels_.size()));
    for (std::uint32_t node = children_[0]; node < children_[1]; ++node) root_[labels_[node]] = node;
}

}  // namespace keel
