// data/dataset.h: token files cut into samples, split, blended and ordered. Sample n is a pure function of n.
//
// A source is one name in data.train: a file, or a pattern, folder or @list of several (data/inputs.h) that are one.
// Without weights all sources are one, and an epoch visits every sample of every file once. With weights each source
// has epochs of its own, and data/order.h keeps the counts within one of weight * n. Checked when made: every file, one
// tokenizer.
//
// Samples are cut one after the other (data/samples.h), or of whole documents (data/pack.h). A split gives the first
// samples of each file to train, the next to validation, the last to test; of documents where those are packed. In the
// order of Megatron (data/megatron_order.h) all of this is as Megatron does it, for a stated number of samples.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/megatron_order.h"
#include "data/order.h"
#include "data/samples.h"
#include "data/token_file.h"

namespace keel {

enum class Part : std::uint8_t { train, valid, test };

struct DatasetSpec {
    std::vector<std::string> paths;                   // sources
    std::vector<double> weights;                      // one per source, or none
    std::vector<double> split = {1, 0, 0};            // shares of train, validation, test; brought to sum 1
    Part part = Part::train;
    std::int64_t seq_len = 0;
    bool shuffle = true;
    std::uint64_t seed = 0;
    TokenDeclared declared = {};                      // what files of other programs do not say
    bool pack = false;                                // whole documents, by best fit
    bool megatron_order = false;
    std::int64_t order_samples = 0;                   // for which Megatron's order is made
};

// The weight that `word` is, if it is a number and not the name of a file.
std::optional<double> blend_weight(std::string_view word);
// Reads `0.7 books.tok 0.3 code.tok` or `books.tok code.tok` into paths and weights. Weights for some only: refused.
void parse_sources(const std::vector<std::string>& words, DatasetSpec& spec);

class Dataset {
public:
    explicit Dataset(const DatasetSpec& spec);  // a part without any sample is an error

    // Writes the pieces of any sample >= 0, in order, seq_len + 1 tokens at most; returns how many. No allocation.
    std::int64_t pieces(std::int64_t sample, std::span<Piece> out) const;
    std::int64_t max_pieces() const { return max_pieces_; }

    std::int64_t samples_per_epoch() const { return total_; }  // of all sources together
    std::int64_t seq_len() const { return spec_.seq_len; }
    std::int64_t files() const { return static_cast<std::int64_t>(files_.size()); }
    const TokenFile& file(std::int64_t i) const { return *files_[static_cast<std::size_t>(i)]; }

    std::int64_t sources() const { return static_cast<std::int64_t>(sources_.size()); }
    std::int64_t samples(std::int64_t source) const {
        return sources_[static_cast<std::size_t>(source)].samples->count();
    }
    double weight(std::int64_t source) const;     // share of the samples drawn from it
    double padding() const;                       // share of the places of an epoch that hold no token

    // What `samples` samples from 0 on take of a source.
    struct Use {
        std::string name;
        std::int64_t samples;
        double epochs;
    };
    Use use(std::int64_t source, std::int64_t samples) const;

    std::int64_t vocab_size() const { return file(0).info().vocab_size; }
    std::uint64_t tokenizer_hash() const;  // 0 if no file says

    // Throws, naming both, unless the files were made with this tokenizer, or do not say with which.
    void check_tokenizer(std::uint64_t hash, std::string_view tokenizer_name) const;

private:
    struct Source {
        SourceFiles files;
        std::unique_ptr<Samples> samples;
    };
    void open_files(const std::string& word, Source& source);
    void blend_as_megatron();
    std::unique_ptr<Samples> cut(const Source& source, double weight) const;

    DatasetSpec spec_;
    std::vector<std::unique_ptr<TokenFile>> files_;
    std::vector<Source> sources_;
    std::vector<std::int64_t> ends_;  // running sums of samples
    std::optional<Blend> blend_;
    std::optional<MegatronBlend> megatron_blend_;
    std::int64_t total_ = 0, max_pieces_ = 1;
};

}  // namespace keel
