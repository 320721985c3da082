#include "data/cut_table.h"

namespace keel {

void CutTable::add_merge(std::string_view left, std::string_view right) {
    if (pairs_.empty()) pairs_.reserve(), part_pairs_.reserve();
    const auto continues = [](char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; };
    if (left.empty() || right.empty() || continues(right[0])) return;  // joins inside of a character
    std::size_t last = left.size() - 1;
    while (last > 0 && left.size() - last < 4 && continues(left[last])) --last;
    const std::string_view tail = left.substr(last);
    std::size_t size = 1;
    while (size < right.size() && size < 4 && continues(right[size])) ++size;
    const std::string_view head = right.substr(0, size);

    // A tail that begins as a character and is none is cut off by `right`, which begins one: no valid text holds that.
    const bool left_whole = utf8_valid_prefix(tail) == tail.size(), right_whole = utf8_valid_prefix(head) == head.size();
    if (!left_whole && !continues(tail[0])) return;
    partial_left_ = partial_left_ || !left_whole;
    partial_right_ = partial_right_ || !right_whole;
    partial_both_ = partial_both_ || (!left_whole && !right_whole);
    if (left_whole && right_whole) pairs_.add(number(tail), number(head));
    else part_pairs_.add(number(tail), number(head));
}

void CutTable::add_whole(std::string_view text) {
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t size = utf8_at(text, at).size;
        if (at > 0) add_merge(text.substr(0, at), text.substr(at));
        at += size;
    }
}

}  // namespace keel
