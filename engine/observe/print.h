// engine/observe/print.h: printf into a string, for tables and pictures.
#pragma once

#include <cstdio>
#include <string>

namespace keel {

// At most 1023 characters; what a table or a picture says in one line is shorter.
std::string print(const char* format, auto... values) {
    char text[1024];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
#pragma GCC diagnostic ignored "-Wformat-security"
    std::snprintf(text, sizeof text, format, values...);
#pragma GCC diagnostic pop
    return text;
}

}  // namespace keel
