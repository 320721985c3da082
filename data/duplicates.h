// data/duplicates.h: documents of a token file that are exact copies of an earlier one, by a hash of their ids.
#pragma once

#include <cstdint>
#include <vector>

#include "data/token_file.h"

namespace keel {

struct Duplicates {
    struct Pair {
        std::int64_t document, earlier;  // the first of its kind
    };
    std::int64_t documents = 0, tokens = 0;  // of the copies
    std::vector<Pair> first;                 // a few of them, in the order of the file
};

// Reads every token once. 16 bytes per document. Two documents of one XXH3-64 hash count as equal: among ten million
// different ones that happens with a probability of three in a million.
Duplicates find_duplicates(const TokenFile& file, std::size_t keep = 5);

}  // namespace keel
