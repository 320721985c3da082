// data/normalizer.h: what is done to text before it is cut into pieces: the steps of a tokenizer.json's normalizer, in order.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/normal_form.h"
#include "data/regex.h"
#include "data/sentencepiece_normalizer.h"

namespace keel {

struct NormalizerStep {
    enum class Kind : std::uint8_t {
        unicode,        // NFC, NFD, NFKC, NFKD
        replace_text,   // every `pattern`, as literal text, becomes `content`
        replace_regex,  // every match of `regex` becomes `content`
        prepend,        // `content` before a text that is not empty
        strip,          // white space goes from the left, the right or both
        sentencepiece,  // everything a tokenizer.model asks for
    };
    Kind kind = Kind::unicode;
    Normalization form = Normalization::none;
    std::string pattern = {}, content = {};
    bool left = false, right = false;
    std::shared_ptr<const Regex> regex = {};
    std::shared_ptr<const SentencePieceNormalizer> sentencepiece = {};
};

// `text` must be valid UTF-8, and is afterwards.
void normalize(std::span<const NormalizerStep> steps, std::string& text, RegexScratch& scratch);

// The steps as bytes, for a tokenizer's hash.
std::string canonical(std::span<const NormalizerStep> steps);

}  // namespace keel
