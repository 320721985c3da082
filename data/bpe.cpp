#include "data/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <string>

#include "data/utf8.h"
#include "kernels/base/error.h"

namespace keel {
namespace {

constexpr std::size_t short_piece = 48;  // scanning is faster up to about here

}  // namespace

MergeTable::MergeTable(std::span<const Merge> merges) : MergeTable(merges, {}) {}

MergeTable::MergeTable(std::span<const Merge> merges, std::span<const std::uint32_t> ranks) {
    const std::size_t size = std::bit_ceil(std::max<std::size_t>(merges.size() * 2, 2));
    slots_.assign(size, Slot{});
    mask_ = size - 1;
    shift_ = 64 - std::countr_zero(size);
    std::uint32_t rank = 0;
    for (const Merge& m : merges) {
        const std::uint64_t key = key_of(m.left, m.right);
        std::size_t at = slot_of(key);
        while (slots_[at].key != empty && slots_[at].key != key) at = (at + 1) & mask_;
        if (slots_[at].key == empty) slots_[at] = {key, ranks.empty() ? rank : ranks[rank], m.joined};
        ++rank;
    }
}

std::size_t BpeScratch::merge(const MergeTable& merges, std::span<std::int32_t> symbols) {
    if (symbols.size() < 2) return symbols.size();
    return symbols.size() <= short_piece ? merge_short(merges, symbols) : merge_long(merges, symbols);
}

std::size_t BpeScratch::merge_short(const MergeTable& merges, std::span<std::int32_t> symbols) {
    std::size_t n = symbols.size();
    std::array<MergeTable::Found, short_piece> pair;  // pair[i] joins symbols i and i + 1
    for (std::size_t i = 0; i + 1 < n; ++i) pair[i] = merges.find(symbols[i], symbols[i + 1]);
    while (n > 1) {
        std::size_t best = 0;
        for (std::size_t i = 1; i + 1 < n; ++i)
            if (pair[i].rank < pair[best].rank) best = i;
        if (pair[best].rank == MergeTable::none) break;
        symbols[best] = pair[best].joined;
        for (std::size_t i = best + 1; i + 1 < n; ++i) {
            symbols[i] = symbols[i + 1];
            pair[i - 1] = pair[i];
        }
        --n;
        if (best > 0) pair[best - 1] = merges.find(symbols[best - 1], symbols[best]);
        if (best + 1 < n) pair[best] = merges.find(symbols[best], symbols[best + 1]);
    }
    return n;
}

std::size_t BpeScratch::merge_long(const MergeTable& merges, std::span<std::int32_t> symbols) {
    if (symbols.size() >= MergeTable::none) fail("a piece of ", symbols.size(), " bytes is too long to encode");
    const auto n = static_cast<std::uint32_t>(symbols.size());
    constexpr std::int32_t gone = -1;  // no symbol: those of bare characters end at -2
    next_.resize(n);
    previous_.resize(n);
    heap_.clear();
    const auto offer = [&](std::uint32_t left, std::uint32_t right) {
        const auto found = merges.find(symbols[left], symbols[right]);
        if (found.rank == MergeTable::none) return false;
        heap_.push_back(static_cast<std::uint64_t>(found.rank) << 32 | left);
        return true;
    };
    for (std::uint32_t i = 0; i < n; ++i) {
        next_[i] = i + 1;
        previous_[i] = i - 1;  // wraps at 0: previous of the first is none
        if (i + 1 < n) offer(i, i + 1);
    }
    std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
    while (!heap_.empty()) {
        std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
        const auto rank = static_cast<std::uint32_t>(heap_.back() >> 32), left = static_cast<std::uint32_t>(heap_.back());
        heap_.pop_back();
        if (symbols[left] == gone || next_[left] == n) continue;
        const std::uint32_t right = next_[left];
        const auto found = merges.find(symbols[left], symbols[right]);
        if (found.rank != rank) continue;  // one of the two has been joined since
        symbols[left] = found.joined;
        symbols[right] = gone;
        next_[left] = next_[right];
        if (next_[left] != n) previous_[next_[left]] = left;
        if (previous_[left] != MergeTable::none && offer(previous_[left], left))
            std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
        if (next_[left] != n && offer(left, next_[left])) std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
    }
    std::size_t count = 0;
    for (const std::int32_t symbol : symbols)
        if (symbol != gone) symbols[count++] = symbol;
    return count;
}

const std::array<std::uint16_t, 256>& byte_alphabet() {
    static const auto table = [] {
        std::array<std::uint16_t, 256> t{};
        std::uint16_t next = 0x100;
        for (unsigned b = 0; b < 256; ++b) {
            const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
            t[b] = printable ? static_cast<std::uint16_t>(b) : next++;
        }
        return t;
    }();
    return table;
}

int byte_of_character(std::uint32_t code) {
    static const auto table = [] {
        std::array<std::int16_t, 0x144> t;
        t.fill(-1);
        for (unsigned b = 0; b < 256; ++b) t[byte_alphabet()[b]] = static_cast<std::int16_t>(b);
        return t;
    }();
    return code < table.size() ? table[code] : -1;
}

std::string spell_bytes(std::string_view bytes) {
    std::string text;
    for (const char c : bytes) append_utf8(byte_alphabet()[static_cast<unsigned char>(c)], text);
    return text;
}

bool read_spelling(std::string_view text, std::string& bytes) {
    bytes.clear();
    for (std::size_t at = 0; at < text.size();) {
        const Utf8Char c = utf8_at(text, at);
        const int byte = byte_of_character(c.code);
        if (byte < 0) return false;
        bytes += static_cast<char>(byte);
        at += c.size;
    }
    return true;
}

}  // namespace keel
