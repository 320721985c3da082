#include "data/pack.h"

#include <algorithm>
#include <limits>
#include <set>

#include "kernels/base/error.h"

namespace keel {

Packing best_fit(const std::vector<std::int32_t>& lengths, std::int32_t capacity) {
    Packing r;
    r.row.resize(lengths.size());
    // Longest first; among equals the earlier first. Sorting by counting keeps that order.
    std::vector<std::int64_t> begin(static_cast<std::size_t>(capacity) + 2, 0);
    for (const std::int32_t length : lengths) ++begin[static_cast<std::size_t>(capacity - length) + 1];
    for (std::size_t i = 1; i < begin.size(); ++i) begin[i] += begin[i - 1];
    std::vector<std::int32_t> order(lengths.size());
    for (std::size_t i = 0; i < lengths.size(); ++i)
        order[static_cast<std::size_t>(begin[static_cast<std::size_t>(capacity - lengths[i])]++)] =
            static_cast<std::int32_t>(i);

    std::vector<std::vector<std::int32_t>> with_room(static_cast<std::size_t>(capacity) +
                                                     1);  // rows, by the room they have left
    std::set<std::int32_t> rooms;                                                              // that some row has
    for (const std::int32_t i : order) {
        const std::int32_t length = lengths[static_cast<std::size_t>(i)];
        std::int32_t row = r.rows, room = capacity;
        if (const auto fits = rooms.lower_bound(length); fits != rooms.end()) {
            room = *fits;
            std::vector<std::int32_t>& rows = with_room[static_cast<std::size_t>(room)];
            row = rows.back();
            rows.pop_back();
            if (rows.empty()) rooms.erase(fits);
        } else {
            ++r.rows;
        }
        r.row[static_cast<std::size_t>(i)] = row;
        if (room == length) continue;
        std::vector<std::int32_t>& rows = with_room[static_cast<std::size_t>(room - length)];
        if (rows.empty()) rooms.insert(room - length);
        rows.push_back(row);
    }
    return r;
}

PackedSamples::PackedSamples(SourceFiles source, std::int64_t first, std::int64_t last, std::int64_t seq_len) {
    const std::int64_t capacity = seq_len + 1;
    std::vector<Stored> cut;
    std::vector<std::int32_t> lengths;
    std::int64_t number = 0;
    for (std::size_t f = 0; f < source.files.size(); ++f) {
        const TokenFile& file = *source.files[f];
        for (std::int64_t d = 0; d < file.documents(); ++d, ++number) {
            if (number < first || number >= last) continue;
            const std::int64_t end = file.document_begin(d + 1);
            for (std::int64_t at = file.document_begin(d); at < end;) {
                const std::int64_t count = std::min(capacity, end - at);
                cut.push_back({at, static_cast<std::int32_t>(count),
                               static_cast<std::int32_t>(source.first + static_cast<std::int64_t>(f))});
                lengths.push_back(static_cast<std::int32_t>(count));
                at += at + count == end ? count : count - 1;
            }
        }
    }
    if (lengths.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
        fail_usage("", lengths.size(), " pieces of documents are too many to pack as one source; part it into several");
    const Packing packing = best_fit(lengths, static_cast<std::int32_t>(capacity));
    begin_.assign(static_cast<std::size_t>(packing.rows) + 1, 0);
    for (const std::int32_t row : packing.row) ++begin_[static_cast<std::size_t>(row) + 1];
    for (std::size_t row = 1; row < begin_.size(); ++row) {
        max_pieces_ = std::max(max_pieces_, begin_[row]);
        begin_[row] += begin_[row - 1];
    }
    pieces_.resize(cut.size());
    std::vector<std::int64_t> next(begin_.begin(), begin_.end() - 1), used(next.size(), 0);
    for (std::size_t i = 0; i < cut.size(); ++i) {
        const auto row = static_cast<std::size_t>(packing.row[i]);
        pieces_[static_cast<std::size_t>(next[row]++)] = cut[i];
        used[row] += cut[i].count;
    }
    for (const std::int64_t tokens : used) filled_ += std::min(tokens, seq_len);
}

std::int64_t PackedSamples::pieces(std::int64_t i, std::span<Piece> out) const {
    const std::int64_t begin = begin_[static_cast<std::size_t>(i)], end = begin_[static_cast<std::size_t>(i) + 1];
    for (std::int64_t p = begin; p < end; ++p) {
        const Stored& s = pieces_[static_cast<std::size_t>(p)];
        out[static_cast<std::size_t>(p - begin)] = {s.file, s.token, s.count};
    }
    return end - begin;
}

}  // namespace keel
