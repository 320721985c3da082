#include "data/piece_counts.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace keel {
namespace {

// No merge longer than this is worth learning, and each step of training stays short on any text.
constexpr std::size_t longest_piece = 256;

}  // namespace

void CountTable::grow() {
    std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(std::max<std::size_t>(64, slots_.size() * 2)));
    for (const Slot& s : old) {
        if (s.count == 0) continue;
        std::size_t at = s.hash & (slots_.size() - 1);
        while (slots_[at].count != 0) at = (at + 1) & (slots_.size() - 1);
        slots_[at] = s;
    }
}

void CountTable::add(std::string_view text, std::uint64_t hash, std::int64_t count) {
    if (static_cast<std::size_t>(size_) * 3 >= slots_.size() * 2) grow();
    for (std::size_t at = hash & (slots_.size() - 1);; at = (at + 1) & (slots_.size() - 1)) {
        Slot& s = slots_[at];
        if (s.count == 0) {
            s = {hash, static_cast<std::uint64_t>(texts_.size()) << length_bits | text.size(), count};
            texts_ += text;
            ++size_;
            return;
        }
        if (s.hash == hash && (s.place & longest) == text.size() &&
            std::memcmp(texts_.data() + (s.place >> length_bits), text.data(), text.size()) == 0) {
            s.count += count;
            return;
        }
    }
}

void CountTable::clear() {
    std::fill(slots_.begin(), slots_.end(), Slot{});
    texts_.clear();
    size_ = 0;
}

void CountTable::forget_up_to(std::int64_t count) {
    CountTable kept;
    for_each([&](std::string_view text, std::uint64_t hash, std::int64_t n) {
        if (n > count) kept.add(text, hash, n);
    });
    *this = std::move(kept);
}

PieceCounts::PieceCounts(const Pretokenizer& how, std::int64_t most) : how_(how), most_(most) {}

std::int64_t PieceCounts::distinct() const {
    std::int64_t sum = 0;
    for (const CountTable& shard : shards_) sum += shard.size();
    return sum;
}

void PieceCounts::count(std::string_view text, Shards& into) const {
    for_each_piece(how_, text, [&](std::string_view piece) {
        for (std::size_t at = 0; at < piece.size(); at += longest_piece) {
            const std::string_view part = piece.substr(at, longest_piece);
            const std::uint64_t hash = XXH3_64bits(part.data(), part.size());
            into[static_cast<std::size_t>(hash >> 58) % shards].add(part, hash, 1);  // tables use the low bits
        }
    });
}

void PieceCounts::add(std::string_view text) {
    count(text, shards_);
    keep_bounded();
}

void PieceCounts::add(std::span<const std::string> texts, Stream& stream) {
    local_.resize(static_cast<std::size_t>(stream.threads()));
    std::vector<std::size_t> tiles{0};  // first text of each; short texts share one
    for (std::size_t i = 0, bytes = 0; i < texts.size(); ++i)
        if (bytes += texts[i].size(); bytes >= 1 << 16 || i + 1 == texts.size()) tiles.push_back(i + 1), bytes = 0;
    stream.parallel(static_cast<std::int64_t>(tiles.size()) - 1, [&](std::int64_t tile, int thread) {
        for (std::size_t i = tiles[static_cast<std::size_t>(tile)]; i < tiles[static_cast<std::size_t>(tile) + 1]; ++i)
            count(texts[i], local_[static_cast<std::size_t>(thread)]);
    });
    stream.parallel(static_cast<std::int64_t>(shards), [&](std::int64_t shard, int) {
        const auto s = static_cast<std::size_t>(shard);
        for (Shards& local : local_) {
            local[s].for_each([&](std::string_view text, std::uint64_t hash, std::int64_t n) { shards_[s].add(text, hash, n); });
            local[s].clear();
        }
    });
    keep_bounded();
}

void PieceCounts::keep_bounded() {
    std::int64_t left = distinct();
    if (left <= most_) return;
    for (std::int64_t rare = 1; left > most_ / 2; rare *= 2) {
        for (CountTable& shard : shards_) shard.forget_up_to(rare);
        const std::int64_t now = distinct();
        forgotten_ += left - now;
        left = now;
    }
}

}  // namespace keel
