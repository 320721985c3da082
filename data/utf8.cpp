#include "data/utf8.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace keel {
namespace {

constexpr CharClass o = CharClass::other, l = CharClass::letter, n = CharClass::number, s = CharClass::space;

// What a lead byte promises: the size of its character and the range of its second byte. Size 0 is no lead byte.
struct Lead {
    unsigned size, second_min, second_max;
};
Lead lead(unsigned char b) {
    if (b < 0x80) return {1, 0, 0};
    if (b < 0xc2) return {0, 0, 0};
    if (b < 0xe0) return {2, 0x80, 0xbf};
    if (b == 0xe0) return {3, 0xa0, 0xbf};
    if (b == 0xed) return {3, 0x80, 0x9f};
    if (b < 0xf0) return {3, 0x80, 0xbf};
    if (b == 0xf0) return {4, 0x90, 0xbf};
    if (b < 0xf4) return {4, 0x80, 0xbf};
    if (b == 0xf4) return {4, 0x80, 0x8f};
    return {0, 0, 0};
}

// Bytes of a character at the start of `text` that are as they should be; `want` is how many it needs.
std::size_t good_bytes(std::string_view text, std::size_t& want) {
    const Lead first = lead(static_cast<unsigned char>(text[0]));
    want = first.size;
    if (want <= 1) return want;
    std::size_t good = 1;
    for (; good < want && good < text.size(); ++good) {
        const auto b = static_cast<unsigned char>(text[good]);
        const unsigned min = good == 1 ? first.second_min : 0x80u, max = good == 1 ? first.second_max : 0xbfu;
        if (b < min || b > max) break;
    }
    return good;
}

CharClass class_by_category(std::uint32_t code) {
    switch (code) {  // the property White_Space, which is not the category Z: U+180E has neither, U+0085 only the property
        case 0x85: case 0xa0: case 0x1680: case 0x2028: case 0x2029: case 0x202f: case 0x205f: case 0x3000:
            return CharClass::space;
        default:
            if (code >= 0x2000 && code <= 0x200a) return CharClass::space;
    }
    switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
        case UTF8PROC_CATEGORY_LU: case UTF8PROC_CATEGORY_LL: case UTF8PROC_CATEGORY_LT: case UTF8PROC_CATEGORY_LM:
        case UTF8PROC_CATEGORY_LO:
            return CharClass::letter;
        case UTF8PROC_CATEGORY_ND: case UTF8PROC_CATEGORY_NL: case UTF8PROC_CATEGORY_NO:
            return CharClass::number;
        default:
            return CharClass::other;
    }
}

// The classes of the characters below U+10000, four to a byte: 16 KiB, of which Chinese text touches 5.
using PackedClasses = std::array<std::uint8_t, 0x4000>;
PackedClasses pack_classes() {
    PackedClasses packed{};
    for (std::uint32_t code = 128; code < 0x10000; ++code)
        packed[code / 4] = static_cast<std::uint8_t>(packed[code / 4] | static_cast<unsigned>(class_by_category(code)) << (code % 4 * 2));
    return packed;
}

}  // namespace

CharClass char_class_beyond_ascii(std::uint32_t code) {
    static const PackedClasses packed = pack_classes();
    return code < 0x10000 ? static_cast<CharClass>(packed[code / 4] >> (code % 4 * 2) & 3) : class_by_category(code);
}

const CharClass ascii_classes[128] = {
    o, o, o, o, o, o, o, o, o, s, s, s, s, s, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o,  //
    s, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, n, n, n, n, n, n, n, n, n, n, o, o, o, o, o, o,  //
    o, l, l, l, l, l, l, l, l, l, l, l, l, l, l, l, l, l, l, l, l, l, l, l, l, l, l, o, o, o, o, o,  //
    o, l, l, l, l, l, l, l, l, l, l, l, l, l, l, l, l, l, l, l, l, l, l, l, l, l, l, o, o, o, o, o,  //
};

bool is_word_char(std::uint32_t code) {
    switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
        case UTF8PROC_CATEGORY_LU: case UTF8PROC_CATEGORY_LL: case UTF8PROC_CATEGORY_LT: case UTF8PROC_CATEGORY_LM:
        case UTF8PROC_CATEGORY_LO: case UTF8PROC_CATEGORY_MN: case UTF8PROC_CATEGORY_MC: case UTF8PROC_CATEGORY_ME:
        case UTF8PROC_CATEGORY_ND: case UTF8PROC_CATEGORY_NL: case UTF8PROC_CATEGORY_PC:
            return true;
        default:  // joiners, and the circled and squared letters, which are symbols that count as alphabetic
            return code == 0x200c || code == 0x200d || (code >= 0x24b6 && code <= 0x24e9) ||
                   (code >= 0x1f130 && code <= 0x1f149) || (code >= 0x1f150 && code <= 0x1f169) ||
                   (code >= 0x1f170 && code <= 0x1f189);
    }
}

std::size_t utf8_valid_prefix(std::string_view text) {
    std::size_t at = 0;
    while (at < text.size()) {
        std::uint64_t eight;
        if (text.size() - at >= 8 && (std::memcpy(&eight, text.data() + at, 8), (eight & 0x8080808080808080u) == 0)) {
            at += 8;
            continue;
        }
        std::size_t want;
        const std::size_t good = good_bytes(text.substr(at), want);
        if (want == 0 || good < want) return at;
        at += want;
    }
    return at;
}

std::size_t utf8_bad_length(std::string_view text, bool& incomplete) {
    std::size_t want;
    const std::size_t good = good_bytes(text, want);
    incomplete = want != 0 && good == text.size() && good < want;
    return std::max<std::size_t>(good, 1);
}

std::int64_t append_repaired(std::string_view text, std::string& out, std::size_t& used) {
    std::int64_t replaced = 0;
    const std::size_t whole = text.size();
    while (true) {
        const std::size_t valid = utf8_valid_prefix(text);
        out.append(text.substr(0, valid));
        text.remove_prefix(valid);
        if (text.empty()) break;
        bool incomplete;
        const std::size_t bad = utf8_bad_length(text, incomplete);
        if (incomplete) break;
        out.append("\xef\xbf\xbd");
        ++replaced;
        text.remove_prefix(bad);
    }
    used = whole - text.size();
    return replaced;
}

std::int64_t append_repaired(std::string_view text, std::string& out) {
    std::size_t used;
    std::int64_t replaced = append_repaired(text, out, used);
    if (used < text.size()) {  // a character cut off by the end: one bad sequence
        out.append("\xef\xbf\xbd");
        ++replaced;
    }
    return replaced;
}

void append_utf8(std::uint32_t code, std::string& out) {
    const auto put = [&](std::uint32_t b) { out += static_cast<char>(static_cast<unsigned char>(b)); };
    if (code < 0x80) {
        put(code);
    } else if (code < 0x800) {
        put(0xc0 | code >> 6), put(0x80 | (code & 0x3f));
    } else if (code < 0x10000) {
        put(0xe0 | code >> 12), put(0x80 | (code >> 6 & 0x3f)), put(0x80 | (code & 0x3f));
    } else {
        put(0xf0 | code >> 18), put(0x80 | (code >> 12 & 0x3f)), put(0x80 | (code >> 6 & 0x3f)), put(0x80 | (code & 0x3f));
    }
}

const char* unicode_version() { return utf8proc_unicode_version(); }

}  // namespace keel
