#include "cli/shown_text.h"

#include <cstdio>

#include "data/utf8.h"

namespace keel {

std::string shown_text(std::string_view bytes, std::string_view keep) {
    std::string out;
    for (std::size_t at = 0; at < bytes.size();) {
        const auto b = static_cast<unsigned char>(bytes[at]);
        const std::size_t size = b < 0xc0 ? 1 : b < 0xe0 ? 2 : b < 0xf0 ? 3 : 4;
        const std::string_view c = bytes.substr(at, size);
        const bool valid = utf8_valid_prefix(c) == size;
        const std::uint32_t code = valid ? utf8_at(c, 0).code : 0;
        if (valid && ((code >= 0x20 && code < 0x7f) || code >= 0xa0 || keep.find(bytes[at]) != std::string_view::npos)) {
            out += c;
            at += size;
            continue;
        }
        char escape[8];
        std::snprintf(escape, sizeof escape, "\\x%02x", b);
        out += escape;
        ++at;
    }
    return out;
}

}  // namespace keel
