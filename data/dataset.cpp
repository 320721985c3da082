#include "data/dataset.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iomanip>

#include "kernels/base/error.h"

namespace keel {
namespace {

constexpr const char* part_names[] = {"train", "validation", "test"};

std::array<double, 3> shares_of(const DatasetSpec& spec) {
    std::array<double, 3> shares{};
    if (spec.split.empty() || spec.split.size() > 3)
        fail_usage("data.split has ", spec.split.size(), " numbers; it takes the shares of train, validation and test");
    double sum = 0;
    for (std::size_t i = 0; i < spec.split.size(); ++i) {
        if (!(spec.split[i] >= 0) || !std::isfinite(spec.split[i]))
            fail_usage("data.split has a share of ", spec.split[i], "; shares are numbers from 0 on");
        sum += shares[i] = spec.split[i];
    }
    if (sum <= 0) fail_usage("the shares of data.split are all 0");
    for (double& s : shares) s /= sum;
    return shares;
}

// Samples [first, last) of `count` that belong to the part. Borders are rounded half to even, so they meet without gaps.
std::pair<std::int64_t, std::int64_t> bounds(const DatasetSpec& spec, std::int64_t count) {
    const auto shares = shares_of(spec);
    double before = 0;
    for (int i = 0; i < static_cast<int>(spec.part); ++i) before += shares[static_cast<std::size_t>(i)];
    const double after = before + shares[static_cast<std::size_t>(spec.part)];
    const auto at = [&](double share) {
        return std::min(count, static_cast<std::int64_t>(std::nearbyint(share * static_cast<double>(count))));
    };
    // The last part with a share ends at the end, whatever the sum of the shares was rounded to.
    return {at(before), after > 1 - 1e-12 ? count : at(after)};
}

std::int64_t sample_count(const TokenFile& file, std::int64_t seq_len) {
    return file.tokens() > 0 ? (file.tokens() - 1) / seq_len : 0;
}

std::string hex(std::uint64_t hash) { return concat(std::hex, std::setw(16), std::setfill('0'), hash); }

}  // namespace

std::optional<double> blend_weight(std::string_view word) {
    double value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    return error == std::errc() && end == word.data() + word.size() ? std::optional(value) : std::nullopt;
}

void parse_sources(const std::vector<std::string>& words, DatasetSpec& spec) {
    spec.paths.clear();
    spec.weights.clear();
    bool weight_before = false;
    for (const std::string& word : words) {
        const std::optional<double> weight = blend_weight(word);
        if (weight && weight_before)
            fail_usage("two weights in a row: ", spec.weights.back(), " ", word, "; a file must follow each");
        if (weight) spec.weights.push_back(*weight);
        else spec.paths.push_back(word);
        weight_before = weight.has_value();
    }
    if (weight_before) fail_usage("no file follows the weight ", spec.weights.back());
    if (!spec.weights.empty() && spec.weights.size() != spec.paths.size())
        fail_usage("data.train names ", spec.paths.size(), " token files but ", spec.weights.size(),
                   " weights; give one to each file or to none");
}

Dataset::Dataset(const DatasetSpec& spec) : spec_(spec) {
    const char* part = part_names[static_cast<int>(spec.part)];
    if (spec.seq_len < 1) fail_usage("data.seq_len is ", spec.seq_len, "; a sample needs at least one token");
    if (spec.paths.empty()) fail_usage("no token files; name them with data.", spec.part == Part::train ? "train" : "valid");
    if (!spec.weights.empty() && spec.weights.size() != spec.paths.size())
        fail_usage("data.train names ", spec.paths.size(), " token files but ", spec.weights.size(), " weights");
    for (const std::string& path : spec.paths) {
        TokenFile file(path);
        const std::int64_t all = sample_count(file, spec.seq_len);
        const auto [first, last] = bounds(spec, all);
        if (!sources_.empty()) {
            const TokenFileInfo &a = sources_[0].file.info(), &b = file.info();
            if (a.vocab_size != b.vocab_size || a.tokenizer_hash != b.tokenizer_hash)
                fail("the token files of a run must come from one tokenizer: ", spec.paths[0], " has tokenizer ",
                     hex(a.tokenizer_hash), " with vocabulary ", a.vocab_size, ", ", path, " has ", hex(b.tokenizer_hash),
                     " with ", b.vocab_size);
        }
        if (first >= last && (!spec.weights.empty() || spec.paths.size() == 1))
            fail("the ", part, " part of ", path, " is empty: ", file.tokens(), " tokens make ", all, " samples of ",
                 spec.seq_len, " tokens, and the split leaves none of them to it; use a longer text, a smaller data.seq_len"
                 " or another data.split");
        if (spec.shuffle) file.expect_random();
        total_ += std::max<std::int64_t>(last - first, 0);
        ends_.push_back(total_);
        sources_.push_back({std::move(file), first, std::max<std::int64_t>(last - first, 0)});
    }
    if (total_ == 0)
        fail("the ", part, " part of all ", spec.paths.size(), " token files is empty; use longer texts, a smaller"
             " data.seq_len or another data.split");
    if (!spec.weights.empty()) blend_.emplace(spec.weights);
}

Dataset::Place Dataset::place(std::int64_t sample) const {
    if (sample < 0) fail("sample ", sample, " was asked for; samples count from 0");
    // Stream 0 permutes all files as one; with weights each file is permuted on its own.
    const auto ordered = [&](std::int64_t n, std::int64_t size, std::uint64_t stream) {
        const std::int64_t epoch = n / size, i = n % size;
        return spec_.shuffle ? Permutation(size, spec_.seed, stream, epoch)(i) : i;
    };
    std::size_t source;
    std::int64_t index;
    if (blend_) {
        const Blend::Draw draw = (*blend_)(sample);
        source = static_cast<std::size_t>(draw.source);
        index = ordered(draw.index, sources_[source].count, static_cast<std::uint64_t>(draw.source) + 1);
    } else {
        index = ordered(sample, total_, 0);
        source = static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin());
        index -= ends_[source] - sources_[source].count;
    }
    return {static_cast<std::int64_t>(source), (sources_[source].first + index) * spec_.seq_len};
}

double Dataset::weight(std::int64_t i) const {
    return blend_ ? blend_->weight(i)
                  : static_cast<double>(sources_[static_cast<std::size_t>(i)].count) / static_cast<double>(total_);
}

double Dataset::bytes_per_token() const {
    double bytes = 0;
    for (std::int64_t i = 0; i < files(); ++i)
        if (const TokenFileInfo& info = file(i).info(); info.tokens > 0)
            bytes += weight(i) * static_cast<double>(info.source_bytes) / static_cast<double>(info.tokens);
    return bytes;
}

void Dataset::check_tokenizer(std::uint64_t hash, std::string_view tokenizer_name) const {
    if (hash != tokenizer_hash())
        fail("the token file ", file(0).path().string(), " was made with tokenizer ", hex(tokenizer_hash()), ", but ",
             tokenizer_name, " is ", hex(hash), "; tokenize the text again with it, or name the tokenizer it was made with");
}

}  // namespace keel
