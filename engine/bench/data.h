// engine/bench/data.h: how fast text becomes tokens, tokens become batches and weights change their files, each beside what
// bounds it: the disk, and what one core can do at all.
//
// Everything lies in a hidden folder inside `folder`, whose disk is the one measured, and is gone afterwards. The texts are
// made: words by Zipf's law, of letters with spaces between, and of Chinese characters without; the tokenizer is learned
// from them. All are measured in turns (bench.h), in seconds of the clock.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "engine/bench/bench.h"

namespace keel::bench {

struct DataTime {
    std::string name;
    double bytes;            // of text, of tokens or of weights in one go
    Sample seconds;
    std::string bound;       // the name of the row that bounds it; empty for the bounds themselves
};
// The bounds come first: disk_write and disk_read (past the page cache as far as the system allows), copy (memory to memory
// on one core).
std::vector<DataTime> measure_data(const std::filesystem::path& folder, int threads, int rounds);

}  // namespace keel::bench
