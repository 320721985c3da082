// data/duplicates.h: documents that are exact copies of an earlier one, by a hash of their ids, found while they are written.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace keel {

struct Duplicates {
    struct Pair {
        std::int64_t document, earlier;  // the first of its kind
    };
    std::int64_t documents = 0, tokens = 0;  // of the copies
    std::vector<Pair> first;                 // a few of them, in the order of the file
};

// 16 bytes per document, 24 while they are compared. Two documents of one XXH3-64 hash count as equal: among ten million
// different ones that happens with a probability of three in a million.
class DuplicateFinder {
public:
    DuplicateFinder();
    ~DuplicateFinder();

    void append(std::span<const std::int32_t> ids);  // to the current document
    void end_document();                             // an empty one is none
    Duplicates found(std::size_t keep = 5) const;    // among those that have ended

private:
    struct Document {
        std::uint64_t hash;
        std::int64_t tokens;
    };
    struct State;  // of the hash of the current document
    std::unique_ptr<State> state_;
    std::int64_t tokens_ = 0;
    std::vector<Document> documents_;
};

}  // namespace keel
