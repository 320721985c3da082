// data/regex.h: regular expressions that come with a tokenizer, by PCRE2: UTF-8, Unicode classes, compiled to machine code.
//
// The pattern is the one of the file, in the language of the program the file was made for. Where PCRE2 reads the same
// text in another way it is rewritten (\s, \w, scripts), and where that cannot be done it is refused by name: a pattern
// read wrongly cuts text wrongly, and nothing shows it. A match that reaches PCRE2's limits is an error, never "no match".
// Classes of characters are PCRE2's (regex_unicode_version()), one version behind those of data/utf8.h at present.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace keel {

enum class RegexLanguage : unsigned char {
    oniguruma,  // tokenizer.json: ^ and $ are borders of lines
    rust,       // tiktoken: ^ and $ are borders of the text
};

// Working memory of one thread.
class RegexScratch {
public:
    RegexScratch();
    ~RegexScratch();
    RegexScratch(RegexScratch&&) noexcept;

private:
    friend class Regex;
    struct State;
    std::unique_ptr<State> state_;
};

class Regex {
public:
    // Throws Error that begins with `where` if the pattern cannot be read as it was meant.
    Regex(std::string_view pattern, RegexLanguage language, const std::string& where);

    struct Match {
        std::size_t begin = 0, end = 0;
    };
    // The first match at or after `from`. `text` must be valid UTF-8. Throws Error when the limits are reached.
    bool find(std::string_view text, std::size_t from, RegexScratch& scratch, Match& match) const;

    const std::string& pattern() const { return pattern_; }  // as it was given

private:
    std::string pattern_, where_;
    std::shared_ptr<void> code_;  // immutable once made: threads share it
};

// The pattern in PCRE2's language (data/regex_language.cpp).
std::string pcre2_pattern(std::string_view pattern, RegexLanguage language, const std::string& where);
// Whether PCRE2 knows this pattern at all.
bool pcre2_compiles(const std::string& pattern);
std::string regex_unicode_version();

// Calls body(begin, end, is_match) for matches and what lies between them, in order. An empty match is reported, but not
// one directly behind the match before.
template <class Body> void for_each_match(const Regex& regex, std::string_view text, RegexScratch& scratch, Body&& body) {
    std::size_t done = 0, from = 0;
    bool any = false;
    for (Regex::Match m; from <= text.size() && regex.find(text, from, scratch, m);) {
        if (m.begin == m.end && any && m.end == done) {
            do ++from;
            while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xc0) == 0x80);
            continue;
        }
        if (m.begin > done) body(done, m.begin, false);
        body(m.begin, m.end, true);
        done = from = m.end;
        any = true;
    }
    if (done < text.size()) body(done, text.size(), false);
}

}  // namespace keel
