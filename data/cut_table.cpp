#include "data/cut_table.h"

namespace keel {
namespace {

bool continues(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

std::uint32_t number(std::string_view bytes) {  // of at most four bytes; different for different bytes
    std::uint32_t out = 0;
    for (const char c : bytes) out = out << 8 | static_cast<unsigned char>(c);
    return out;
}

}  // namespace

void CutTable::add_merge(std::string_view left, std::string_view right) {
    if (pairs_.empty()) pairs_.reserve(), part_pairs_.reserve(), roles_.resize(0x10000);
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
    if (left_whole && right_whole) return pairs_.add(utf8_at(tail, 0).code, utf8_at(head, 0).code);
    part_pairs_.add(number(tail), number(head));
    if (left_whole) return add_role_by_head(tail, before_part);
    add_role_by_tail(tail, has_tail);
    add_role_by_head(head, behind_tail);
}

// All characters that begin with `head`, which may be one.
void CutTable::add_role_by_head(std::string_view head, std::uint8_t role) {
    const auto lead = static_cast<unsigned char>(head[0]);
    const std::size_t size = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    if (size == 4 || head.size() > size) return;
    std::uint32_t first = size == 1 ? lead : size == 2 ? lead & 0x1fu : lead & 0x0fu;
    for (std::size_t i = 1; i < size; ++i) first = first << 6 | (i < head.size() ? static_cast<unsigned char>(head[i]) & 0x3fu : 0);
    const std::uint32_t count = 1u << (6 * (size - head.size()));
    for (std::uint32_t code = first; code < first + count; ++code) roles_[code] |= role;
}

// All characters that end with `tail`, and one or two more that do not: nothing depends on it.
void CutTable::add_role_by_tail(std::string_view tail, std::uint8_t role) {
    if (tail.size() > 2) return;  // of characters of four bytes
    std::uint32_t end = 0;
    for (const char c : tail) end = end << 6 | (static_cast<unsigned char>(c) & 0x3fu);
    for (std::uint32_t code = end; code < roles_.size(); code += 1u << (6 * tail.size())) roles_[code] |= role;
}

bool CutTable::finds_parts(std::string_view left, std::string_view right) const {
    for (std::size_t n = 1; n < right.size(); ++n)
        if (part_pairs_.has(number(left), number(right.substr(0, n)))) return true;
    for (std::size_t from = 1; from < left.size(); ++from)
        for (std::size_t n = 1; n <= right.size(); ++n)
            if (part_pairs_.has(number(left.substr(from)), number(right.substr(0, n)))) return true;
    return false;
}

void CutTable::add_whole(std::string_view text) {
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t size = utf8_at(text, at).size;
        if (at > 0) add_merge(text.substr(0, at), text.substr(at));
        at += size;
    }
}

}  // namespace keel
