// data/normal_form.h: Unicode's normalization forms (Unicode Standard Annex 15), by utf8proc.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace keel {

enum class Normalization : std::uint8_t { none, nfc, nfd, nfkc, nfkd };

// `text` must be valid UTF-8. Linear in the text but for the sorting of each run of combining marks, whatever the text is.
// Text that is in NFC already, as almost all is, is only looked at and copied.
std::string normalize(std::string_view text, Normalization form);

}  // namespace keel
