// Patterns in the languages of Oniguruma and of Rust's regex, rewritten for PCRE2 where it reads the same text otherwise:
// \s knows one character more there, \w leaves out marks, a script's name includes characters merely used with it. What
// would need more than that is refused.
#include <string>

#include "data/regex.h"
#include "kernels/base/error.h"

namespace keel {
namespace {

// The two languages differ in joiners, and Oniguruma in itself: outside of [ ] it takes the six numbers of Latin-1 that are
// no digits for word characters.
constexpr const char* oniguruma_word = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
constexpr const char* oniguruma_latin = "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";
constexpr const char* rust_word = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}";

class Translator {
public:
    Translator(std::string_view in, RegexLanguage language, const std::string& where)
        : in_(in), oniguruma_(language == RegexLanguage::oniguruma), where_(where) {}

    std::string run() {
        while (at_ < in_.size()) {
            if (in_[at_] == '\\') escape();
            else if (in_class_) class_member();
            else plain();
        }
        return std::move(out_);
    }

private:
    [[noreturn]] void refuse(std::string_view what) const {
        fail(where_, ": the pattern ", std::string(in_), " uses ", std::string(what), ", which PCRE2 reads otherwise; it is not supported");
    }
    char peek(std::size_t ahead) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }
    void copy(std::size_t bytes) {
        out_ += in_.substr(at_, bytes);
        at_ += bytes;
    }

    void escape() {
        const char c = peek(1);
        const std::string word = oniguruma_ ? std::string(oniguruma_word) + (in_class_ ? "" : oniguruma_latin) : rust_word;
        if (c == 's' || c == 'S') {
            out_ += c == 's' ? "\\p{White_Space}" : "\\P{White_Space}";
        } else if (c == 'w' || c == 'W') {
            if (in_class_ && c == 'W') refuse("\\W inside of [ ]");
            out_ += in_class_ ? word : c == 'w' ? "[" + word + "]" : "[^" + word + "]";
        } else if ((c == 'b' || c == 'B') && !in_class_) {
            const std::string w = "[" + word + "]";
            out_ += c == 'b' ? "(?:(?<=" + w + ")(?!" + w + ")|(?<!" + w + ")(?=" + w + "))"
                             : "(?:(?<=" + w + ")(?=" + w + ")|(?<!" + w + ")(?!" + w + "))";
        } else if (c == 'v') {
            out_ += "\\x0b";
        } else if (c == 'p' || c == 'P') {
            return property();
        } else if (c == 'u') {
            hexadecimal(2, 4);
            return;
        } else if (c == 'x') {
            if (peek(2) == '{') return copy(3);
            if (peek(2) >= '8') refuse("\\x of a single byte beyond ASCII");
            return copy(2);
        } else if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
            const std::string_view known = in_class_ ? "dDnrtfaeb" : "dDnrtfaeAz";
            if (known.find(c) == std::string_view::npos) refuse(std::string("\\") + c);
            return copy(2);
        } else {
            return copy(2);  // a character that stands for itself
        }
        at_ += 2;
    }

    void hexadecimal(std::size_t begin, std::size_t digits) {
        const std::string_view hex = in_.substr(std::min(at_ + begin, in_.size()), digits);
        if (hex.size() != digits || hex.find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos) refuse("\\u");
        out_ += "\\x{" + std::string(hex) + "}";
        at_ += begin + digits;
    }

    // A name of more than two letters is a script or a binary property. PCRE2 takes a bare script for the extended one.
    void property() {
        if (peek(2) != '{') return copy(peek(2) == '\0' ? 2 : 3);
        const std::size_t end = in_.find('}', at_);
        if (end == std::string_view::npos) refuse("\\p{ without }");
        std::string name(in_.substr(at_ + 3, end - at_ - 3));
        const std::string begin = std::string(in_.substr(at_, 3)) + (name.starts_with('^') ? "^" : "");
        if (name.starts_with('^')) name.erase(0, 1);
        if (name.find_first_of("^:=\\{") != std::string::npos) refuse("\\p{" + name + "}");
        if (name.size() > 2 && name != "Any" && pcre2_compiles("\\p{sc:" + name + "}")) name = "sc:" + name;
        out_ += begin + name + "}";
        at_ = end + 1;
    }

    void class_member() {
        if (in_[at_] == '[') refuse("[ inside of [ ]");
        if (in_.substr(at_, 2) == "&&") refuse("&& inside of [ ]");
        if (!oniguruma_ && (in_.substr(at_, 2) == "--" || in_.substr(at_, 2) == "~~")) refuse("-- or ~~ inside of [ ]");
        if (in_[at_] == ']') in_class_ = false;
        copy(1);
    }

    void plain() {
        const char c = in_[at_];
        if (c == '[') {
            in_class_ = true;
            copy(peek(1) == '^' ? 2 : 1);
            if (at_ < in_.size() && in_[at_] == ']') refuse("] as the first of [ ]");
        } else if (c == '(' && peek(1) == '?') {
            group();
        } else if (c == '(' && peek(1) == '*') {
            refuse("(*");
        } else if (c == '{') {
            repetition();
        } else {
            copy(1);
        }
    }

    void group() {
        for (const char* known : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:"})
            if (in_.substr(at_).starts_with(known)) return copy(std::string_view(known).size());
        if (at_ == 0 && in_.starts_with("(?i)")) return copy(4);
        refuse(std::string(in_.substr(at_, 4)));
    }

    // {n}, {n,} and {n,m} mean the same everywhere; what may follow them does not.
    void repetition() {
        const std::size_t end = in_.find('}', at_);
        const std::string_view body = end == std::string_view::npos ? "" : in_.substr(at_ + 1, end - at_ - 1);
        if (body.empty() || body[0] == ',' || body.find_first_not_of("0123456789,") != std::string_view::npos)
            refuse("{ as itself, or {,n}");
        copy(end + 1 - at_);
        if (oniguruma_ && (peek(0) == '+' || (peek(0) == '?' && body.find(',') == std::string_view::npos)))
            refuse("a second repetition after { }");
    }

    std::string_view in_;
    bool oniguruma_, in_class_ = false;
    const std::string& where_;
    std::size_t at_ = 0;
    std::string out_;
};

}  // namespace

std::string pcre2_pattern(std::string_view pattern, RegexLanguage language, const std::string& where) {
    return Translator(pattern, language, where).run();
}

}  // namespace keel
