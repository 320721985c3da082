// Patterns of tokenizer files by PCRE2: what is rewritten, what is refused, and limits that end in an error.
#include "data/regex.h"

#include <gtest/gtest.h>

#include "data/utf8.h"
#include "tests/data/helpers.h"

namespace keel {
namespace {

// "[match]gap[match]…"
std::string cut(std::string_view pattern, std::string_view text, RegexLanguage language = RegexLanguage::oniguruma) {
    const Regex regex(pattern, language, "t");
    RegexScratch scratch;
    std::string out;
    for_each_match(regex, text, scratch, [&](std::size_t begin, std::size_t end, bool match) {
        out += match ? "[" + std::string(text.substr(begin, end - begin)) + "]" : std::string(text.substr(begin, end - begin));
    });
    return out;
}

std::string refusal(std::string_view pattern, RegexLanguage language = RegexLanguage::oniguruma) {
    return message_of([&] { Regex(pattern, language, "t.json"); });
}

TEST(Regex, ReportsMatchesAndWhatLiesBetween) {
    EXPECT_EQ(cut("b+", "abbcb"), "a[bb]c[b]");
    EXPECT_EQ(cut("x", "abc"), "abc");
    EXPECT_EQ(cut("b*", "abc"), "[]a[b]c[]");  // but no empty match directly behind another
    EXPECT_EQ(cut("", ""), "[]");
}

TEST(Regex, WhiteSpaceIsThePropertyAndNotPcre2sIdeaOfIt) {
    EXPECT_EQ(cut("\\s", "a\u180e\u200b\u3000b"), "a\u180e\u200b[\u3000]b");
    EXPECT_EQ(cut("[^\\S]", "a\u180e b"), "a\u180e[ ]b");
}

TEST(Regex, WordCharactersIncludeMarksAndTheLanguagesDifferWhereTheyDo) {
    EXPECT_EQ(cut("\\w+", "a\u0301b _1"), "[a\u0301b] [_1]");
    EXPECT_EQ(cut("\\w+", "a\u200db"), "[a]\u200d[b]");
    EXPECT_EQ(cut("\\w+", "a\u200db", RegexLanguage::rust), "[a\u200db]");
    EXPECT_EQ(cut("\\w+", "x\u00b2"), "[x\u00b2]");
    EXPECT_EQ(cut("\\w+", "x\u00b2", RegexLanguage::rust), "[x]\u00b2");
    EXPECT_EQ(cut("\\bfoo\\b", "foo foo\u0301 food"), "[foo] foo\u0301 food");
}

TEST(Regex, AScriptIsTheScriptAndNotWhatIsUsedWithIt) {
    EXPECT_EQ(cut("\\p{Han}+", "\u4e00\u3001\u4e8c"), "[\u4e00]\u3001[\u4e8c]");  // U+3001 is used with Han and others
    EXPECT_EQ(cut("\\P{Han}", "\u4e00a"), "\u4e00[a]");
    EXPECT_EQ(cut("\\p{Lu}\\p{^Lu}", "aBcD"), "a[Bc]D");
}

TEST(Regex, BordersOfLinesAreThoseOfTheLanguage) {
    EXPECT_EQ(cut("^b$", "a\nb\nc"), "a\n[b]\nc");
    EXPECT_EQ(cut("^b$", "a\nb\nc", RegexLanguage::rust), "a\nb\nc");
    EXPECT_EQ(cut("\\s+$", " a \n", RegexLanguage::rust), " a[ \n]");
    EXPECT_EQ(cut(".", "a\r\n"), "[a][\r]\n");
}

TEST(Regex, RefusesByNameWhatItWouldReadOtherwise) {
    for (const char* pattern : {"[a[b]]", "[a&&b]", "[[:alpha:]]", "a{,3}", "a{2}?", "\\p{N}{1,3}+", "(?m:.)", "a(?i)b", "(?<n>a)", "\\h",
                                "\\R", "\\Qa\\E", "\\1", "[\\W]", "(*SKIP)a", "[]a]", "\\xff", "\\p{L"})
        EXPECT_SAYS(refusal(pattern), "not supported") << pattern;
    EXPECT_EQ(refusal("\\p{N}{1,3}+", RegexLanguage::rust), "");
    EXPECT_SAYS(refusal("[a--b]", RegexLanguage::rust), "not supported");
    EXPECT_SAYS(refusal("(a"), "not understood");
    EXPECT_SAYS(refusal("\\p{Klingon}"), "not understood");
    EXPECT_SAYS(refusal(std::string(1 << 17, 'a')), "131072 bytes");
}

TEST(Regex, AMatchThatGivesUpIsAnErrorAndNeverNoMatch) {
    const std::string said = message_of([] { cut("(a*)*b|a", std::string(5000, 'a')); });
    EXPECT_SAYS(said, "gave up at byte 0 of a text of 5000 bytes");
    EXPECT_SAYS(said, "(a*)*b|a");
}

TEST(Regex, LongRunsOfAnythingAreCutInOneGo) {
    const std::string o200k = R"([^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
    const Regex regex(o200k, RegexLanguage::oniguruma, "t");
    RegexScratch scratch;
    for (const char* unit : {" ", "a", "\n", "1", "!", "\u00e9", "\u3000", " \n"}) {
        std::string text;
        while (text.size() < 4 << 20) text += unit;
        std::size_t total = 0;
        for_each_match(regex, text, scratch, [&](std::size_t begin, std::size_t end, bool match) {
            EXPECT_TRUE(match);
            total += end - begin;
        });
        EXPECT_EQ(total, text.size()) << unit;
    }
}

}  // namespace
}  // namespace keel
