#include <algorithm>
#include <cstring>

#include "data/tokenizer_model.h"
#include "kernels/base/error.h"

namespace keel {
namespace {

std::uint32_t code_before(std::string_view text, std::size_t at) {
    do --at;
    while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80);
    return utf8_at(text, at).code;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
    const auto first = [](const AddedToken& t) { return static_cast<unsigned char>(t.content.at(0)); };
    std::stable_sort(tokens_.begin(), tokens_.end(), [&](const AddedToken& a, const AddedToken& b) {
        return first(a) != first(b) ? first(a) < first(b) : a.content.size() > b.content.size();
    });
    for (const AddedToken& t : tokens_) ++begin_[first(t) + 1u];
    for (std::size_t b = 0; b < 256; ++b) {
        if (begin_[b + 1] == tokens_.size() && !tokens_.empty()) only_first_byte_ = static_cast<int>(b);
        begin_[b + 1] += begin_[b];
    }
}

AddedTokenFinder::Match AddedTokenFinder::find(std::string_view text, std::size_t from, bool special_too) const {
    for (std::size_t at = from; !tokens_.empty() && at < text.size(); ++at) {
        if (only_first_byte_ >= 0) {
            const void* hit = std::memchr(text.data() + at, only_first_byte_, text.size() - at);
            if (hit == nullptr) break;
            at = static_cast<std::size_t>(static_cast<const char*>(hit) - text.data());
        }
        const auto b = static_cast<unsigned char>(text[at]);
        for (std::uint32_t i = begin_[b]; i < begin_[b + 1u]; ++i) {
            const AddedToken& token = tokens_[i];
            if (token.special && !special_too) continue;
            if (text.compare(at, token.content.size(), token.content) != 0) continue;
            std::size_t begin = at, end = at + token.content.size();
            if (token.single_word && ((begin > 0 && is_word_char(code_before(text, begin))) ||
                                      (end < text.size() && is_word_char(utf8_at(text, end).code)))) {
                at = end - 1;  // part of a longer word: text like any other, and not looked into
                break;
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
    }
    return {text.size(), text.size(), -1};
}

}  // namespace keel
