#include "data/parted.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "kernels/base/error.h"

namespace keel {

Tail Tail::parse(const std::string& text) {
    Tail tail;
    const char* end = text.data() + text.size();
    if (text.ends_with('%')) {
        const auto [at, error] = std::from_chars(text.data(), end - 1, tail.percent);
        if (error == std::errc() && at == end - 1 && tail.percent >= 0 && tail.percent < 100) return tail;
    } else {
        const auto [at, error] = std::from_chars(text.data(), end, tail.bytes);
        if (error == std::errc() && at == end && tail.bytes >= 0) return tail;
    }
    fail_usage("\"", text, "\" is no size of a tail; give bytes, as in 200000, or a percentage below 100, as in 5%");
}

PartedReader::PartedReader(std::vector<std::filesystem::path> paths, const TextOptions& options, const Tail& tail,
                           Progress progress, const std::optional<Position>& position)
    : reader_(paths, options), progress_(std::move(progress)) {
    if (position) {
        border_ = position->border;
        read_ = position->read;
        inside_ = position->inside;
        reader_.seek(position->at);
        return;
    }
    if (tail.none()) return;
    passes_ = 2;
    TextReader measuring(std::move(paths), options);
    std::int64_t total = 0;
    for (TextPiece piece; measuring.next(piece); report(measuring.file_bytes_read()))
        total += static_cast<std::int64_t>(piece.text.size());
    const std::int64_t bytes =
        tail.bytes > 0 ? tail.bytes
                       : static_cast<std::int64_t>(std::llround(static_cast<double>(total) * tail.percent / 100));
    if (bytes >= total)
        fail("a tail of ", bytes, " bytes leaves nothing of the ", total, " bytes of text; hold out less");
    border_ = total - bytes;
}

void PartedReader::report(std::int64_t done) const {
    if (progress_) progress_(done, passes_ * reader_.file_bytes());
}

bool PartedReader::next(TextPiece& piece, bool& in_tail) {
    if (rest_) {
        piece = std::move(*rest_);
        rest_.reset();
        in_tail = true;
        return true;
    }
    if (!reader_.next(piece)) return false;
    report((passes_ - 1) * reader_.file_bytes() + reader_.file_bytes_read());
    const auto size = static_cast<std::int64_t>(piece.text.size());
    const std::int64_t left = border_ - read_;  // bytes of this piece that must stay in the body
    const bool document_begins = !inside_;
    read_ += size;
    inside_ = !piece.ends_document;
    if (border_ >= 0 && !in_tail_) {
        if (document_begins && left <= 0) {
            in_tail_ = true;
        } else if (piece.may_cut && left < size) {
            // The line break that ends the line in which the border lies.
            const std::size_t line_end =
                piece.text.find('\n', static_cast<std::size_t>(std::max<std::int64_t>(left - 1, 0)));
            if (line_end != std::string::npos && (line_end + 1 < piece.text.size() || !piece.ends_document)) {
                in_tail_ = true;
                rest_ = TextPiece{piece.text.substr(line_end + 1), piece.ends_document, true, piece.line, piece.byte};
                piece.text.resize(line_end + 1);
                piece.ends_document = true;
                in_tail = false;
                return true;
            }
        }
    }
    in_tail = in_tail_;
    return true;
}

}  // namespace keel
