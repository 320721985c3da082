#include "data/megatron_order.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "data/numpy_random.h"
#include "kernels/base/error.h"

namespace keel {
namespace {

constexpr std::int64_t extra = 1;  // a sample shares its last token with the next
constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();

// How far a source is behind its share. Rounded twice, as Megatron rounds it: fused into one operation it would break
// other ties.
double behind(double weight, std::int64_t i, std::int64_t count) {
    const volatile double due = weight * std::max(static_cast<double>(i), 1.0);
    return due - static_cast<double>(count);
}

}  // namespace

MegatronIndices megatron_indices(std::span<const std::int32_t> lengths, std::int64_t first, std::int64_t seq_len,
                                 std::int64_t samples, std::uint32_t seed, bool shuffled) {
    const auto n = static_cast<std::int64_t>(lengths.size());
    const std::int64_t total = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
    if (total < seq_len + extra)
        fail("the ", n, " sequences have ", total, " tokens, and one sample of data.seq_len ", seq_len, " needs ",
             seq_len + extra);
    MegatronIndices r;
    if (samples > (std::int64_t{1} << 40) / seq_len)
        fail_usage("an order of ", samples, " samples is too long to be kept in memory");
    r.epochs = std::max<std::int64_t>(1, (samples * seq_len + extra + total - 1) / total);
    if (samples == 0) r.epochs = 1;
    const std::int64_t count = (r.epochs * total - extra) / seq_len,
                       without_last = ((r.epochs - 1) * total - extra) / seq_len;
    if (r.epochs * n > most || count >= most || first + n > most)
        fail_usage("", r.epochs, " epochs of ", n, " sequences make ", count,
                   " samples; the order of Megatron is kept in 32 bits here,"
                   " so give fewer samples, or take keel's own order");
    if (r.epochs > 1) {
        const std::int64_t per_epoch = (total - extra) / seq_len, wanted = samples - without_last;
        r.separate_last_epoch = wanted < static_cast<std::int64_t>(0.80 * static_cast<double>(per_epoch));
    }
    NumpyRandom random(seed);
    const auto parts = [&](auto& all, std::int64_t border) {  // shuffles before and behind the border
        if (!shuffled) return;
        const auto whole = std::span(all);
        if (r.separate_last_epoch) {
            random.shuffle(whole.first(static_cast<std::size_t>(border)));
            random.shuffle(whole.subspan(static_cast<std::size_t>(border)));
        } else {
            random.shuffle(whole);
        }
    };
    for (std::int64_t e = 0; e < r.epochs; ++e)
        for (std::int64_t i = 0; i < n; ++i) r.documents.push_back(static_cast<std::int32_t>(first + i));
    parts(r.documents, (r.epochs - 1) * n);

    r.position.assign(1, 0);
    r.offset.assign(1, 0);
    std::int64_t at = 0, offset = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        for (std::int64_t left = seq_len + extra; left > 0;) {
            const std::int64_t here =
                lengths[static_cast<std::size_t>(r.documents[static_cast<std::size_t>(at)] - first)] - offset;
            left -= here;
            if (left <= 0) offset += left + here - extra;
            else ++at, offset = 0;
        }
        r.position.push_back(static_cast<std::int32_t>(at));
        r.offset.push_back(static_cast<std::int32_t>(offset));
    }
    r.shuffle.resize(static_cast<std::size_t>(count));
    std::iota(r.shuffle.begin(), r.shuffle.end(), 0u);
    parts(r.shuffle, without_last);
    return r;
}

MegatronBlend megatron_blend(std::span<const double> weights, std::int64_t draws) {
    double sum = 0;
    for (const double w : weights) sum += w;
    MegatronBlend r;
    std::vector<std::int64_t> counts(weights.size(), 0);
    for (std::int64_t i = 0; i < draws; ++i) {
        std::size_t pick = 0;
        for (std::size_t d = 1; d < weights.size(); ++d)
            if (behind(weights[d] / sum, i, counts[d]) > behind(weights[pick] / sum, i, counts[pick])) pick = d;
        r.source.push_back(static_cast<std::int32_t>(pick));
        r.index.push_back(counts[pick]++);
    }
    return r;
}

MegatronBlend megatron_blend_exhausting(std::span<const std::int64_t> sizes) {
    const std::int64_t total = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
    const auto share = [&](std::size_t d) { return static_cast<double>(sizes[d]) / static_cast<double>(total); };
    MegatronBlend r;
    std::vector<std::int64_t> counts(sizes.size(), 0);
    for (std::int64_t i = 0; i < total; ++i) {
        std::size_t pick = sizes.size();
        for (std::size_t d = 0; d < sizes.size(); ++d)
            if (counts[d] < sizes[d] &&
                (pick == sizes.size() || behind(share(d), i, counts[d]) > behind(share(pick), i, counts[pick])))
                pick = d;
        r.source.push_back(static_cast<std::int32_t>(pick));
        r.index.push_back(counts[pick]++);
    }
    return r;
}

std::int64_t megatron_request(double weight, std::int64_t draws) {
    return static_cast<std::int64_t>(std::ceil(std::ceil(static_cast<double>(draws) * weight) * 1.005));
}

MegatronSamples::MegatronSamples(SourceFiles source, std::int64_t first, std::int64_t last, std::int64_t seq_len,
                                 std::int64_t samples, std::uint32_t seed, bool shuffled)
    : source_(std::move(source)), seq_len_(seq_len) {
    std::vector<std::int32_t> lengths;
    std::int64_t number = 0;
    for (const TokenFile* file : source_.files) {
        for (std::int64_t s = 0; s < file->info().sequences; ++s, ++number) {
            if (number < first || number >= last) continue;
            const std::int64_t length = file->sequence_begin(s + 1) - file->sequence_begin(s);
            if (length > most)
                fail(file->path().string(), ": sequence ", s, " has ", length,
                     " tokens, more than Megatron's order counts");
            lengths.push_back(static_cast<std::int32_t>(length));
        }
        ends_.push_back(number);
    }
    indices_ = megatron_indices(lengths, first, seq_len, samples, seed, shuffled);
}

std::int64_t MegatronSamples::pieces(std::int64_t i, std::span<Piece> out) const {
    const auto sample = static_cast<std::size_t>(indices_.shuffle[static_cast<std::size_t>(i)]);
    const std::int64_t last = indices_.position[sample + 1];
    std::int64_t written = 0, offset = indices_.offset[sample];
    for (std::int64_t at = indices_.position[sample]; at <= last; ++at, offset = 0) {
        const std::int64_t sequence = indices_.documents[static_cast<std::size_t>(at)];
        const auto shard =
            static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), sequence) - ends_.begin());
        const std::int64_t local = sequence - (shard == 0 ? 0 : ends_[shard - 1]);
        const TokenFile& file = *source_.files[shard];
        const std::int64_t begin = file.sequence_begin(local);
        const std::int64_t end =
            at == last ? begin + indices_.offset[sample + 1] + extra : file.sequence_begin(local + 1);
        if (end > begin + offset)
            out[static_cast<std::size_t>(written++)] = {source_.first + static_cast<std::int64_t>(shard),
                                                        begin + offset, end - begin - offset};
    }
    return written;
}

}  // namespace keel
