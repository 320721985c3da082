#include "data/dataset.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iomanip>

#include "data/inputs.h"
#include "data/pack.h"
#include "kernels/base/error.h"
#include "kernels/base/hex.h"

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

// What of `count` samples, documents or sequences belongs to the part. Borders are rounded half to even, so they meet.
StridedSamples::Range bounds(const DatasetSpec& spec, std::int64_t count) {
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
    if (spec.paths.empty())
        fail_usage("no token files; name them with data.", spec.part == Part::train ? "train" : "valid");
    if (!spec.weights.empty() && spec.weights.size() != spec.paths.size())
        fail_usage("data.train names ", spec.paths.size(), " token files but ", spec.weights.size(), " weights");
    if (spec.pack && spec.megatron_order)
        fail_usage("data.packing best_fit and data.order megatron exclude each other");
    double sum = 0;
    for (const double weight : spec.weights) sum += weight;
    for (std::size_t i = 0; i < spec.paths.size(); ++i) {
        Source source;
        open_files(spec.paths[i], source);
        source.samples = cut(source, spec.weights.empty() ? 1 : spec.weights[i] / sum);
        const std::int64_t count = source.samples->count();
        if (count == 0 && (!spec.weights.empty() || spec.paths.size() == 1)) {
            std::int64_t tokens = 0;
            for (const TokenFile* file : source.files.files) tokens += file->tokens();
            fail("the ", part, " part of ", spec.paths[i], " is empty: ", tokens, " tokens make ",
                 tokens > 0 ? (tokens - 1) / spec.seq_len : 0, " samples of ", spec.seq_len,
                 " tokens, and the split leaves none of them to it; use a longer text, a smaller"
                 " data.seq_len or another data.split");
        }
        total_ += count;
        ends_.push_back(total_);
        max_pieces_ = std::max(max_pieces_, source.samples->max_pieces());
        sources_.push_back(std::move(source));
    }
    if (total_ == 0)
        fail("the ", part, " part of all ", spec.paths.size(), " token files is empty; use longer texts, a smaller"
             " data.seq_len or another data.split");
    if (spec.megatron_order && spec.shuffle) blend_as_megatron();
    else if (!spec.weights.empty()) blend_.emplace(spec.weights);
}

void Dataset::blend_as_megatron() {
    if (sources() == 1) return;
    if (spec_.weights.empty()) {  // an epoch of each
        std::vector<std::int64_t> sizes;
        for (std::int64_t i = 0; i < sources(); ++i) sizes.push_back(samples(i));
        megatron_blend_ = megatron_blend_exhausting(sizes);
        if (total_ < spec_.order_samples)
            fail("without weights Megatron's order has one epoch of each source, ", total_,
                 " samples in all, which is less than data.order_samples ", spec_.order_samples,
                 "; give weights, or one pattern or @list for all files");
        return;
    }
    megatron_blend_ = megatron_blend(spec_.weights, spec_.order_samples);
    for (std::size_t n = 0; n < megatron_blend_->source.size(); ++n)
        if (const std::int64_t source = megatron_blend_->source[n]; megatron_blend_->index[n] >= samples(source))
            fail("Megatron's order of ", spec_.order_samples, " samples draws sample ", megatron_blend_->index[n],
                 " of ", spec_.paths[static_cast<std::size_t>(source)], ", of which it asks for ", samples(source),
                 " only; Megatron stops here too. Raise that weight a little, or take keel's own order");
}

void Dataset::open_files(const std::string& word, Source& source) {
    source.files.first = files();
    // Of a Megatron pair the name without an ending is no file.
    const bool one = std::filesystem::exists(word + ".idx") && !std::filesystem::exists(word);
    const auto paths = one ? std::vector<std::filesystem::path>{word} : expand_inputs({word}, {".tok", ".bin"});
    TokenDeclared declared = spec_.declared;
    for (const auto& path : paths) {
        const TokenFile& file = *files_.emplace_back(std::make_unique<TokenFile>(path, declared));
        // The first file that has no table of its documents, and so was looked at, tells for those behind it.
        const TokenFormat format = file.info().format;
        const bool looked_at = format != TokenFormat::keel && format != TokenFormat::megatron && file.info().tokens > 0;
        if (looked_at && !declared.eos_begins) declared.eos_begins = file.info().begins_with_bos;
        for (const auto& other : std::span(files_).first(files_.size() - 1))
            if (std::filesystem::equivalent(other->path(), file.path()))
                fail_usage(file.path().string(), " is named twice (", word,
                           "), and its samples would be drawn twice; name it once, and give it a weight");
        const TokenFileInfo &a = this->file(0).info(), &b = file.info();
        if (b.vocab_size == 0)
            fail_usage(path.string(), ", a token file of ", name(b.format),
                       ", does not say of what vocabulary it is; name its tokenizer with"
                       " --data.tokenizer, or give --data.token_vocab");
        const bool differ = b.tokenizer_hash != 0 && b.tokenizer_hash != tokenizer_hash();
        if (a.vocab_size != b.vocab_size || differ)
            fail("the token files of a run must come from one tokenizer: ", this->file(0).path().string(),
                 " has tokenizer ", hex(tokenizer_hash()), " with vocabulary ", a.vocab_size, ", ",
                 file.path().string(), " has ", hex(b.tokenizer_hash), " with ", b.vocab_size);
        if (spec_.shuffle) file.expect_random();
        source.files.files.push_back(&file);
    }
}

std::unique_ptr<Samples> Dataset::cut(const Source& source, double weight) const {
    std::int64_t documents = 0, sequences = 0;
    for (const TokenFile* file : source.files.files)
        documents += file->documents(), sequences += file->info().sequences;
    if (spec_.megatron_order) {
        const auto [first, last] = bounds(spec_, sequences);
        std::int64_t samples = 0;  // one epoch
        if (spec_.shuffle && !spec_.weights.empty()) samples = megatron_request(weight, spec_.order_samples);
        else if (spec_.shuffle && spec_.paths.size() == 1) samples = spec_.order_samples;
        if (first >= last)
            return std::make_unique<StridedSamples>(source.files, std::vector<StridedSamples::Range>{}, spec_.seq_len);
        return std::make_unique<MegatronSamples>(source.files, first, last, spec_.seq_len, samples,
                                                 static_cast<std::uint32_t>(spec_.seed), spec_.shuffle);
    }
    if (spec_.pack) {
        if (spec_.seq_len >= 1 << 24)
            fail_usage("data.packing best_fit takes data.seq_len up to 16777215, but it is ", spec_.seq_len);
        const auto [first, last] = bounds(spec_, documents);
        return std::make_unique<PackedSamples>(source.files, first, last, spec_.seq_len);
    }
    std::vector<StridedSamples::Range> ranges;
    for (const TokenFile* file : source.files.files)
        ranges.push_back(bounds(spec_, sample_count(*file, spec_.seq_len)));
    return std::make_unique<StridedSamples>(source.files, std::move(ranges), spec_.seq_len);
}

std::int64_t Dataset::pieces(std::int64_t sample, std::span<Piece> out) const {
    if (sample < 0) fail("sample ", sample, " was asked for; samples count from 0");
    // Stream 0 permutes all sources as one; with weights each source is permuted on its own.
    const auto ordered = [&](std::int64_t n, std::int64_t size, std::uint64_t stream) {
        const std::int64_t epoch = n / size, i = n % size;
        return spec_.shuffle ? Permutation(size, spec_.seed, stream, epoch)(i) : i;
    };
    std::size_t source = 0;
    std::int64_t index;
    if (spec_.megatron_order && spec_.shuffle) {
        const std::int64_t size = megatron_blend_ ? static_cast<std::int64_t>(megatron_blend_->source.size()) : total_;
        if (sample >= size)
            fail("Megatron's order was made for ", spec_.order_samples,
                 " samples (data.order_samples) and ends at sample ", size,
                 "; a longer order would be another from its beginning on");
        const auto n = static_cast<std::size_t>(sample);
        source = megatron_blend_ ? static_cast<std::size_t>(megatron_blend_->source[n]) : 0;
        index = megatron_blend_ ? megatron_blend_->index[n] : static_cast<std::int64_t>(n);
    } else if (blend_) {
        const Blend::Draw draw = (*blend_)(sample);
        source = static_cast<std::size_t>(draw.source);
        index = ordered(draw.index, samples(draw.source), static_cast<std::uint64_t>(draw.source) + 1);
    } else {
        index = ordered(sample, total_, 0);
        source = static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin());
        index -= ends_[source] - samples(static_cast<std::int64_t>(source));
    }
    return sources_[source].samples->pieces(index, out);
}

double Dataset::weight(std::int64_t i) const {
    if (blend_) return blend_->weight(i);
    if (spec_.weights.empty()) return static_cast<double>(samples(i)) / static_cast<double>(total_);
    double sum = 0;
    for (const double w : spec_.weights) sum += w;
    return spec_.weights[static_cast<std::size_t>(i)] / sum;
}

double Dataset::padding() const {
    std::int64_t filled = 0;
    for (const Source& source : sources_) filled += source.samples->filled();
    return 1 - static_cast<double>(filled) / (static_cast<double>(total_) * static_cast<double>(spec_.seq_len));
}

Dataset::Use Dataset::use(std::int64_t i, std::int64_t samples) const {
    Use use{.name = spec_.paths[static_cast<std::size_t>(i)], .samples = 0, .epochs = 0};
    if (blend_) {
        use.samples = blend_->count(i, samples);
    } else if (megatron_blend_) {
        const auto end = megatron_blend_->source.begin() +
                         std::min(samples, static_cast<std::int64_t>(megatron_blend_->source.size()));
        use.samples = std::count(megatron_blend_->source.begin(), end, static_cast<std::int32_t>(i));
    } else {
        use.samples = static_cast<std::int64_t>(std::llround(static_cast<double>(samples) * weight(i)));
    }
    const auto* megatron = dynamic_cast<const MegatronSamples*>(sources_[static_cast<std::size_t>(i)].samples.get());
    const double per_epoch =
        static_cast<double>(this->samples(i)) / (megatron ? static_cast<double>(megatron->indices().epochs) : 1);
    use.epochs = per_epoch > 0 ? static_cast<double>(use.samples) / per_epoch : 0;
    return use;
}

std::uint64_t Dataset::tokenizer_hash() const {
    for (const auto& file : files_)
        if (file->info().tokenizer_hash != 0) return file->info().tokenizer_hash;
    return 0;
}

void Dataset::check_tokenizer(std::uint64_t hash, std::string_view tokenizer_name) const {
    for (const auto& file : files_)
        if (const std::uint64_t theirs = file->info().tokenizer_hash; theirs != 0 && theirs != hash)
            fail("the token file ", file->path().string(), " was made with tokenizer ", hex(theirs), ", but ",
                 tokenizer_name, " is ", hex(hash),
                 "; tokenize the text again with it, or name the tokenizer it was made with");
}

}  // namespace keel
