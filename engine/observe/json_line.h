// engine/observe/json_line.h: one JSON object on one line, built in a fixed buffer. Nothing allocates.
// JSON has no NaN: a number that is not finite is written as the string "NaN", "Inf" or "-Inf".
#pragma once

#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string_view>

namespace keel {

class JsonLine {
public:
    explicit JsonLine(std::string_view event) { raw("{\"event\":"), quoted(event); }

    JsonLine& number(std::string_view key, double value) {
        name(key);
        if (!std::isfinite(value)) return quoted(std::isnan(value) ? "NaN" : value > 0 ? "Inf" : "-Inf"), *this;
        char digits[40];
        return raw({digits, static_cast<std::size_t>(std::to_chars(digits, digits + sizeof digits, value).ptr - digits)}), *this;
    }
    JsonLine& count(std::string_view key, std::int64_t value) {
        name(key);
        char digits[24];
        return raw({digits, static_cast<std::size_t>(std::to_chars(digits, digits + sizeof digits, value).ptr - digits)}), *this;
    }
    JsonLine& boolean(std::string_view key, bool value) { return name(key), raw(value ? "true" : "false"), *this; }
    // Longer strings than fit are cut, between characters.
    JsonLine& text(std::string_view key, std::string_view value) { return name(key), quoted(value), *this; }

    // The line, with its '\n', until the next call on this object.
    const char* finish() {
        std::memcpy(buffer_ + size_, "}\n", 3);
        return buffer_;
    }

private:
    static constexpr std::size_t capacity = 2048, reserve = 64;  // `reserve` closes whatever is open

    void name(std::string_view key) {
        raw(",");
        quoted(key);
        raw(":");
    }
    void raw(std::string_view piece) {
        if (size_ + piece.size() + reserve > capacity) return;
        std::memcpy(buffer_ + size_, piece.data(), piece.size());
        size_ += piece.size();
    }
    void quoted(std::string_view value) {
        raw("\"");
        for (std::size_t i = 0; i < value.size(); ++i) {
            const auto byte = static_cast<unsigned char>(value[i]);
            if ((byte & 0xc0) != 0x80 && size_ + 4 * reserve > capacity) break;  // room for the rest of a character
            if (byte == '"' || byte == '\\') {
                const char escape[2] = {'\\', value[i]};
                raw({escape, 2});
            } else if (byte < 0x20) {
                char escape[8];
                raw({escape, static_cast<std::size_t>(std::snprintf(escape, sizeof escape, "\\u%04x", byte))});
            } else {
                raw(value.substr(i, 1));
            }
        }
        raw("\"");
    }

    char buffer_[capacity];
    std::size_t size_ = 0;
};

}  // namespace keel
