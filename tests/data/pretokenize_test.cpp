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
    std::vector<std::string> pieces(std::string_view text) const {
        std::vector<std::string> out;
        for (std::size_t at = 0; at < text.size();) {
            const int count = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                                          PCRE2_NO_UTF_CHECK, match_.get(), nullptr);
            if (count < 0) return {"no match"};
            const PCRE2_SIZE* span = pcre2_get_ovector_pointer(match_.get());
            if (span[0] != at) return {"a gap"};
            out.emplace_back(text.substr(span[0], span[1] - span[0]));
            at = span[1];
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

TEST(Pretokenize, AgreesWithTheRegularExpressionForEveryCharacter) {
    const Regex unassigned("\\p{Cn}");  // PCRE2 may know an older Unicode: characters it has never heard of are left out
    for (const Pattern p : patterns) {
        const Regex regex(pattern_text(p));
        std::string text;
        for (std::uint32_t code = 0; code <= 0x10ffff; code += code < 0x20000 ? 1 : 61) {
            if ((code >= 0xd800 && code < 0xe000) || code == 0x180e) continue;  // PCRE2 alone calls U+180E a space
            text.clear();
            append_utf8(code, text);
            if (unassigned.pieces(text) == std::vector{text}) continue;
            text.insert(0, 1, 'a');
            text += "b 1";
            append_utf8(code, text);
            text += "2 ";
            append_utf8(code, text);
            text += "\n'";
            append_utf8(code, text);
            text += ".  ";
            append_utf8(code, text);
            ASSERT_EQ(pieces({p}, text), regex.pieces(text)) << pattern_name(p) << " at U+" << std::hex << code;
        }
    }
}

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
