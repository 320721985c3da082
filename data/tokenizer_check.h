// data/tokenizer_check.h: does a tokenizer do what it should? Every id is turned into text and back.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace keel {

struct TokenizerCheck {
    std::int64_t ids = 0;            // that exist
    std::int64_t holes = 0;          // ids below the largest that belong to nothing
    std::int64_t special = 0;        // not encoded: text that spells one out need not become it
    std::int64_t round_trips = 0;    // the text of the id becomes this one id again
    std::int64_t several = 0;        // it becomes other ids with the same text: nothing makes this id
    std::int64_t part_of_character = 0;  // bytes that are no text on their own
    // Ids whose text comes back as another text.
    struct Lost {
        std::int32_t id;
        std::string text, back;
    };
    std::vector<Lost> lost;          // the first of them
    std::int64_t lost_count = 0;
    std::vector<std::int32_t> unreachable;  // the first of `several`
};

// Looks at the whole vocabulary; keeps at most `keep` examples of each kind.
TokenizerCheck check_tokenizer(const Tokenizer& tokenizer, std::size_t keep = 5);

// How text is cut into pieces, in words: a pattern's name, or the steps.
std::string cutting_in_words(const Tokenizer& tokenizer);

}  // namespace keel
