#include "data/sentencepiece_normalizer.h"

#include <cstring>

#include "data/utf8.h"
#include "kernels/base/error.h"

namespace keel {
namespace {

constexpr std::string_view marker = "\xe2\x96\x81";  // U+2581

// One unit of a double-array trie (J. Aoe 1989, in the packing of darts-clone).
bool has_leaf(std::uint32_t unit) { return (unit >> 8 & 1) != 0; }
std::uint32_t value(std::uint32_t unit) { return unit & 0x7fffffffu; }
std::uint32_t label(std::uint32_t unit) { return unit & 0x800000ffu; }
std::uint32_t offset(std::uint32_t unit) { return unit >> 10 << ((unit & 0x200u) >> 6); }

}  // namespace

SentencePieceNormalizer::SentencePieceNormalizer(Rules rules, const std::string& where)
    : rules_(std::move(rules)), where_(where) {
    std::vector<std::pair<std::string, std::int32_t>> symbols;
    for (const std::string& symbol : rules_.user_defined) symbols.emplace_back(symbol, 0);
    user_defined_ = Trie(std::move(symbols));
    const std::string& map = rules_.charsmap;
    if (map.empty()) return;
    std::uint32_t bytes = 0;
    if (map.size() >= 4) std::memcpy(&bytes, map.data(), 4);
    if (map.size() < 4 || bytes > map.size() - 4 || bytes % 4 != 0 || bytes == 0)
        fail(where, ": the compiled map of characters has ", map.size(), " bytes and says that its trie takes ", bytes);
    units_.resize(bytes / 4);
    std::memcpy(units_.data(), map.data() + 4, bytes);
    replacements_ = std::string_view(map).substr(4 + bytes);
    if (replacements_.empty() || replacements_.back() != '\0') fail(where, ": the compiled map of characters is cut off");
    if (utf8_valid_prefix(replacements_) != replacements_.size()) fail(where, ": the compiled map of characters is not UTF-8");
}

std::string_view SentencePieceNormalizer::prefix(std::string_view text, std::size_t& used) const {
    if (const std::size_t symbol = user_defined_.longest(text).size; symbol > 0) {
        used = symbol;
        return text.substr(0, symbol);
    }
    std::size_t longest = 0;
    std::uint32_t found = 0;
    if (!units_.empty()) {
        const auto unit = [&](std::uint32_t node) { return node < units_.size() ? units_[node] : 0u; };
        std::uint32_t node = offset(units_[0]);
        for (std::size_t i = 0; i < text.size(); ++i) {
            const auto byte = static_cast<unsigned char>(text[i]);
            node ^= byte;
            if (node >= units_.size() || label(units_[node]) != byte) break;
            const std::uint32_t here = units_[node];
            node ^= offset(here);
            if (has_leaf(here)) longest = i + 1, found = value(unit(node));
        }
    }
    const std::size_t one = utf8_at(text, 0).size;
    if (longest == 0) {
        used = one;
        return text.substr(0, one);
    }
    // A key that ends inside of a character could only come from a damaged map.
    if (found >= replacements_.size() || (longest < text.size() && (static_cast<unsigned char>(text[longest]) & 0xc0) == 0x80) ||
        (static_cast<unsigned char>(replacements_[found]) & 0xc0) == 0x80)
        fail(where_, ": the compiled map of characters is damaged");
    used = longest;
    return replacements_.data() + found;  // to its zero byte: the last byte of all is one
}

std::string SentencePieceNormalizer::normalize(std::string_view text) const {
    std::string out;
    std::size_t used = 0;
    if (rules_.remove_extra_whitespaces)
        while (!text.empty() && prefix(text, used) == " ") text.remove_prefix(used);
    if (text.empty()) return out;
    out.reserve(text.size() + text.size() / 2);
    const std::string_view space = rules_.escape_whitespaces ? marker : std::string_view(" ");
    if (rules_.add_dummy_prefix) out += space;
    bool after_space = rules_.remove_extra_whitespaces;
    while (!text.empty()) {
        std::string_view part = prefix(text, used);
        text.remove_prefix(used);
        while (after_space && part.starts_with(' ')) part.remove_prefix(1);
        if (part.empty()) continue;
        for (const char c : part) {
            if (c == ' ') out += space;
            else out += c;
        }
        after_space = rules_.remove_extra_whitespaces && part.ends_with(' ');
    }
    if (rules_.remove_extra_whitespaces)
        while (out.ends_with(space)) out.resize(out.size() - space.size());
    return out;
}

std::string SentencePieceNormalizer::canonical() const {
    std::string out = concat("sentencepiece ", rules_.add_dummy_prefix, rules_.remove_extra_whitespaces, rules_.escape_whitespaces,
                             ' ', rules_.charsmap.size(), ':', rules_.charsmap);
    for (const std::string& symbol : rules_.user_defined) out += concat(' ', symbol.size(), ':', symbol);
    return out;
}

}  // namespace keel
