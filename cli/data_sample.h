// cli/data_sample.h: one sample as the model sees it, parted into runs of tokens that are alike; shown by cli/data.cpp
// as text and by cli/data_html.cpp as a page.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/loader.h"
#include "data/tokenizer.h"

namespace keel {

struct ShownToken {
    std::int32_t id, label, position;  // label: -1 where nothing is predicted
    std::int64_t sees_from;            // first place of the row that it attends to
};

// Consecutive places of one document of which all, or none, are predicted by the place before.
struct ShownRun {
    std::int64_t begin, end;
    int document;      // of the row, from 0
    bool predicted;
    std::string text;  // of the tokens; ids without a tokenizer
};

struct ShownSample {
    std::int64_t number;
    std::vector<ShownToken> tokens;    // places that hold one
    std::int64_t places;               // seq_len; the rest is padding
    std::vector<ShownRun> runs;
    std::vector<std::string> origins;  // of each document: "book.tok, tokens 12…90 (document 3)"
    std::int64_t predicted;
};

ShownSample show_sample(const Dataset& data, Loader& loader, std::int64_t number,
                        const std::optional<Tokenizer>& tokenizer);

// A self-contained page: the rows of a batch as bars, then each with its text; hovering tells the numbers of a token.
std::string samples_html(const std::vector<ShownSample>& samples, const std::string& title,
                         const std::optional<Tokenizer>& tokenizer);

}  // namespace keel
