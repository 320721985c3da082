#include "data/normal_form.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "data/utf8.h"
#include "kernels/base/error.h"

namespace keel {
namespace {

utf8proc_propval_t combining(utf8proc_int32_t code) { return utf8proc_get_property(code)->combining_class; }

std::string normalize_all(std::string_view text, Normalization form) {
    const bool compose = form == Normalization::nfc || form == Normalization::nfkc;
    const bool compatible = form == Normalization::nfkc || form == Normalization::nfkd;
    const auto options = static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE |
                                                        (compatible ? UTF8PROC_COMPAT : 0));
    std::vector<utf8proc_int32_t> codes;
    codes.reserve(text.size() + 1);
    int boundary = 0;
    for (std::size_t at = 0; at < text.size();) {
        const Utf8Char c = utf8_at(text, at);
        at += c.size;
        utf8proc_int32_t parts[32];  // the longest decomposition has 18
        const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c.code), parts, 32, options, &boundary);
        if (count < 0 || count > 32) fail("cannot normalise U+", std::hex, c.code);
        codes.insert(codes.end(), parts, parts + count);
    }
    // utf8proc sorts combining marks by exchanging neighbours, which a run of a million marks turns into days.
    for (auto begin = codes.begin(); begin != codes.end();) {
        if (*begin < 0x300 || combining(*begin) == 0) {
            ++begin;
            continue;
        }
        auto end = begin;
        while (end != codes.end() && *end >= 0x300 && combining(*end) != 0) ++end;
        std::stable_sort(begin, end, [&](auto a, auto b) { return combining(a) < combining(b); });
        begin = end;
    }
    auto size = static_cast<utf8proc_ssize_t>(codes.size());
    if (compose)
        size = utf8proc_normalize_utf32(codes.data(), size,
                                        static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
    if (size < 0) fail("cannot normalise text: ", utf8proc_errmsg(size));
    std::string out;
    out.reserve(text.size());
    for (utf8proc_ssize_t i = 0; i < size; ++i) append_utf8(static_cast<std::uint32_t>(codes[static_cast<std::size_t>(i)]), out);
    return out;
}

// Characters at which NFC begins anew, and which it keeps: no mark that is put in order, never the second of two that become
// one, and itself after it was taken apart and composed again. Text of nothing else is in NFC, and other text may be
// normalised from one of them to another.
class Inert {
public:
    Inert() : inert_(end, true) {
        std::vector<bool> second(end);
        std::vector<std::uint32_t> composed;
        for (std::uint32_t code = first; code < end; ++code) {
            utf8proc_int32_t parts[32];
            int boundary = 0;
            const auto options = static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE);
            const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code), parts, 32, options, &boundary);
            inert_[code] = count >= 1 && combining(static_cast<utf8proc_int32_t>(code)) == 0 && combining(parts[0]) == 0;
            if (count == 1 && parts[0] == static_cast<utf8proc_int32_t>(code)) continue;
            composed.push_back(code);
            for (utf8proc_ssize_t i = 1; i < count; ++i) second[static_cast<std::size_t>(parts[i])] = true;
        }
        for (const std::uint32_t code : composed) {
            std::string text;
            append_utf8(code, text);
            inert_[code] = inert_[code] && normalize_all(text, Normalization::nfc) == text;
        }
        for (std::uint32_t code = first; code < end; ++code) inert_[code] = inert_[code] && !second[code];
    }
    bool operator()(std::uint32_t code) const { return code < first || (code < end && inert_[code]); }

private:
    static constexpr std::uint32_t first = 0x300;   // nothing below changes or combines
    static constexpr std::uint32_t end = 0x30000;   // nothing from here on is ever taken apart or composed
    std::vector<bool> inert_;
};

std::string nfc(std::string_view text) {
    static const Inert inert;
    constexpr int long_run = 16;  // of inert characters: shorter ones are not worth a call of their own
    std::string out;
    out.reserve(text.size());
    std::size_t done = 0, anew = 0;  // up to where `out` is; the last inert character, which a mark may follow
    for (std::size_t at = 0; at < text.size();) {
        const Utf8Char c = utf8_at(text, at);
        if (inert(c.code)) {
            anew = at;
            at += c.size;
            continue;
        }
        out.append(text, done, anew - done);
        std::size_t end = at;  // where a long run begins
        for (int run = 0; at < text.size() && run < long_run;) {
            const Utf8Char next = utf8_at(text, at);
            at += next.size;
            run = inert(next.code) ? run + 1 : 0;
            if (run == 0) end = at;
        }
        out += normalize_all(text.substr(anew, end - anew), Normalization::nfc);
        done = anew = at = end;
    }
    return out.append(text, done, text.size() - done);
}

}  // namespace

std::string normalize(std::string_view text, Normalization form) {
    if (form == Normalization::none) return std::string(text);
    return form == Normalization::nfc ? nfc(text) : normalize_all(text, form);
}

}  // namespace keel
