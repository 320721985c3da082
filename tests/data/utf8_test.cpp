#include "data/utf8.h"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <chrono>
#include <cstdlib>

#include "data/bpe.h"
#include "data/normal_form.h"
#include "tests/data/helpers.h"

namespace keel {
namespace {

std::string repaired(std::string_view text, std::int64_t& count) {
    std::string out;
    count = append_repaired(text, out);
    return out;
}

TEST(Utf8, EachBadSequenceBecomesOneReplacementCharacter) {
    struct Row {
        std::string bad, good;
        std::int64_t count;
    };
    const std::string r = "\xef\xbf\xbd";
    const Row rows[] = {
        {"plain", "plain", 0},
        {"\xff", r, 1},
        {"a\xc3" "b", "a" + r + "b", 1},
        {"\xe2\x82", r, 1},                      // cut at the end
        {"\xe2\x82x", r + "x", 1},               // cut by another character: the longest prefix is one sequence
        {"\xc0\xaf", r + r, 2},                  // overlong
        {"\xe0\x80\x80", r + r + r, 3},          // overlong: no second byte may be below A0
        {"\xed\xa0\x80", r + r + r, 3},          // a surrogate
        {"\xf4\x90\x80\x80", r + r + r + r, 4},  // past U+10FFFF
        {"\xf0\x9f\x99\x82\xf0\x9f\x99", "\xf0\x9f\x99\x82" + r, 1},
        {"\x80\x80", r + r, 2},
        {"12345678\x80" "12345678", "12345678" + r + "12345678", 1},
    };
    for (const Row& row : rows) {
        std::int64_t count;
        EXPECT_EQ(repaired(row.bad, count), row.good);
        EXPECT_EQ(count, row.count) << testing::PrintToString(row.bad);
    }
}

TEST(Utf8, RepairInPartsEqualsRepairOfTheWhole) {
    const Random random(5, Purpose::test, "utf8");
    for (std::uint64_t i = 0; i < 3000; ++i) {
        std::string bytes;
        for (std::uint64_t j = 0; j < 16; ++j)
            bytes += "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82\xff\xed\xa0"[random.bits64(i * 16 + j) % 13];
        std::int64_t whole_count, count = 0;
        const std::string whole = repaired(bytes, whole_count);
        std::string parts, held;
        for (const char c : bytes) {
            held += c;
            std::size_t used;
            count += append_repaired(held, parts, used);
            held.erase(0, used);
        }
        count += append_repaired(held, parts);
        ASSERT_EQ(parts, whole);
        ASSERT_EQ(count, whole_count);
        ASSERT_EQ(utf8_valid_prefix(whole), whole.size());
    }
}

TEST(Utf8, WhiteSpaceIsTheUnicodePropertyOfTwentyFiveCharacters) {
    int count = 0;
    for (std::uint32_t code = 0; code < 0x110000; ++code) count += char_class(code) == CharClass::space ? 1 : 0;
    EXPECT_EQ(count, 25);
    for (const std::uint32_t no : {0x180eu, 0x200bu, 0x1cu, 0x1fu}) EXPECT_EQ(char_class(no), CharClass::other);
}

TEST(Utf8, ByteAlphabetSpellsBytesAsTokenizerFilesDo) {
    EXPECT_EQ(spell_bytes(" \xc3\xa9\n"), "\u0120\u00c3\u00a9\u010a");
    const std::pair<int, int> vectors[] = {{0, 0x100}, {9, 0x109}, {10, 0x10a}, {13, 0x10d}, {32, 0x120}, {127, 0x121}, {160, 0x142}, {173, 0x143}, {255, 0xff}};
    for (const auto& [byte, code] : vectors) EXPECT_EQ(byte_alphabet()[static_cast<std::size_t>(byte)], code);
    std::string all, back;
    for (int b = 0; b < 256; ++b) all += static_cast<char>(b);
    ASSERT_TRUE(read_spelling(spell_bytes(all), back));
    EXPECT_EQ(back, all);
    EXPECT_FALSE(read_spelling("a b", back));
}

TEST(Utf8, NormalisesEquivalentTextsToOne) {
    EXPECT_EQ(normalize("e\u0301", Normalization::nfc), "\u00e9");
    EXPECT_EQ(normalize("\u00e9", Normalization::nfd), "e\u0301");
    EXPECT_EQ(normalize("s\u0307\u0323", Normalization::nfc), "\u1e69");  // marks are put in order first
    EXPECT_EQ(normalize("\u1100\u1161\u11a8", Normalization::nfc), "\uac01");
    EXPECT_EQ(normalize("\u212b", Normalization::nfc), "\u00c5");
    EXPECT_EQ(normalize("\ufb01", Normalization::nfc), "\ufb01");
    EXPECT_EQ(normalize("\ufb01", Normalization::nfkc), "fi");
    EXPECT_EQ(normalize("plain \u00e9", Normalization::nfc), "plain \u00e9");
}

// normalize() calls utf8proc only where NFC changes something. What it makes is what utf8proc makes of all of it.
TEST(Utf8, EveryCharacterIsComposedAsIfAllOfTheTextWere) {
    const auto whole = [](const std::string& text) {
        utf8proc_uint8_t* made = nullptr;
        utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()), &made,
                     static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
        std::string out(reinterpret_cast<const char*>(made));
        std::free(made);
        return out;
    };
    std::string block;  // characters of one block stand next to each other, too
    for (std::uint32_t code = 0x80; code < 0x110000; ++code) {
        if (code >= 0xd800 && code < 0xe000) continue;
        std::string character;
        append_utf8(code, character);
        block += character;
        block += code % 3 == 0 ? "e" : code % 3 == 1 ? "\u0301" : "\u0323\u1100";
        if (code % 5 == 0) block += "a long run of what never changes";
        if (code % 256 != 255) continue;
        ASSERT_EQ(normalize(block, Normalization::nfc), whole(block)) << "in the block that ends with U+" << std::hex << code;
        block.clear();
    }
}

TEST(Utf8, NormalisingAMillionCombiningMarksTakesNoHours) {
    std::string text = "a";
    while (text.size() < 1 << 20) text += "\u0301\u0323";  // each pair in the wrong order
    const auto began = std::chrono::steady_clock::now();
    EXPECT_EQ(normalize(text, Normalization::nfc).size() > 1000, true);
    EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(), 5);
}

}  // namespace
}  // namespace keel
