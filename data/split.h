// data/split.h: the general form of cutting text into pieces: the pre-tokenizers of a tokenizer.json, one after another,
// each applied to every piece of the one before. The common forms have a faster way (data/pretokenize.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/pretokenize.h"
#include "data/regex.h"

namespace keel {

// What happens to the matches of a pattern.
enum class SplitBehavior : std::uint8_t { isolated, removed, merged_with_previous, merged_with_next, contiguous };

struct SplitStep {
    enum class Kind : std::uint8_t {
        scanner,       // one of the three known patterns, by hand
        regex,
        text,          // literal, also where it looks like a pattern
        digits,        // each number character, or with contiguous each run
        punctuation,
        whitespace,    // words and runs of other characters; white space is dropped
        prefix_space,  // a space before a piece that begins with none
        metaspace,     // spaces become `text`, which is put in front too
        spell,         // bytes in the byte alphabet of data/bpe.h
    };
    enum class Prepend : std::uint8_t { always, first, never };

    Kind kind = Kind::scanner;
    Pattern pattern = Pattern::gpt2;
    SplitBehavior behavior = SplitBehavior::isolated;
    bool invert = false;                 // what is no match counts as one
    Prepend prepend = Prepend::always;   // metaspace: before every text, or only at the beginning of all
    bool cut = true;                     // metaspace: cut before every marker
    std::string text = {};
    std::shared_ptr<const Regex> regex = {};
};

// Working memory of one thread.
class Splitter {
public:
    using Body = std::function<void(std::string_view piece)>;

    // Calls body(piece) for each piece of `text`, which must be valid UTF-8; `first` tells that everything begins here.
    void run(std::span<const SplitStep> steps, std::string_view text, bool first, const Body& body);

    RegexScratch& regex() { return regex_; }

private:
    void apply(std::span<const SplitStep> steps, std::string_view text, bool first, std::size_t depth, const Body& body);

    RegexScratch regex_;
    std::vector<std::string> rewritten_;  // by depth: a step may change its text
};

std::string canonical(std::span<const SplitStep> steps);

}  // namespace keel
