#include "data/tokenize.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "data/tokenizer_model.h"
#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/stream.h"

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
                           Progress progress)
    : reader_(paths, options), progress_(std::move(progress)) {
    if (tail.none()) return;
    passes_ = 2;
    TextReader measuring(std::move(paths), options);
    std::int64_t total = 0;
    for (TextPiece piece; measuring.next(piece); report(measuring.file_bytes_read()))
        total += static_cast<std::int64_t>(piece.text.size());
    const std::int64_t bytes =
        tail.bytes > 0 ? tail.bytes : static_cast<std::int64_t>(std::llround(static_cast<double>(total) * tail.percent / 100));
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
            const std::size_t line_end = piece.text.find('\n', static_cast<std::size_t>(std::max<std::int64_t>(left - 1, 0)));
            if (line_end != std::string::npos && (line_end + 1 < piece.text.size() || !piece.ends_document)) {
                in_tail_ = true;
                rest_ = TextPiece{piece.text.substr(line_end + 1), piece.ends_document, true};
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

namespace {

// One output: a token file and where the next id goes.
struct Output {
    TokenFileWriter file;
    bool inside = false;

    Output(const std::filesystem::path& path, const TokenFileInfo& info) : file(path, info) {}

    void add(const Tokenizer& tokenizer, const TokenizeOptions& o, const TextPiece& piece,
             const std::vector<std::int32_t>& ids) {
        if (!piece.text.empty() && !inside) {
            if (o.prepend_bos) {
                const std::int32_t bos = *tokenizer.bos_id();
                if (!ids.empty() && ids.front() == bos)
                    fail("document ", file.info().documents, " already begins with the text of the BOS token; turn"
                         " --prepend-bos off, or read special text as plain");
                file.append(std::span(&bos, 1));
            }
            inside = true;
        }
        file.append(ids);
        file.count_source(static_cast<std::int64_t>(piece.text.size()));
        if (!piece.ends_document || !inside) return;
        if (o.append_eos) {
            const std::int32_t eos = *tokenizer.eos_id();
            file.append(std::span(&eos, 1));
        }
        file.end_document();
        inside = false;
    }
};

}  // namespace

TokenizeReport tokenize(const Tokenizer& tokenizer, const TokenizeOptions& o) {
    if (o.append_eos && !tokenizer.eos_id())
        fail_usage("--append-eos is on, but ", tokenizer.name(), " names no end-of-text token; turn it off, or name one as"
                   " eos_token in tokenizer_config.json");
    if (o.prepend_bos && !tokenizer.bos_id())
        fail_usage("--prepend-bos is on, but ", tokenizer.name(), " names no beginning-of-text token");
    if (!o.tail.none() && o.tail_out.empty()) fail_usage("a tail is held out, but no file is named for it");
    TextOptions text = o.text;
    text.cut_documents = tokenizer.model().cuttable;
    TokenFileInfo info;
    info.vocab_size = tokenizer.vocab_size();
    info.tokenizer_hash = tokenizer.hash();
    info.eos_id = tokenizer.eos_id().value_or(-1);
    info.bos_id = tokenizer.bos_id().value_or(-1);
    info.ends_with_eos = o.append_eos;
    info.begins_with_bos = o.prepend_bos;
    Output body(o.out, info);
    std::optional<Output> tail;
    if (!o.tail.none()) tail.emplace(o.tail_out, info);
    std::optional<AtomicFile> tail_text;
    if (!o.tail_text.empty()) tail_text.emplace(o.tail_text);

    PartedReader reader(o.inputs, text, o.tail, o.progress);  // after the outputs: an unwritable folder is known at once

    // Rounds of read, encode, write. Which piece goes to which thread decides nothing but time.
    Stream stream(o.threads, 0);
    std::vector<Encoder> encoders;
    for (int i = 0; i < stream.threads(); ++i) encoders.emplace_back(tokenizer, o.special);
    struct Work {
        TextPiece piece;
        bool in_tail = false;
        std::int64_t replaced = 0;  // since the piece before
        std::vector<std::int32_t> ids;
    };
    std::vector<Work> round;
    const std::int64_t round_bytes = std::max<std::int64_t>(text.piece_bytes, 1 << 16) * stream.threads() * 2;
    std::int64_t replaced = 0;
    for (bool more = true; more;) {
        std::size_t count = 0;
        std::vector<std::size_t> tiles{0};  // first piece of each; a tile has about 64 KiB, short documents share one
        for (std::int64_t bytes = 0, tile = 0; bytes < round_bytes;) {
            if (count == round.size()) round.emplace_back();
            Work& work = round[count];
            if (!(more = reader.next(work.piece, work.in_tail))) break;
            work.replaced = reader.replaced() - replaced;
            replaced = reader.replaced();
            bytes += static_cast<std::int64_t>(work.piece.text.size());
            tile += static_cast<std::int64_t>(work.piece.text.size());
            ++count;
            if (tile >= 1 << 16) tiles.push_back(count), tile = 0;
        }
        if (tiles.back() != count) tiles.push_back(count);
        stream.parallel(static_cast<std::int64_t>(tiles.size()) - 1, [&](std::int64_t tile, int thread) {
            for (std::size_t i = tiles[static_cast<std::size_t>(tile)]; i < tiles[static_cast<std::size_t>(tile) + 1]; ++i) {
                round[i].ids.clear();
                encoders[static_cast<std::size_t>(thread)].encode(round[i].piece.text, round[i].ids);
            }
        });
        for (std::size_t i = 0; i < count; ++i) {
            const Work& work = round[i];
            Output& to = work.in_tail ? *tail : body;
            to.add(tokenizer, o, work.piece, work.ids);
            to.file.count_source(0, work.replaced);
            if (work.in_tail && tail_text) tail_text->write(work.piece.text);
        }
    }
    if (body.file.info().tokens == 0) fail("there is no text in ", o.inputs.front().string(), o.inputs.size() > 1 ? " and the other inputs" : "");
    if (tail && tail->file.info().tokens == 0)
        fail("the held-out tail is empty: no line break and no document begins in it; hold out more");
    TokenizeReport report;
    if (tail) report.tail = tail->file.finish();
    if (tail_text) tail_text->commit();
    report.body = body.file.finish();
    report.bad_lines = reader.bad_lines();
    return report;
}

}  // namespace keel
