#include <cstring>

#include "data/tokenizer_model.h"

namespace keel {
namespace {

std::uint32_t code_before(std::string_view text, std::size_t at) {
    do --at;
    while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80);
    return utf8_at(text, at).code;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
    std::vector<std::pair<std::string, std::int32_t>> texts;
    for (const AddedToken& t : tokens_) texts.emplace_back(t.content, static_cast<std::int32_t>(texts.size()));
    trie_ = Trie(std::move(texts));
    int first_bytes = 0;
    for (int b = 0; b < 256; ++b)
        if (trie_.begins(static_cast<unsigned char>(b))) only_first_byte_ = b, ++first_bytes;
    if (first_bytes != 1) only_first_byte_ = -1;
}

AddedTokenFinder::Match AddedTokenFinder::find(std::string_view text, std::size_t from, bool special_too) const {
    for (std::size_t at = from; !trie_.empty() && at < text.size(); ++at) {
        if (only_first_byte_ >= 0) {
            const void* hit = std::memchr(text.data() + at, only_first_byte_, text.size() - at);
            if (hit == nullptr) break;
            at = static_cast<std::size_t>(static_cast<const char*>(hit) - text.data());
        } else if (!trie_.begins(static_cast<unsigned char>(text[at]))) {
            continue;
        }
        const Trie::Found found = trie_.longest(text.substr(at));
        if (found.size == 0) continue;
        const AddedToken& token = tokens_[static_cast<std::size_t>(found.value)];
        std::size_t begin = at, end = at + found.size;
        // Special text read as plain, or part of a longer word: text like any other, and not looked into.
        if ((token.special && !special_too) ||
            (token.single_word && ((begin > 0 && is_word_char(code_before(text, begin))) ||
                                   (end < text.size() && is_word_char(utf8_at(text, end).code))))) {
            at = end - 1;
            continue;
        }
        while (token.lstrip && begin > from && char_class(code_before(text, begin)) == CharClass::space) {
            do --begin;
            while ((static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80);
        }
        while (token.rstrip && end < text.size()) {
            const Utf8Char c = utf8_at(text, end);
            if (char_class(c.code) != CharClass::space) break;
            end += c.size;
        }
        return {begin, end, token.id};
    }
    return {text.size(), text.size(), -1};
}

}  // namespace keel
