#include "data/samples.h"

#include <algorithm>

namespace keel {

StridedSamples::StridedSamples(SourceFiles source, std::vector<Range> ranges, std::int64_t seq_len)
    : source_(std::move(source)), ranges_(std::move(ranges)), seq_len_(seq_len) {
    std::int64_t sum = 0;
    for (const Range& range : ranges_) ends_.push_back(sum += std::max<std::int64_t>(range.last - range.first, 0));
}

std::int64_t StridedSamples::pieces(std::int64_t i, std::span<Piece> out) const {
    const auto file = static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), i) - ends_.begin());
    const std::int64_t local = i - (file == 0 ? 0 : ends_[file - 1]) + ranges_[file].first;
    out[0] = {source_.first + static_cast<std::int64_t>(file), local * seq_len_, seq_len_ + 1};
    return 1;
}

}  // namespace keel
