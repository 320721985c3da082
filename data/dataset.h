// data/dataset.h: token files cut into samples, split, blended and ordered. Sample n is a pure function of n.
//
// A sample is seq_len + 1 consecutive tokens of one file, samples of a file start seq_len tokens apart, and the last few
// tokens that fill no sample are left out. Each file's samples are split contiguously: train, then validation, then test.
// Without weights the files are one: an epoch visits every sample of every file once. With weights each file has epochs of
// its own, and data/order.h keeps the counts within one of weight * n. Checked when made: every file, one tokenizer.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/order.h"
#include "data/token_file.h"

namespace keel {

enum class Part : std::uint8_t { train, valid, test };

struct DatasetSpec {
    std::vector<std::string> paths;                   // .tok files
    std::vector<double> weights;                      // one per path, or none
    std::vector<double> split = {1, 0, 0};            // shares of train, validation, test; brought to sum 1
    Part part = Part::train;
    std::int64_t seq_len = 0;
    bool shuffle = true;
    std::uint64_t seed = 0;
};

// The weight that `word` is, if it is a number and not the name of a file.
std::optional<double> blend_weight(std::string_view word);
// Reads `0.7 books.tok 0.3 code.tok` or `books.tok code.tok` into paths and weights. Weights for some only: refused.
void parse_sources(const std::vector<std::string>& words, DatasetSpec& spec);

class Dataset {
public:
    explicit Dataset(const DatasetSpec& spec);  // a part without any sample is an error

    struct Place {
        std::int64_t file;
        std::int64_t token;  // first of seq_len + 1
    };
    Place place(std::int64_t sample) const;  // any sample >= 0; allocates nothing

    std::int64_t samples_per_epoch() const { return total_; }  // of all files together
    std::int64_t seq_len() const { return spec_.seq_len; }
    std::int64_t files() const { return static_cast<std::int64_t>(sources_.size()); }
    const TokenFile& file(std::int64_t i) const { return sources_[static_cast<std::size_t>(i)].file; }
    std::int64_t samples(std::int64_t i) const { return sources_[static_cast<std::size_t>(i)].count; }
    double weight(std::int64_t i) const;  // share of the samples drawn from file i

    std::int64_t vocab_size() const { return file(0).info().vocab_size; }
    std::uint64_t tokenizer_hash() const { return file(0).info().tokenizer_hash; }
    double bytes_per_token() const;  // of text, weighted as sampled; 0 if unknown

    // Throws, naming both, unless the files were made with this tokenizer.
    void check_tokenizer(std::uint64_t hash, std::string_view tokenizer_name) const;

private:
    struct Source {
        TokenFile file;
        std::int64_t first;  // sample of the file where this part begins
        std::int64_t count;
    };
    DatasetSpec spec_;
    std::vector<Source> sources_;
    std::vector<std::int64_t> ends_;  // running sums of counts
    std::optional<Blend> blend_;
    std::int64_t total_ = 0;
};

}  // namespace keel
