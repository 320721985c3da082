// cli/shown_text.h: text from files as a terminal may show it: nothing in it moves the cursor or changes colours.
#pragma once

#include <string>
#include <string_view>

namespace keel {

// Control characters and bytes that are no UTF-8 become escapes as \x1b; those of `keep` stay.
std::string shown_text(std::string_view bytes, std::string_view keep = {});

}  // namespace keel
