// The hand-written scanners against the regular expressions they stand for: PCRE2's, over all characters and random texts,
// and the independent goldens of tests/golden/make_tokenizer.py.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <gtest/gtest.h>
#include <pcre2.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>

#include "data/pretokenize.h"
#include "data/utf8.h"
#include "tests/data/helpers.h"

namespace keel {
namespace {

constexpr Pattern patterns[] = {Pattern::gpt2, Pattern::llama3, Pattern::qwen};

std::vector<std::string> pieces(const Pretokenizer& how, std::string_view text) {
    std::vector<std::string> out;
    for_each_piece(how, text, [&](std::string_view piece) { out.emplace_back(piece); });
    return out;
}

// The pattern as PCRE2 understands it.
class Regex {
public:
    explicit Regex(const char* pattern) {
        int error;
        PCRE2_SIZE at;
        code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern), PCRE2_ZERO_TERMINATED,
                                  PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK, &error, &at, nullptr));
        pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);
        match_.reset(pcre2_match_data_create_from_pattern(code_.get(), nullptr));
    }
    // Where the match at `at` ends; 0 if there is none.
    std::size_t end(std::string_view text, std::size_t at) const {
        const int count = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                                      PCRE2_NO_UTF_CHECK, match_.get(), nullptr);
        const PCRE2_SIZE* span = pcre2_get_ovector_pointer(match_.get());
        return count < 0 || span[0] != at ? 0 : span[1];
    }
    std::vector<std::string> pieces(std::string_view text) const {
        std::vector<std::string> out;
        for (std::size_t at = 0; at < text.size();) {
            const std::size_t to = end(text, at);
            if (to == 0) return {"no match"};
            out.emplace_back(text.substr(at, to - at));
            at = to;
        }
        return out;
    }

private:
    struct Freed {
        void operator()(pcre2_code* c) const { pcre2_code_free(c); }
        void operator()(pcre2_match_data* m) const { pcre2_match_data_free(m); }
    };
    std::unique_ptr<pcre2_code, Freed> code_;
    std::unique_ptr<pcre2_match_data, Freed> match_;
};

TEST(Pretokenize, CutsTheTableOfTextsAsThePatternsDo) {
    struct Row {
        std::string text;
        std::vector<std::string> gpt2, llama3, qwen;
    };
    const std::vector<Row> rows = {
        {"I'll  go\n\n  now ",
         {"I", "'ll", " ", " go", "\n\n ", " now", " "},
         {"I", "'ll", " ", " go", "\n\n", " ", " now", " "},
         {"I", "'ll", " ", " go", "\n\n", " ", " now", " "}},
        {"a.b", {"a", ".", "b"}, {"a", ".b"}, {"a", ".b"}},
        {"a\tb", {"a", "\t", "b"}, {"a", "\tb"}, {"a", "\tb"}},
        {"  \n\n  x", {"  \n\n ", " x"}, {"  \n\n", " ", " x"}, {"  \n\n", " ", " x"}},
        {"1234", {"1234"}, {"123", "4"}, {"1", "2", "3", "4"}},
        {"!!!\n\nok", {"!!!", "\n", "\n", "ok"}, {"!!!\n\n", "ok"}, {"!!!\n\n", "ok"}},
        {"a\r\n\r\nb", {"a", "\r\n\r", "\n", "b"}, {"a", "\r\n\r\n", "b"}, {"a", "\r\n\r\n", "b"}},
        {"'sup it's", {"'s", "up", " it", "'s"}, {"'s", "up", " it", "'s"}, {"'s", "up", " it", "'s"}},
        {"they'LL", {"they", "'", "LL"}, {"they", "'LL"}, {"they", "'LL"}},
        {"x\u00a0y", {"x", "\u00a0", "y"}, {"x", "\u00a0y"}, {"x", "\u00a0y"}},
    };
    for (const Row& row : rows) {
        EXPECT_EQ(pieces({Pattern::gpt2}, row.text), row.gpt2) << row.text;
        EXPECT_EQ(pieces({Pattern::llama3}, row.text), row.llama3) << row.text;
        EXPECT_EQ(pieces({Pattern::qwen}, row.text), row.qwen) << row.text;
    }
}

TEST(Pretokenize, CutsHardTextsAsTheIndependentImplementationDoes) {
    const auto golden = nlohmann::json::parse(read_file(KEEL_TEST_DIR "/golden/tokenizer/cases.json"));
    for (const auto& c : golden.at("pieces"))
        for (const Pattern p : patterns) {
            if (c[0] != pattern_name(p)) continue;
            EXPECT_EQ(pieces({p}, c[1].get<std::string>()), c[2].get<std::vector<std::string>>()) << pattern_name(p) << ": " << c[1];
        }
}

// Every code point there is, between letters, between numbers, and after white space, a line break and an apostrophe.
class EveryCharacter : public testing::TestWithParam<Pattern> {};

TEST_P(EveryCharacter, IsCutAsTheRegularExpressionCutsIt) {
    const Pattern pattern = GetParam();
    const Regex regex(pattern_text(pattern)), unassigned("\\p{Cn}");
    int newer = 0;
    std::string text;
    for (std::uint32_t code = 0; code <= 0x10ffff; ++code) {
        if ((code >= 0xd800 && code < 0xe000) || code == 0x180e) continue;  // PCRE2 alone calls U+180E a space
        std::string c;
        append_utf8(code, c);
        if (char_class(code) != CharClass::other && unassigned.end(c, 0) != 0) {  // PCRE2 knows an older Unicode
            ++newer;
            continue;
        }
        text.assign("a").append(c).append("b 1").append(c).append("2 ").append(c).append("\n'").append(c).append(".  ").append(c);
        for (std::size_t at = 0; at < text.size();) {
            const std::size_t end = piece_end(pattern, text, at);
            ASSERT_EQ(end, regex.end(text, at)) << "U+" << std::hex << code << ", from byte " << std::dec << at;
            at = end;
        }
    }
    EXPECT_LE(newer, 4348 + 40);  // what Unicode 15 has added to the letters and numbers of 14
}

INSTANTIATE_TEST_SUITE_P(Pretokenize, EveryCharacter, testing::ValuesIn(patterns), [](const auto& of) {
    return std::string(of.param == Pattern::gpt2 ? "Gpt2" : of.param == Pattern::llama3 ? "Llama3" : "Qwen");
});

TEST(Pretokenize, AgreesWithTheRegularExpressionOnRandomTexts) {
    const char* pool[] = {" ", "  ", "\n", "\r", "\t", "a", "Bc", "'", "'s", "'LL", "'re", "\u017f", "1", "234", "\u00bd", ".", "!?", "\u00e9",
                          "\u0301", "\u00a0", "\u3000", "\u2028", "\u65e5\u672c", "\U0001f642", "_", "\x1c", "\u0085"};
    const Random random(3, Purpose::test, "pretokenize");
    for (const Pattern p : patterns) {
        const Regex regex(pattern_text(p));
        for (std::uint64_t i = 0; i < 20000; ++i) {
            std::string text;
            for (std::uint64_t j = 0; j < 12; ++j) text += pool[random.bits64(i * 12 + j) % std::size(pool)];
            ASSERT_EQ(pieces({p}, text), regex.pieces(text)) << pattern_name(p) << " on " << testing::PrintToString(text);
        }
    }
}

TEST(Pretokenize, DigitsAreCutOutBeforeThePatternSeesTheText) {
    EXPECT_EQ(pieces({Pattern::gpt2, Digits::individual}, "a  12b"), (std::vector<std::string>{"a", "  ", "1", "2", "b"}));
    EXPECT_EQ(pieces({Pattern::gpt2, Digits::runs}, "a  12b"), (std::vector<std::string>{"a", "  ", "12", "b"}));
    EXPECT_EQ(pieces({Pattern::gpt2, Digits::together}, "a  12b"), (std::vector<std::string>{"a", " ", " 12", "b"}));
}

TEST(Pretokenize, KnowsAPatternByItsExactTextOnly) {
    for (const Pattern p : patterns) EXPECT_EQ(pattern_of(pattern_text(p)), p);
    EXPECT_EQ(pattern_of(std::string(pattern_text(Pattern::qwen)) + " "), std::nullopt);
    EXPECT_EQ(pattern_of(""), std::nullopt);
}

TEST(Pretokenize, IsLinearOnLongRunsOfAnything) {
    // A quadratic scanner needs minutes for one of these; the limit leaves a linear one a factor of a hundred.
    for (const char* unit : {"a", " ", "\n", "\n ", "1", "!", "'", "\u00a0", "\u0301", " !", "'s", "\r\n"})
        for (const Pattern p : patterns) {
            std::string text;
            while (text.size() < 1 << 20) text += unit;
            const auto began = std::chrono::steady_clock::now();
            std::size_t total = 0;
            for_each_piece({p}, text, [&](std::string_view piece) { total += piece.size(); });
            EXPECT_EQ(total, text.size());
            EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(), 3) << unit;
        }
}

}  // namespace
}  // namespace keel
