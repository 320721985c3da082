#include "data/pretokenize.h"

#include "data/utf8.h"

namespace keel {
namespace {

// A character and its class, or the end of the text (size 0, class other).
struct Seen {
    std::uint32_t code = 0;
    std::uint32_t size = 0;
    CharClass cls = CharClass::other;

    bool is(CharClass c) const { return size != 0 && cls == c; }
    bool line_break() const { return size != 0 && (code == '\n' || code == '\r'); }
};

Seen see(std::string_view text, std::size_t at) {
    if (at >= text.size()) return {};
    const auto b = static_cast<unsigned char>(text[at]);
    if (b < 0x80) return {b, 1, ascii_classes[b]};
    const Utf8Char c = utf8_at(text, at);
    return {c.code, c.size, char_class_beyond_ascii(c.code)};
}

std::size_t run_end(std::string_view text, std::size_t at, CharClass cls) {
    for (Seen c = see(text, at); c.is(cls); c = see(text, at)) at += c.size;
    return at;
}

// End of a contraction ('s 't 're 've 'm 'll 'd) whose apostrophe is at `begin`, or `begin` if there is none. Without case,
// U+017F (long s) is an s: that is Unicode's simple folding.
std::size_t contraction_end(std::string_view text, std::size_t begin, bool any_case) {
    const auto letter = [&](std::size_t i) -> char {
        if (begin + i >= text.size()) return 0;
        const char c = text[begin + i];
        return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    };
    switch (letter(1)) {
        case 's': case 't': case 'm': case 'd': return begin + 2;
        case 'r': case 'v': return letter(2) == 'e' ? begin + 3 : begin;
        case 'l': return letter(2) == 'l' ? begin + 3 : begin;
        default: return any_case && text.substr(begin + 1, 2) == "\xc5\xbf" ? begin + 3 : begin;
    }
}

// White space from `begin` on, whose run ends at `end`: \s+(?!\S)|\s+ leaves the last character to the next piece, unless
// the text ends or there is only one.
std::size_t space_end(std::string_view text, std::size_t begin, std::size_t end) {
    if (end == text.size()) return end;
    std::size_t last = end - 1;
    while ((static_cast<unsigned char>(text[last]) & 0xc0) == 0x80) --last;
    return last > begin ? last : end;
}

std::size_t gpt2_end(std::string_view text, std::size_t begin) {
    const Seen first = see(text, begin);
    if (first.code == '\'')
        if (const std::size_t end = contraction_end(text, begin, false); end != begin) return end;
    // " ?" then a run of one class; a space that is followed by white space is white space.
    const std::size_t body = begin + (first.code == ' ' ? 1 : 0);
    const Seen c = body == begin ? first : see(text, body);
    if (c.size != 0 && c.cls != CharClass::space) return run_end(text, body + c.size, c.cls);
    return space_end(text, begin, run_end(text, begin, CharClass::space));
}

std::size_t llama3_end(std::string_view text, std::size_t begin, int digits) {
    const Seen first = see(text, begin);
    if (first.code == '\'')
        if (const std::size_t end = contraction_end(text, begin, true); end != begin) return end;
    if (first.is(CharClass::letter)) return run_end(text, begin + first.size, CharClass::letter);
    if (first.is(CharClass::number)) {
        std::size_t end = begin + first.size;
        for (int i = 1; i < digits; ++i) {
            const Seen c = see(text, end);
            if (!c.is(CharClass::number)) break;
            end += c.size;
        }
        return end;
    }
    const Seen second = see(text, begin + first.size);
    if (!first.line_break() && second.is(CharClass::letter))
        return run_end(text, begin + first.size + second.size, CharClass::letter);
    // " ?" then a run of what is neither white space, letter nor number, then line breaks.
    if (first.cls == CharClass::other || (first.code == ' ' && second.is(CharClass::other))) {
        std::size_t end = run_end(text, begin + first.size, CharClass::other);
        while (see(text, end).line_break()) ++end;
        return end;
    }
    const std::size_t end = run_end(text, begin, CharClass::space);
    // Up to the last line break of the run, if it has one. The bytes of \r and \n occur in no longer character.
    const std::size_t last_break = text.substr(begin, end - begin).find_last_of("\r\n");
    return last_break != std::string_view::npos ? begin + last_break + 1 : space_end(text, begin, end);
}

constexpr const char* texts[] = {
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
};

}  // namespace

const char* pattern_text(Pattern pattern) { return texts[static_cast<int>(pattern)]; }

const char* pattern_name(Pattern pattern) {
    constexpr const char* names[] = {"GPT-2", "Llama-3", "Qwen"};
    return names[static_cast<int>(pattern)];
}

std::optional<Pattern> pattern_of(std::string_view regex) {
    for (const Pattern p : {Pattern::gpt2, Pattern::llama3, Pattern::qwen})
        if (regex == pattern_text(p)) return p;
    return std::nullopt;
}

std::size_t piece_end(Pattern pattern, std::string_view text, std::size_t begin) {
    switch (pattern) {
        case Pattern::gpt2: return gpt2_end(text, begin);
        case Pattern::llama3: return llama3_end(text, begin, 3);
        default: return llama3_end(text, begin, 1);
    }
}

std::size_t digits_end(Digits digits, std::string_view text, std::size_t begin) {
    const Seen first = see(text, begin);
    std::size_t end = begin + first.size;
    const bool number = first.is(CharClass::number);
    if (number && digits == Digits::individual) return end;
    for (Seen c = see(text, end); c.size != 0 && c.is(CharClass::number) == number; c = see(text, end)) end += c.size;
    return end;
}

}  // namespace keel
